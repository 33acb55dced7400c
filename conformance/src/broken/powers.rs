//! Elections, records and pins of a broken backend.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use lockkit_core::{
    FencingToken, LockName, Metadata, Result,
    backend::{Elections, Grant, LeaderEntry, LeaderWatch, Pins, Polling, Records},
};
use tokio::time::sleep;

use super::{Defect, wrapper::BrokenSession};

/// What the clients of one broken store share beside locks.
#[derive(Default)]
pub(super) struct PowersState {
    /// The last two answers about a leader, the newer one last.
    leaders: HashMap<LockName, [Option<LeaderEntry>; 2]>,
    /// What was proclaimed although it should have been refused, for the holder of this token.
    proclaimed: HashMap<(LockName, FencingToken), Metadata>,
    /// Records that should have been refused, or that are kept wrongly.
    records: HashMap<String, String>,
}

/// The power of a session that wraps one of the memory backend, which has them all.
macro_rules! inner {
    ($session:ident.$power:ident()) => {
        match $session.inner.$power() {
            Some(power) => power,
            None => unreachable!("the memory backend has this power"),
        }
    };
}

#[async_trait]
impl Elections for BrokenSession {
    async fn leader(&self, name: &LockName) -> Result<Option<LeaderEntry>> {
        let mut leader = inner!(self.elections()).leader(name).await?;
        let mut state = self.shared.state();
        let powers = &mut state.powers;
        if let Some(seen) = &leader
            && let Some(metadata) = powers.proclaimed.get(&(name.clone(), seen.token))
        {
            leader = Some(LeaderEntry::of_metadata(seen.token, Some(metadata.clone())));
        }
        if self.defect == Defect::StaleLeader {
            let last = powers.leaders.entry(name.clone()).or_default();
            if last[1] != leader {
                last.swap(0, 1);
                last[1] = leader;
            }
            return Ok(last[0].clone());
        }
        if self.defect == Defect::UnseenHolder {
            return Ok(leader.filter(|leader| leader.proposal.number > 0));
        }
        Ok(leader)
    }

    async fn watch(&self, name: &LockName) -> Result<Box<dyn LeaderWatch>> {
        match self.defect {
            Defect::SilentLeaderWatch => Ok(Box::new(Polling)),
            _ => inner!(self.elections()).watch(name).await,
        }
    }

    async fn proclaim(&self, grant: &Grant, metadata: &Metadata) -> Result<bool> {
        let elections = inner!(self.elections());
        match self.defect {
            Defect::EmptyProclaim => Ok(true),
            Defect::ForeignProclaim | Defect::LateProclaim => {
                let mine = elections.proclaim(grant, metadata).await?;
                if !mine && self.defect == Defect::LateProclaim {
                    return Ok(false);
                }
                if let Some(current) = elections.leader(grant.name()).await? {
                    let key = (grant.name().clone(), current.token);
                    self.shared.state().powers.proclaimed.insert(key, metadata.clone());
                }
                Ok(true)
            }
            _ => elections.proclaim(grant, metadata).await,
        }
    }
}

impl BrokenSession {
    /// Returns under what a defect keeps the record of this name, if it does.
    fn record_key(&self, name: &LockName) -> Option<String> {
        match self.defect {
            Defect::RecordOfSession => Some(format!("{:p}/{name}", Arc::as_ptr(&self.inner))),
            Defect::SharedRecord => Some("one for all".into()),
            Defect::ForeignRecord => Some(name.to_string()),
            _ => None,
        }
    }
}

#[async_trait]
impl Records for BrokenSession {
    async fn read(&self, name: &LockName) -> Result<Option<String>> {
        match self.record_key(name) {
            Some(key) => Ok(self.shared.state().powers.records.get(&key).cloned()),
            None => inner!(self.records()).read(name).await,
        }
    }

    async fn write(&self, grant: &Grant, record: &str, keep: Duration) -> Result<bool> {
        let written = inner!(self.records()).write(grant, record, keep).await?;
        let Some(key) = self.record_key(grant.name()) else { return Ok(written) };
        let is_done = written || self.defect == Defect::ForeignRecord;
        if is_done {
            self.shared.state().powers.records.insert(key, record.to_owned());
        }
        Ok(is_done)
    }
}

#[async_trait]
impl Pins for BrokenSession {
    async fn pin(&self, grant: &Grant, at_least: Duration) -> Result<bool> {
        let pins = inner!(self.pins());
        match self.defect {
            Defect::EmptyPin => Ok(true),
            Defect::ForeignPin => pins.pin(grant, at_least).await.map(|_| true),
            Defect::EndlessPin => pins.pin(grant, at_least * 1_000).await,
            Defect::PinEndsHold => {
                let (inner, pinned) = (Arc::clone(&self.inner), grant.clone());
                tokio::spawn(async move {
                    sleep(at_least).await;
                    inner.release(&pinned).await
                });
                pins.pin(grant, at_least).await
            }
            _ => pins.pin(grant, at_least).await,
        }
    }

    async fn leave(&self, grant: &Grant) -> Result<()> {
        inner!(self.pins()).leave(grant).await
    }
}
