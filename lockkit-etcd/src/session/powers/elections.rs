//! Elections: a leader is the holder of a lock, and its proposal is in the value of its key.
//!
//! With raw names a candidate's value is what it proposes and nothing else, as in Go's `concurrency.Election`, so the
//! programs of both kinds see each other's leaders. Then the number of a proposal is the version of the key, which
//! rises with each put. A value of a lockkit client that is a metadata record is that of an ordinary lock; so it cannot
//! be proposed there. A foreign key whose only put was empty is that of an ordinary lock too: Go's mutexes put such.
//!
//! Failure cases:
//!
//! * The reply to a proclamation is lost, or a copy of it arrives late: see [`rewrite`](crate::session::rewrite).
//! * A notification is lost, or comes without a change of the leader (a new candidate): it is only a hint.

use std::sync::{Arc, atomic::Ordering};

use async_trait::async_trait;
use lockkit_core::{
    LockName, Metadata, Proposal, Result,
    backend::{Elections, Grant, LeaderEntry, LeaderWatch},
};
use tokio::sync::Notify;

use crate::{
    client::KeyValue,
    error::RequestError,
    keys::{ClaimKey, Layout},
    session::{EtcdSession, watch::WatchGuard},
    wire::{self, Rewrite, token},
};

/// An observer's watch on one queue.
#[derive(Debug)]
struct QueueWatch {
    changes: Arc<Notify>,
    _guard: WatchGuard,
}

#[async_trait]
impl LeaderWatch for QueueWatch {
    async fn changed(&mut self) {
        self.changes.notified().await;
    }
}

impl Layout {
    fn leader(&self, kv: &KeyValue) -> Result<LeaderEntry, RequestError> {
        let (token, metadata) = (token(kv.create_revision()), Metadata::from_json(kv.value()));
        let is_ours = str::from_utf8(kv.key()).is_ok_and(|key| ClaimKey::parse(key).is_some());
        if !self.shares_elections() || is_ours && metadata.is_some() {
            return Ok(LeaderEntry::of_metadata(token, metadata));
        }
        if kv.value().is_empty() && kv.version() == 1 && !is_ours {
            return Ok(LeaderEntry::of_metadata(token, None));
        }
        let value =
            kv.value_str().map_err(|_| RequestError::unexpected("the leader's value is not UTF-8"))?;
        Ok(LeaderEntry::new(token, Proposal::new(value, kv.version().unsigned_abs()), None))
    }
}

impl EtcdSession {
    async fn read_leader(&self, name: &LockName) -> Result<Option<LeaderEntry>> {
        let queue = self.layout.queue(name)?;
        let read = self.state.unless_over(self.server.range(queue.as_str(), wire::holder())).await;
        let leader =
            read.and_then(|answer| answer.kvs().first().map(|kv| self.layout.leader(kv)).transpose());
        leader.map_err(|fault| fault.into_error("read the leader").with_lock(name))
    }

    async fn put_proposal(&self, grant: &Grant, metadata: &Metadata) -> Result<bool, RequestError> {
        let Some(entry) = self.claims.get(grant.claim()) else { return Ok(false) };
        let _one_at_a_time = entry.held.one_at_a_time.lock().await;
        let number = metadata.proposal.as_ref().map_or(0, |proposal| proposal.number);
        if entry.held.proposed.fetch_max(number, Ordering::AcqRel) > number {
            // A later one was sent already, and must not be undone.
            return Ok(true);
        }
        self.rewrite(&entry, &Rewrite::Value(self.layout.entry_value(metadata))).await
    }
}

#[async_trait]
impl Elections for EtcdSession {
    async fn leader(&self, name: &LockName) -> Result<Option<LeaderEntry>> {
        self.read_leader(name).await
    }

    async fn watch(&self, name: &LockName) -> Result<Box<dyn LeaderWatch>> {
        let (queue, changes) = (self.layout.queue(name)?, Arc::default());
        let guard = self.watches.observe(&queue, &changes);
        Ok(Box::new(QueueWatch { changes, _guard: guard }))
    }

    async fn proclaim(&self, grant: &Grant, metadata: &Metadata) -> Result<bool> {
        let put = self.put_proposal(grant, metadata).await;
        put.map_err(|fault| fault.into_error("proclaim").with_lock(grant.name()))
    }
}

#[cfg(test)]
mod tests {
    use lockkit_conformance::direct::{acquire, fresh_name};

    use crate::{client::scripted::Script, session::tests::session};

    /// However many candidates there are.
    #[tokio::test(start_paused = true)]
    async fn look_at_a_leader_returns_one_key() {
        let (script, name) = (Script::default(), fresh_name());
        let session = session(&script).await;
        let _held = acquire(&session, &name).await;
        script.take_calls();
        assert!(session.elections().unwrap().leader(&name).await.unwrap().is_some());
        let calls = script.take_calls();
        assert!(calls.len() == 1 && calls[0].is("Range") && calls[0].limit() == 1, "{calls:?}");
    }
}
