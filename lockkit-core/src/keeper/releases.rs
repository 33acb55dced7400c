//! Releases, and the retries of releases that the store has not confirmed.
//!
//! The release of an ended hold is sent by its caller or by a task ([`ending`](super::ending)). If the store does not
//! confirm it, the release is added to a queue of the session, and a few workers retry it. Many guards dropped during an
//! outage thus leave entries in a queue, not tasks. Failure cases:
//!
//! * The store answers late, or its answer was lost: a retry is confirmed.
//! * The store keeps refusing (a permission was revoked while the lock was held): after one ttl the session is
//!   abandoned where it keeps entries alive; a hold with its own lifetime has ended by then.
//! * The session ends, and with it all its releases. While the client closes, a lost hold is left to that end; the pin of a
//!   hold that no caller had outlives it, and is removed before.
//! * A retry panics: its release gives up the session ([`EntryCleanup`]), and the worker continues with the next one.
//! * The runtime ends: the queue is dropped, and each [`HoldCleanup`] in it returns an error to its guard.

use std::{collections::BTreeMap, fmt, sync::Arc};

use tokio::time::Instant;
use tracing::{Instrument, Span, debug, debug_span, warn};

use super::{
    Keeper,
    active_session::ActiveSession,
    caught,
    caught::contained,
    cleanup::{EntryCleanup, HoldCleanup},
    hold::Hold,
    loss::LossReason,
};
use crate::{
    BootInstant, Error, ErrorKind, LockName, Result,
    backend::{Grant, Lifetime, RetryPauses, retry_pauses},
    limits::RELEASE_WORKERS_MAX,
    metrics::Counted,
    sync::{Mutex, lock},
};

/// The releases of one session that the store has not confirmed.
#[derive(Debug, Default)]
pub(super) struct Releases(Mutex<RetryQueue>);

#[derive(Default)]
struct RetryQueue {
    /// By the time of the next retry; the number distinguishes releases of the same instant.
    due: BTreeMap<(Instant, u64), Unconfirmed>,
    next_number: u64,
    workers: usize,
}

/// A release that is not confirmed yet.
struct Unconfirmed {
    of: Released,
    kind: ReleaseKind,
    /// No retries from then on.
    until: BootInstant,
    /// `None` before the first retry.
    pauses: Option<RetryPauses>,
    /// From the first request until the release is confirmed or given up.
    span: Span,
    /// `None` before the first retry.
    counted: Option<Counted>,
}

/// What is released.
enum Released {
    Hold(HoldCleanup),
    /// A grant that came too late: no guard waits for its release.
    LateGrant(Grant, EntryCleanup),
}

/// What a release does with the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReleaseKind {
    /// Removes it.
    Remove,
    /// Removes it, although it may be pinned until then: no caller has got the grant.
    Unpin { pinned_until: BootInstant },
    /// Leaves it until the end of its pin.
    Leave,
}

impl Releases {
    /// Returns how many releases wait for their next retry.
    pub(super) fn len(&self) -> usize {
        lock(&self.0).due.len()
    }

    fn push(&self, mut unconfirmed: Unconfirmed, now: BootInstant) {
        let pause = unconfirmed.pauses.get_or_insert_with(retry_pauses).next_pause();
        // The last retry is due exactly at `until`, not a pause later.
        let due = Instant::now() + pause.min(unconfirmed.until.since(now));
        let mut queue = lock(&self.0);
        let number = queue.next_number;
        queue.next_number += 1;
        queue.due.insert((due, number), unconfirmed);
    }

    /// Returns the release that is due first; if there is none, the calling worker must end.
    fn pop(&self) -> Option<(Instant, Unconfirmed)> {
        let mut queue = lock(&self.0);
        let first = queue.due.pop_first().map(|((due, _), unconfirmed)| (due, unconfirmed));
        queue.workers -= usize::from(first.is_none());
        first
    }

    /// Returns whether the caller must start one more worker, and counts it.
    fn wants_worker(&self) -> bool {
        let mut queue = lock(&self.0);
        let wants = queue.workers < RELEASE_WORKERS_MAX;
        queue.workers += usize::from(wants);
        wants
    }
}

/// Releases grants of one session.
#[derive(Clone)]
pub(super) struct Releaser {
    keeper: Arc<Keeper>,
    active: Arc<ActiveSession>,
}

impl Releaser {
    pub(super) fn new(keeper: Arc<Keeper>, active: Arc<ActiveSession>) -> Self {
        Self { keeper, active }
    }

    /// Releases an ended hold.
    pub(super) async fn release_hold(&self, hold: HoldCleanup, kind: ReleaseKind) {
        self.release(self.unsent(Released::Hold(hold), kind)).await;
    }

    /// Releases a grant that came too late; returns whether the store has confirmed that at once.
    pub(super) async fn release_late(&self, grant: Grant, entry: EntryCleanup) -> bool {
        self.release(self.unsent(Released::LateGrant(grant, entry), ReleaseKind::Remove)).await
    }

    /// Releases a grant that came too late and that may be pinned, as often as the others; returns whether the store
    /// has confirmed it. The caller waits for that: a new claim would wait behind the entry until the end of the pin.
    pub(super) async fn unpin_late(
        &self,
        grant: Grant,
        entry: EntryCleanup,
        pinned_until: BootInstant,
    ) -> bool {
        let late = Released::LateGrant(grant, entry);
        let mut release = self.unsent(late, ReleaseKind::Unpin { pinned_until });
        let mut pauses = retry_pauses();
        loop {
            if let Some(outcome) = self.try_release(&release).await {
                return release.finish(outcome);
            }
            release.counted.get_or_insert_with(|| Counted::retried_release(self.keeper.info.scheme));
            let left = release.until.since(self.keeper.clock.now());
            tokio::select! {
                () = tokio::time::sleep(pauses.next_pause().min(left)) => {}
                () = self.active.ended() => {}
            }
        }
    }

    /// Returns a release that is retried for at most one ttl; where holds have no lifetime, until it is confirmed.
    fn unsent(&self, of: Released, kind: ReleaseKind) -> Unconfirmed {
        let Self { keeper, active } = self;
        let ttl = keeper.clock.now().after(active.ttl());
        let until = match (keeper.info.lifetime, kind) {
            // Until then the entry stays by itself.
            (Lifetime::Hold, ReleaseKind::Unpin { pinned_until }) => ttl.max(pinned_until),
            (Lifetime::Session | Lifetime::Hold, _) => ttl,
            (Lifetime::Process, _) => BootInstant::NEVER,
        };
        let (scheme, grant) = (keeper.info.scheme, of.grant());
        let (lock, token) = (grant.name().as_ref(), grant.token().get());
        let span = contained(|| debug_span!("release", lock, scheme, token, claim = ?grant.claim()));
        let span = span.unwrap_or_else(Span::none);
        Unconfirmed { of, kind, until, pauses: None, span, counted: None }
    }

    /// Sends a release; if the store does not confirm it at once, workers retry it. Returns whether it is confirmed.
    async fn release(&self, mut release: Unconfirmed) -> bool {
        let Self { keeper, active } = self;
        if let Some(outcome) = self.try_release(&release).await {
            return release.finish(outcome);
        }
        release.counted = Some(Counted::retried_release(keeper.info.scheme));
        active.releases().push(release, keeper.clock.now());
        if active.releases().wants_worker() {
            keeper.runtime.spawn(keeper.claim_tasks.track_future(self.clone().retry_all()));
        }
        false
    }

    /// Runs one worker: retries the release that is due first, until none is left.
    async fn retry_all(self) {
        while let Some((due, release)) = self.active.releases().pop() {
            // A panic ends this retry only: the worker is counted until it finds the queue empty.
            let _ = caught("release", self.retry(due, release)).await;
        }
    }

    async fn retry(&self, due: Instant, release: Unconfirmed) {
        let Self { keeper, active } = self;
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            () = active.ended() => {}
        }
        match self.try_release(&release).await {
            Some(outcome) => {
                release.finish(outcome);
            }
            None => active.releases().push(release, keeper.clock.now()),
        }
    }

    /// Sends the release once; returns its outcome, or `None` if it must be retried.
    async fn try_release(&self, release: &Unconfirmed) -> Option<Result<()>> {
        self.send_release(release).instrument(release.span.clone()).await
    }

    async fn send_release(&self, release: &Unconfirmed) -> Option<Result<()>> {
        let Self { keeper, active } = self;
        let grant = release.of.grant();
        let name = grant.name();
        // The end of a session that carries the holds ends this one too, and a closing client ends its session. A pin
        // outlives both.
        let closing = keeper.info.lifetime == Lifetime::Session
            && keeper.closing.is_cancelled()
            && !matches!(release.kind, ReleaseKind::Unpin { .. });
        if active.has_ended() || (closing && release.hold().is_some_and(|hold| hold.loss().is_some())) {
            return Some(Err(session_ended(name)));
        }
        let session = active.session();
        let sent = match (release.kind, session.pins()) {
            (ReleaseKind::Leave, Some(pins)) => pins.leave(grant),
            _ => session.release(grant),
        };
        let released = caught("release", sent).await;
        let error = match released.unwrap_or_else(Err) {
            Ok(()) => return Some(Ok(())),
            // Of the session: the client may be open.
            Err(error) if error.kind() == ErrorKind::Closed => session_ended(name).with_source(error),
            Err(error) => error,
        };
        contained(|| debug!(error = format_args!("{error:#}"), "not released yet"));
        if keeper.clock.now() < release.until {
            if let Some(hold) = release.hold() {
                hold.release_failed(error);
            }
            return None;
        }
        let mut outcome = Error::new(error.kind(), "release").with_lock(name).with_source(error);
        if keeper.info.lifetime == Lifetime::Session {
            contained(|| {
                warn!(
                    lock = name.as_ref(),
                    scheme = keeper.info.scheme,
                    token = grant.token().get(),
                    claim = ?grant.claim(),
                    error = format_args!("{outcome:#}"),
                    "release given up"
                );
            });
            active.abandon(LossReason::ReleaseUnconfirmed);
            outcome =
                outcome.with_message("not confirmed for a ttl; the session was ended, which frees the lock");
        }
        Some(Err(outcome))
    }
}

fn session_ended(name: &LockName) -> Error {
    let error = Error::new(ErrorKind::Unavailable, "release").with_lock(name);
    error.with_message("the session ended before the store had confirmed it")
}

impl Released {
    fn grant(&self) -> &Grant {
        match self {
            Self::Hold(cleanup) => cleanup.hold().grant(),
            Self::LateGrant(grant, _) => grant,
        }
    }
}

impl Unconfirmed {
    fn hold(&self) -> Option<&Arc<Hold>> {
        match &self.of {
            Released::Hold(cleanup) => Some(cleanup.hold()),
            Released::LateGrant(..) => None,
        }
    }

    /// Ends the release; returns whether it is confirmed.
    fn finish(self, outcome: Result<()>) -> bool {
        let is_confirmed = outcome.is_ok();
        match self.of {
            Released::Hold(cleanup) => {
                cleanup.hold().finish(outcome);
                contained(|| self.span.in_scope(|| debug!("hold ended")));
            }
            Released::LateGrant(_, mut entry) => entry.done(),
        }
        is_confirmed
    }
}

impl fmt::Debug for RetryQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryQueue").field("due", &self.due.len()).field("workers", &self.workers).finish()
    }
}
