//! A claim's life where the lock is one node: create it, or wait until it goes and try again.
//!
//! Failure cases: as in [`acquire`](crate::acquire), but that the name does not tell whose node it is. The session that
//! owns it and what it holds do.

use std::ops::ControlFlow;

use lockkit_core::backend::{Claim, recheck_pause};
use zookeeper_client::OneshotWatcher;

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
            if self.wait_for_change(claim, &path, stat.czxid, watcher).await?.is_break() {
                return Ok(End::GaveUp);
            }
        }
    }

    /// Waits until the node of another claim has gone; breaks when this claim is given up.
    async fn wait_for_change(
        &self,
        claim: &Claim,
        path: &str,
        czxid: i64,
        watcher: OneshotWatcher,
    ) -> Result<ControlFlow<()>, Fault> {
        let changed = watcher.changed();
        tokio::pin!(changed);
        loop {
            tokio::select! {
                biased;
                () = claim.give_up() => return Ok(ControlFlow::Break(())),
                () = self.server.life.over() => return Err(Fault::session_over()),
                _ = &mut changed => return Ok(ControlFlow::Continue(())),
                () = tokio::time::sleep(recheck_pause(self.ttl)) => {}
            }
            // A create would be a transaction for each waiter.
            match self.read(claim, || self.server.stat(path)).await? {
                None => return Ok(ControlFlow::Break(())),
                Some(Some(stat)) if stat.czxid == czxid => {}
                Some(_) => return Ok(ControlFlow::Continue(())),
            }
        }
    }
}
