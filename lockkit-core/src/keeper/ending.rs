//! What follows the end of a hold, whether a guard that leaves, a reading of the clock or a report of the store ends it.
//!
//! A hold has no task. The one call that ends it starts the release. Failure cases:
//!
//! * The runtime has ended: the task of the release is dropped without a poll, and its [`HoldCleanup`] does the rest.
//! * The hold ends before it is armed with its ending (its session was lost meanwhile, or no caller is left):
//!   [`Hold::arm`] starts the release then.
//! * The caller of a release leaves: the release was either confirmed within its first poll, or a task drives it.

use std::sync::Arc;

use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{Instrument, Span, debug_span, warn};

use super::{
    Keeper,
    active_session::ActiveSession,
    caught::contained,
    cleanup::HoldCleanup,
    hold::{Hold, HoldEnd},
    loss::LossReason,
    reentry::ReentryKey,
    releases::{ReleaseKind, Releaser},
};
use crate::{
    BootInstant,
    backend::{Grant, Lifetime},
    metrics::{self, Counted, Moment},
};

/// What the end of a hold needs.
pub(crate) struct Ending {
    keeper: Arc<Keeper>,
    active: Arc<ActiveSession>,
    key: Option<ReentryKey>,
    /// Until when a pin keeps the entry.
    pinned_until: Option<BootInstant>,
    /// Counts the hold among the tasks that a draining client waits for.
    token: TaskTrackerToken,
    granted: Moment,
    counted: Counted,
    spans: Option<Box<HoldSpans>>,
}

/// The spans of a hold, where a subscriber records them.
pub(super) struct HoldSpans {
    caller: Span,
    hold: Span,
}

impl HoldSpans {
    pub(super) fn new(caller: &Span, scheme: &'static str, grant: &Grant) -> Option<Box<Self>> {
        let (lock, token) = (grant.name().as_ref(), grant.token().get());
        let hold =
            contained(|| debug_span!(parent: caller, "hold", lock, scheme, token, claim = ?grant.claim()))?;
        let is_recorded = !(hold.is_disabled() && caller.is_disabled());
        is_recorded.then(|| Box::new(Self { caller: caller.clone(), hold }))
    }

    /// Runs `work` in the span of the hold.
    pub(super) fn in_hold<T>(spans: Option<&Self>, work: impl FnOnce() -> T) -> T {
        match spans {
            Some(spans) => spans.hold.in_scope(work),
            None => work(),
        }
    }
}

impl Ending {
    pub(super) fn new(
        keeper: &Arc<Keeper>,
        active: Arc<ActiveSession>,
        key: Option<ReentryKey>,
        pinned_until: Option<BootInstant>,
        token: TaskTrackerToken,
        spans: Option<Box<HoldSpans>>,
    ) -> Self {
        let (granted, counted) = (Moment::now(), Counted::hold(keeper.info.scheme));
        Self { keeper: Arc::clone(keeper), active, key, pinned_until, token, granted, counted, spans }
    }

    /// Starts the release in a task.
    pub(crate) fn start(self, hold: Arc<Hold>) {
        let keeper = Arc::clone(&self.keeper);
        keeper.runtime.start_behind(self.release(hold));
    }

    /// Starts the release here, and leaves the rest to a task if the store does not confirm it within the first poll.
    pub(super) fn start_here(self, hold: Arc<Hold>) {
        let keeper = Arc::clone(&self.keeper);
        keeper.runtime.start_here(self.release(hold));
    }

    /// Reports the end, and returns the release.
    fn release(self, hold: Arc<Hold>) -> impl Future<Output = ()> + Send + 'static {
        let Self { keeper, active, key, pinned_until, token, granted, counted, spans } = self;
        // Created before the task is spawned, which may be dropped without a poll.
        let cleanup = HoldCleanup::new(Arc::clone(&keeper), &active, hold, token);
        let hold = cleanup.hold();
        if let Some(key) = &key {
            keeper.reentry.ended(key, hold);
        }
        let loss = match hold.end() {
            Some(HoldEnd::Lost(reason)) => Some(reason),
            Some(HoldEnd::Released) | None => None,
        };
        // Its panic must not prevent the release.
        contained(|| {
            HoldSpans::in_hold(spans.as_deref(), || report(hold.grant(), keeper.info.scheme, granted, loss));
        });
        drop(counted);
        // Renewals of the session would keep the entry of a hold alive that passed its deadline.
        let is_expired = || loss.is_some() && keeper.clock.now() >= hold.deadline();
        if keeper.info.lifetime == Lifetime::Session && is_expired() {
            active.abandon(LossReason::HoldExpired);
        }
        let kind = match pinned_until.filter(|until| keeper.clock.now() < *until) {
            Some(_) if hold.was_used() => ReleaseKind::Leave,
            Some(pinned_until) => ReleaseKind::Unpin { pinned_until },
            None => ReleaseKind::Remove,
        };
        let caller = spans.map_or_else(Span::none, |spans| spans.caller);
        let releaser = Releaser::new(keeper, active);
        async move { releaser.release_hold(cleanup, kind).await }.instrument(caller)
    }
}

/// Reports the end of a hold.
fn report(grant: &Grant, scheme: &'static str, granted: Moment, loss: Option<LossReason>) {
    metrics::hold_ended(scheme, granted, loss);
    if let Some(reason) = loss {
        warn!(
            lock = grant.name().as_ref(),
            scheme,
            token = grant.token().get(),
            claim = ?grant.claim(),
            reason = reason.label(),
            "lock lost: {}",
            reason.text()
        );
    }
}
