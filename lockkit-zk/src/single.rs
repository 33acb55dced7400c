//! A claim's life where the lock is one node: create it, or wait until it goes and try again.
//!
//! Failure cases: as in [`acquire`](crate::acquire), but that the name does not tell whose node it is. The session that
//! owns it and what it holds do.

use std::ops::ControlFlow;

use lockkit_core::backend::{Claim, recheck_pause};

use crate::{
    acquire::{End, Entry},
    error::{Effect, Fault},
    session::ZkSession,
};

impl ZkSession {
    pub(crate) async fn claim_single(&self, claim: &Claim, entry: &mut Entry) -> Result<End, Fault> {
        let path = entry.lock.clone();
        loop {
            match self.create(claim, entry, &path).await {
                Ok(ControlFlow::Break(end)) => return Ok(end),
                Ok(ControlFlow::Continue(_)) => return Ok(End::Granted),
                Err(fault) if fault.effect == Effect::Exists => {}
                Err(fault) => return Err(fault),
            }
            let (stat, watcher) = match self.read(claim, || self.server.watch(&path)).await? {
                None => return Ok(End::GaveUp),
                Some(None) => continue,
                Some(Some(watched)) => watched,
            };
            if stat.ephemeral_owner == 0 {
                return Err(Fault::unexpected(
                    "a lasting node stands where the lock should be; is it a queue?",
                ));
            }
            claim.note_contended();
            if !claim.wait() {
                return Ok(End::GaveUp);
            }
            tokio::select! {
                biased;
                () = claim.give_up() => return Ok(End::GaveUp),
                () = self.server.life.over() => return Err(Fault::session_over()),
                _ = watcher.changed() => {}
                () = tokio::time::sleep(recheck_pause(self.ttl)) => {}
            }
        }
    }
}
