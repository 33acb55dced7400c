//! Completes attempts and holds for those who wait for them, also if the runtime ends.
//!
//! The tasks do this step by step. If the runtime ends and drops a task, `Drop` does the rest, so that no caller or
//! guard waits for a task that has ended. Each value is created before its task is spawned, because a task that is
//! spawned after the end of its runtime is dropped without a poll.
//!
//! Failure case: a panic that is not [`caught`](mod@super::caught) drops a task while the runtime and the session live on. The
//! callers get `Closed`, and an entry that is left without a hold or a release would be renewed with its session. So that
//! session is given up ([`EntryCleanup`]); a hold with a lifetime of its own ends by itself.

use std::sync::{Arc, Weak};

use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{
    Keeper, LockRequest,
    active_session::ActiveSession,
    attempt::{Attempt, AttemptOutcome, SettledAttempts},
    closed,
    hold::Hold,
    loss::LossReason,
    reentry::ReentryKey,
};
use crate::backend::Lifetime;

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

/// Gives up the session of an entry that has neither a hold nor a release, if it is dropped before [`done`](Self::done).
pub(super) struct EntryCleanup {
    /// Weak, because a session owns the releases that it retries.
    session: Weak<ActiveSession>,
}

impl EntryCleanup {
    pub(super) fn new(keeper: &Keeper, active: &Arc<ActiveSession>) -> Self {
        let session = match keeper.info.lifetime {
            Lifetime::Hold => Weak::new(),
            Lifetime::Session | Lifetime::Process => Arc::downgrade(active),
        };
        Self { session }
    }

    /// Notes that the entry has a hold, that its release has an outcome, or that there is none.
    pub(super) fn done(&mut self) {
        self.session = Weak::new();
    }
}

impl Drop for EntryCleanup {
    fn drop(&mut self) {
        if let Some(active) = self.session.upgrade() {
            active.abandon(LossReason::TaskPanicked);
        }
    }
}

/// Ends the release of a hold: the guard that waits gets an outcome, and the hold leaves the keeper's table.
pub(super) struct HoldCleanup {
    keeper: Arc<Keeper>,
    hold: Arc<Hold>,
    entry: EntryCleanup,
    /// A draining client waits for it.
    _token: TaskTrackerToken,
}

impl HoldCleanup {
    pub(super) fn new(
        keeper: Arc<Keeper>,
        active: &Arc<ActiveSession>,
        hold: Arc<Hold>,
        token: TaskTrackerToken,
    ) -> Self {
        let entry = EntryCleanup::new(&keeper, active);
        Self { keeper, hold, entry, _token: token }
    }

    pub(super) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }
}

impl Drop for HoldCleanup {
    fn drop(&mut self) {
        match self.hold.outcome() {
            Some(_) => self.entry.done(),
            None => self.hold.finish(Err(closed("release").with_lock(self.hold.grant().name()))),
        }
        self.keeper.holds.remove(self.hold.grant().claim());
    }
}
