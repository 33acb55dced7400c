//! Completes what a claim task owes to others, also if its runtime ends.

use std::sync::{Arc, OnceLock};

use super::{
    Keeper, LockRequest,
    attempt::{Attempt, AttemptOutcome, SettledAttempts},
    closed,
    hold::Hold,
    loss::LossReason,
    reentry::ReentryKey,
};
use crate::sync::lock;

/// Ends the attempt and the hold of a claim task, and removes them from the keeper's tables.
///
/// The task does this step by step. If the runtime ends and drops the task, `Drop` does the rest, so that no caller or
/// guard waits for a task that has ended.
pub(super) struct CleanupGuard {
    keeper: Arc<Keeper>,
    key: Option<ReentryKey>,
    attempt: Arc<Attempt>,
    hold: OnceLock<Arc<Hold>>,
}

impl CleanupGuard {
    pub(super) fn new(keeper: Arc<Keeper>, request: &LockRequest, attempt: Arc<Attempt>) -> Self {
        Self { keeper, key: request.key(), attempt, hold: OnceLock::new() }
    }

    /// Ends an attempt that was not granted.
    pub(super) fn settle_failure(&self, outcome: AttemptOutcome) {
        self.forget_attempt();
        self.attempt.end(outcome);
    }

    /// Takes over the hold of a granted attempt.
    pub(super) fn set_hold(&self, hold: &Arc<Hold>) {
        let _ = self.hold.set(Arc::clone(hold));
    }

    /// Ends a granted attempt: its callers share the hold.
    pub(super) fn settle_grant(&self, hold: &Arc<Hold>) -> SettledAttempts {
        match &self.key {
            Some(key) => self.keeper.reentry.granted(key, &self.attempt, hold),
            None => Attempt::grant(vec![Arc::clone(&self.attempt)], hold),
        }
    }

    /// Removes an ended hold from the re-entry table.
    pub(super) fn forget_hold(&self) {
        if let (Some(key), Some(hold)) = (&self.key, self.hold.get()) {
            self.keeper.reentry.ended(key, hold);
        }
    }

    fn forget_attempt(&self) {
        if let Some(key) = &self.key {
            self.keeper.reentry.failed(key, &self.attempt);
        }
    }

    /// Returns the hold after the grant.
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
            self.forget_hold();
            hold.lose(LossReason::RuntimeEnded);
            hold.finish(Err(closed("release").with_lock(hold.grant().name())));
            lock(&self.keeper.holds).remove(&hold.grant().claim());
        }
    }
}
