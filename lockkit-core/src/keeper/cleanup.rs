//! Completes attempts and holds for those who wait for them, also if the runtime ends.
//!
//! The tasks do this step by step. If the runtime ends and drops a task, `Drop` does the rest, so that no caller or
//! guard waits for a task that has ended. Each value is created before its task is spawned, because a task that is
//! spawned after the end of its runtime is dropped without a poll.

use std::sync::Arc;

use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{
    Keeper, LockRequest,
    attempt::{Attempt, AttemptOutcome, SettledAttempts},
    closed,
    hold::Hold,
    reentry::ReentryKey,
};

/// Ends the attempt of a claim task, and removes it from the re-entry table.
pub(super) struct AttemptCleanup {
    keeper: Arc<Keeper>,
    key: Option<ReentryKey>,
    attempt: Arc<Attempt>,
}

impl AttemptCleanup {
    pub(super) fn new(keeper: Arc<Keeper>, request: &LockRequest, attempt: Arc<Attempt>) -> Self {
        Self { keeper, key: request.key(), attempt }
    }

    pub(super) fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }

    pub(super) fn attempt(&self) -> &Arc<Attempt> {
        &self.attempt
    }

    pub(super) fn key(&self) -> Option<&ReentryKey> {
        self.key.as_ref()
    }

    /// Ends an attempt that was not granted.
    pub(super) fn settle_failure(&self, outcome: AttemptOutcome) {
        self.forget_attempt();
        self.attempt.end(outcome);
    }

    /// Ends a granted attempt: its callers share the hold.
    pub(super) fn settle_grant(&self, hold: &Arc<Hold>) -> SettledAttempts {
        match &self.key {
            Some(key) => self.keeper.reentry.granted(key, &self.attempt, hold),
            None => Attempt::grant(&self.attempt, None, hold),
        }
    }

    fn forget_attempt(&self) {
        if let Some(key) = &self.key {
            self.keeper.reentry.failed(key, &self.attempt);
        }
    }
}

impl Drop for AttemptCleanup {
    fn drop(&mut self) {
        self.forget_attempt();
        if !self.attempt.is_over() {
            self.attempt.end(Err(closed("acquire").with_lock(self.attempt.name())));
        }
    }
}

/// Ends the release of a hold: the guard that waits gets an outcome, and the hold leaves the keeper's table.
pub(super) struct HoldCleanup {
    keeper: Arc<Keeper>,
    hold: Arc<Hold>,
    /// A draining client waits for it.
    _token: TaskTrackerToken,
}

impl HoldCleanup {
    pub(super) fn new(keeper: Arc<Keeper>, hold: Arc<Hold>, token: TaskTrackerToken) -> Self {
        Self { keeper, hold, _token: token }
    }

    pub(super) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }
}

impl Drop for HoldCleanup {
    fn drop(&mut self) {
        if self.hold.outcome().is_none() {
            self.hold.finish(Err(closed("release").with_lock(self.hold.grant().name())));
        }
        self.keeper.holds.remove(self.hold.grant().claim());
    }
}
