//! What a claim's task owes to others: an answer to its callers, an outcome to its guards, its places in the tables.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use tracing::debug;

use super::{
    Keeper, LockRequest,
    attempt::{Attempt, Outcome},
    closed,
    hold::Hold,
    reentry::Key,
    session::Live,
};
use crate::{
    backend::{Grant, Lifetime},
    sync::lock,
};

/// What a claim's task owes to others. Paid on the way; what is still owed when the task's future is dropped, because
/// the runtime ended, is paid by `Drop`, so that nobody waits for a task that has ended.
pub(super) struct CleanupGuard {
    pub(super) keeper: Arc<Keeper>,
    key: Option<Key>,
    pub(super) attempt: Arc<Attempt>,
    hold: OnceLock<Arc<Hold>>,
}

impl CleanupGuard {
    pub(super) fn new(keeper: Arc<Keeper>, request: &LockRequest, attempt: Arc<Attempt>) -> Self {
        Self { keeper, key: request.key(), attempt, hold: OnceLock::new() }
    }

    /// Ends an attempt that was not granted.
    pub(super) fn settle_failure(&self, outcome: Outcome) {
        self.forget_attempt();
        self.attempt.end(outcome);
    }

    /// Ends a granted attempt: its callers share the hold.
    pub(super) fn settle_grant(&self, live: &Live, grant: Grant, max_hold: Option<Duration>) -> Arc<Hold> {
        let keeper = &self.keeper;
        debug!(token = %grant.token(), claim = ?grant.claim(), "granted");
        let hold = Hold::new(grant, live.ttl(), max_hold, keeper.clock.clone());
        let _ = self.hold.set(Arc::clone(&hold));
        lock(&keeper.holds).insert(hold.grant().claim(), Arc::clone(&hold));
        // An answer that took longer than a beat has used up much of a lifetime that no beat has carried yet.
        let beat = keeper.info.beat.interval(live.ttl());
        if keeper.info.lifetime == Lifetime::Hold && keeper.clock.now().since(hold.grant().armed_at()) > beat
        {
            live.hurry();
        }
        // After the insert: a session that ended before it has not seen this hold in the table.
        if live.has_ended() || keeper.closing.is_cancelled() {
            hold.lose("the session ended");
        }
        // First the table, then the answers: a caller that comes in between enters the hold.
        let settled = match &self.key {
            Some(key) => keeper.reentry.granted(key, &self.attempt, &hold),
            None => Attempt::grant(vec![Arc::clone(&self.attempt)], &hold),
        };
        settled.announce();
        hold
    }

    pub(super) fn forget_reentry(&self) {
        if let (Some(key), Some(hold)) = (&self.key, self.hold.get()) {
            self.keeper.reentry.ended(key, hold);
        }
    }

    fn forget_attempt(&self) {
        if let Some(key) = &self.key {
            self.keeper.reentry.failed(key, &self.attempt);
        }
    }

    /// The hold, once the claim was granted.
    pub(super) fn hold(&self) -> Option<&Arc<Hold>> {
        self.hold.get()
    }
}

impl Drop for CleanupGuard {
    fn drop(&mut self) {
        self.forget_attempt();
        if !self.attempt.is_over() {
            self.attempt.end(Err(closed("acquire").with_lock(self.attempt.name())));
        }
        if let Some(hold) = self.hold.get() {
            self.forget_reentry();
            hold.lose("the runtime ended");
            hold.finish(Err(closed("release").with_lock(hold.grant().name())));
            lock(&self.keeper.holds).remove(&hold.grant().claim());
        }
    }
}
