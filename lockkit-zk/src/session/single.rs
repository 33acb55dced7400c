//! A claim up to its grant where the lock is one node: create the node, or wait until it is gone and try again.
//!
//! Failure cases: as in [`acquire`](super::acquire), except that the node's name does not identify its claim. Its owner
//! (the session) and its data do.

use std::ops::ControlFlow;

use lockkit_core::{
    backend::{Claim, recheck_pause},
    support::SessionOver,
};
use zookeeper_client::OneshotWatcher;

use super::{ZkSession, acquire::ClaimOutcome, creation::ClaimEntry};
use crate::error::{Effect, RequestError};

impl ZkSession {
    pub(crate) async fn claim_single(
        &self,
        claim: &Claim,
        entry: &mut ClaimEntry,
    ) -> Result<ClaimOutcome, RequestError> {
        let path = entry.lock_path.clone();
        loop {
            match self.create(claim, entry).await {
                Ok(ControlFlow::Break(outcome)) => return Ok(outcome),
                Ok(ControlFlow::Continue(_)) => return Ok(ClaimOutcome::Granted),
                Err(error) if error.effect == Effect::Exists => {}
                Err(error) => return Err(error),
            }
            let (stat, watcher) = match self.read(claim, || self.server.watch(&path)).await? {
                None => return Ok(ClaimOutcome::GaveUp),
                Some(None) => continue,
                Some(Some(watched)) => watched,
            };
            if stat.ephemeral_owner == 0 {
                return Err(RequestError::unexpected(
                    "a persistent node exists at the path of the lock; does another program use it as a queue?",
                ));
            }
            claim.note_contended();
            if !claim.wait() {
                self.recently_busy.record(claim.name(), self.server.liveness.now());
                return Ok(ClaimOutcome::GaveUp);
            }
            if self.wait_for_change(claim, &path, stat.czxid, watcher).await?.is_break() {
                return Ok(ClaimOutcome::GaveUp);
            }
        }
    }

    /// Waits until the node of another claim is gone; breaks if this claim is given up.
    async fn wait_for_change(
        &self,
        claim: &Claim,
        path: &str,
        czxid: i64,
        watcher: OneshotWatcher,
    ) -> Result<ControlFlow<()>, RequestError> {
        let changed = watcher.changed();
        tokio::pin!(changed);
        loop {
            tokio::select! {
                biased;
                () = claim.give_up() => return Ok(ControlFlow::Break(())),
                () = self.server.state.over() => return Err(SessionOver.into()),
                _ = &mut changed => return Ok(ControlFlow::Continue(())),
                () = tokio::time::sleep(recheck_pause(self.ttl)) => {}
            }
            // A read, because a create would be a transaction for each waiter and re-check.
            match self.read(claim, || self.server.stat(path)).await? {
                None => return Ok(ControlFlow::Break(())),
                Some(Some(stat)) if stat.czxid == czxid => {}
                Some(_) => return Ok(ControlFlow::Continue(())),
            }
        }
    }
}
