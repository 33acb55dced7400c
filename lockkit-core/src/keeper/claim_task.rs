//! The task of one attempt, in the order of its steps: request, grant, hold.
//!
//! Failure cases:
//!
//! * All callers leave, at any step: the claim gives up, and is driven to its end; a grant that still comes is released,
//!   without a pin that would outlive it.
//! * The session ends while the claim waits, or the entry vanishes: a new claim follows after a pause.
//! * The grant comes after its deadline, after the end of its session, or while the client drains: it is released, and a
//!   new claim follows. A pinned entry would keep that claim waiting: it follows only when the release is confirmed.
//! * The grant or its pin comes late, but before the deadline: no heartbeat has renewed the hold, so one follows at once.
//!   With [`Lifetime::Session`], a hold that passes its deadline costs its session, and all other locks with it.
//! * The backend panics: the claim may have left an entry, so the session is abandoned; after any other panic too
//!   ([`EntryCleanup`]).
//! * The client closes, and the withdrawal is not confirmed for a ttl: the session is abandoned.

use std::sync::Arc;

use tokio::{sync::OwnedSemaphorePermit, time::Instant};
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{Instrument, Span, debug, debug_span, warn};

use super::{
    Keeper, LockRequest,
    active_session::ActiveSession,
    attempt::Attempt,
    caught,
    caught::contained,
    cleanup::{AttemptCleanup, EntryCleanup},
    closed,
    ending::{Ending, HoldSpans},
    hold::Hold,
    loss::LossReason,
    releases::Releaser,
};
use crate::{
    BootInstant, Error, ErrorKind, LockName, Result,
    backend::{Acquired, Claim, Grant, Lifetime, RetryPauses, retry_pauses},
    lease,
    limits::RETRY_PAUSE_MAX,
    metrics,
};

/// Acquires one lock for the callers of an attempt.
pub(super) struct ClaimTask {
    request: LockRequest,
    /// Whether the claims wait in the queue; false for a try.
    waits: bool,
    cleanup: AttemptCleanup,
    /// Kept until the attempt ends, even if its callers leave before: this also bounds the number of attempts that are
    /// being withdrawn.
    permit: OwnedSemaphorePermit,
    /// A draining client waits for it.
    token: TaskTrackerToken,
    /// The span of the caller, whose children are those of the attempt.
    caller: Span,
}

impl ClaimTask {
    pub(super) fn new(
        keeper: &Arc<Keeper>,
        request: &LockRequest,
        waits: bool,
        attempt: Arc<Attempt>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let cleanup = AttemptCleanup::new(Arc::clone(keeper), request, attempt);
        let (token, caller) = (keeper.claim_tasks.token(), Span::current());
        Self { request: request.clone(), waits, cleanup, permit, token, caller }
    }

    /// Runs the attempt until it has an outcome.
    pub(super) async fn run(self) {
        let (lock, scheme) = (self.request.name.as_ref(), self.keeper().info.scheme);
        let span = debug_span!(parent: &self.caller, "acquire", lock, scheme);
        match self.acquire_grant().instrument(span).await {
            Ok(Some(granted)) => self.settle_grant(granted),
            Ok(None) => self.cleanup.settle_failure(Ok(None)),
            Err(error) => self.cleanup.settle_failure(Err(error)),
        }
    }

    fn keeper(&self) -> &Arc<Keeper> {
        self.cleanup.keeper()
    }

    /// Requests the lock in one session after another until it is granted.
    ///
    /// Returns `None` if all callers have left, and for a try if the lock is busy.
    async fn acquire_grant(&self) -> Result<Option<Granted>> {
        let Self { request, waits, .. } = self;
        let (keeper, attempt) = (self.keeper(), self.cleanup.attempt());
        let mut pauses: Option<(RetryPauses, Instant)> = None;
        loop {
            let Some(active) = self.next_session().await? else { return Ok(None) };
            let name = request.name.clone();
            let claim = keeper.claims.claim(name, *waits, request.proposal.clone(), attempt.control());
            let span = debug_span!("claim", claim = ?claim.id(), wait = waits);
            let mut entry = EntryCleanup::new(keeper, &active);
            let acquired = self.request_claim(&active, claim).instrument(span).await;
            if !matches!(acquired, Ok(Acquired::Granted(_))) {
                entry.done();
            }
            if active.has_ended() {
                attempt.control().forget_contended();
            }
            match acquired {
                Ok(Acquired::Granted(grant)) => {
                    // Without callers it is released, and a pin would only outlive it.
                    let pinned = if attempt.is_over() { Ok(None) } else { self.pin(&active, &grant).await };
                    if let Ok(pinned_until) = pinned
                        && self.is_current(&active, &grant)
                    {
                        return Ok(Some(Granted { active, grant, entry, pinned_until }));
                    }
                    Box::pin(self.release_late(active, grant, entry, pinned)).await?;
                }
                _ if attempt.is_over() => return Ok(None),
                Ok(Acquired::GaveUp) if !waits => return Ok(None),
                Ok(Acquired::GaveUp) => {
                    return Err(Error::new(ErrorKind::Unexpected, "acquire")
                        .with_lock(&request.name)
                        .with_message("the backend gave up a claim that was still wanted"));
                }
                Ok(Acquired::EntryGone) => {
                    contained(|| debug!("the entry is gone, or in doubt; a new claim follows"));
                }
                Err(error) if active.has_ended() && !is_final(error.kind()) => {
                    contained(|| {
                        debug!(error = format_args!("{error:#}"), "the session ended while claiming")
                    });
                }
                Err(error) => return Err(error),
            }
            let (next, resumed) = pauses.get_or_insert_with(|| (retry_pauses(), Instant::now()));
            if resumed.elapsed() > RETRY_PAUSE_MAX {
                // The claim has waited: what ended it is not what ended those before.
                *next = retry_pauses();
            }
            Box::pin(self.pause(next)).await;
            *resumed = Instant::now();
        }
    }

    /// Waits for an open session; returns `None` if all callers have left.
    ///
    /// # Errors
    ///
    /// That the client refuses new claims, or will have no session.
    async fn next_session(&self) -> Result<Option<Arc<ActiveSession>>> {
        let (keeper, control) = (self.keeper(), self.cleanup.attempt().control());
        let not_open = || keeper.current.not_open("acquire").with_lock(&self.request.name);
        if control.has_given_up() {
            return Ok(None);
        }
        if keeper.refusing.is_cancelled() {
            return Err(not_open());
        }
        // Nearly always; nothing is subscribed to then.
        if let Some(active) = keeper.current.get() {
            return Ok(Some(active));
        }
        // In a box of its own, as everything that is rare: the task stays small.
        Box::pin(async {
            tokio::select! {
                biased;
                () = control.given_up() => Ok(None),
                () = keeper.refusing.cancelled() => Err(not_open()),
                active = keeper.current.wait_open() => active.map(Some).ok_or_else(not_open),
            }
        })
        .await
    }

    /// Waits for the pause before the next claim; returns early if all callers have left or the client refuses claims.
    async fn pause(&self, pauses: &mut RetryPauses) {
        tokio::select! {
            () = pauses.wait() => {}
            () = self.cleanup.attempt().control().given_up() => {}
            () = self.keeper().refusing.cancelled() => {}
        }
    }

    /// Drives one claim to completion.
    ///
    /// When the client closes, the callers get their result at once and the claim gives up. If the withdrawal is not
    /// confirmed for a ttl, the session is abandoned, because its renewals would keep the entry alive.
    async fn request_claim(&self, active: &ActiveSession, claim: Claim) -> Result<Acquired> {
        let (attempt, name) = (self.cleanup.attempt(), claim.name().clone());
        let work = caught("acquire", active.session().acquire(claim));
        let mut acquire = std::pin::pin!(async {
            work.await.unwrap_or_else(|error| {
                // The claim may have left an entry that only the end of the session removes.
                active.abandon(LossReason::BackendPanicked);
                Err(error.with_lock(&name))
            })
        });
        tokio::select! {
            biased;
            acquired = &mut acquire => return acquired,
            () = attempt.control().given_up() => {}
            () = self.keeper().refusing.cancelled() => {
                attempt.end(Err(closed("acquire").with_lock(&name)));
            }
        }
        if self.keeper().info.lifetime == Lifetime::Session {
            tokio::select! {
                biased;
                acquired = &mut acquire => return acquired,
                () = Box::pin(tokio::time::sleep(active.ttl())) => active.abandon(LossReason::WithdrawalUnconfirmed),
            }
        }
        acquire.await
    }

    /// Pins the grant if the request has a minimum time of the hold; returns until when its entry stays.
    ///
    /// # Errors
    ///
    /// `Lost` if the grant is not held any more.
    async fn pin(&self, active: &ActiveSession, grant: &Grant) -> Result<Option<BootInstant>> {
        let Some(at_least) = self.request.at_least else { return Ok(None) };
        let Some(pins) = active.session().pins() else {
            return Err(self.keeper().unsupported("pin").with_lock(grant.name()));
        };
        // Read before the request is sent: the entry stays at least until then.
        let until = self.keeper().clock.now().after(at_least);
        match caught("pin", pins.pin(grant, at_least)).await? {
            Ok(true) => Ok(Some(until)),
            Ok(false) => Err(Error::new(ErrorKind::Lost, "pin").with_lock(grant.name())),
            Err(error) => Err(error),
        }
    }

    /// Releases a grant that came too late, or that was not pinned although its request wants that.
    ///
    /// # Errors
    ///
    /// That a new claim would fail in the same way, or would wait behind the entry until the end of its pin.
    async fn release_late(
        &self,
        active: Arc<ActiveSession>,
        grant: Grant,
        entry: EntryCleanup,
        pinned: Result<Option<BootInstant>>,
    ) -> Result<()> {
        let (keeper, name) = (self.keeper(), &self.request.name);
        // Not if nobody wants it any more, or for want of its pin.
        if !self.cleanup.attempt().is_over() && !keeper.refusing.is_cancelled() && pinned.is_ok() {
            contained(|| {
                warn!(
                    lock = name.as_ref(),
                    scheme = keeper.info.scheme,
                    token = grant.token().get(),
                    claim = ?grant.claim(),
                    "granted too late; released"
                );
            });
        }
        let releaser = Releaser::new(Arc::clone(keeper), active);
        // After an error the store may have executed the pin.
        let may_be_pinned = !matches!(pinned, Ok(None));
        let is_removed = match self.request.at_least.filter(|_| may_be_pinned) {
            Some(at_least) => releaser.unpin_late(grant, entry, keeper.clock.now().after(at_least)).await,
            // If this is not confirmed at once, the next claim waits behind the late grant until it is.
            None => releaser.release_late(grant, entry).await,
        };
        match pinned {
            Err(error) if is_final(error.kind()) || error.kind() == ErrorKind::Unsupported => Err(error),
            // Its entry may stay until the end of the pin, and a new claim would wait behind it.
            Ok(Some(_)) if !is_removed => Err(lost_while_pinned(name)),
            Err(error) if !is_removed && error.kind() != ErrorKind::Lost => {
                Err(lost_while_pinned(name).with_source(error))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a grant may be returned to callers: its session is still in use and its deadline has not passed.
    fn is_current(&self, active: &ActiveSession, grant: &Grant) -> bool {
        let over = active.has_ended() || self.keeper().refusing.is_cancelled();
        !over && self.keeper().clock.now() < lease::deadline(grant.armed_at(), active.ttl())
    }

    /// Makes a hold of the grant, and shares it among the callers of the attempt.
    fn settle_grant(self, Granted { active, grant, mut entry, pinned_until }: Granted) {
        let Self { request, cleanup, permit, token, caller, .. } = self;
        let keeper = cleanup.keeper();
        let spans = HoldSpans::new(&caller, keeper.info.scheme, &grant);
        // Its panic must not leave the grant without a hold.
        contained(|| {
            HoldSpans::in_hold(spans.as_deref(), || debug!("granted"));
            if let Some(contended) = cleanup.attempt().control().contended_since()
                && !cleanup.attempt().is_over()
            {
                metrics::left_queue(keeper.info.scheme, contended);
            }
        });
        let (key, armed_at) = (cleanup.key().cloned(), grant.armed_at());
        let ending = Ending::new(keeper, Arc::clone(&active), key, pinned_until, token, spans);
        let hold = Hold::new(grant, active.ttl(), request.max_hold, keeper.clock.clone());
        // The heartbeats that were sent before do not carry it. If fewer than two intervals are left of its lifetime, the
        // next one may be too late. Where heartbeats are many, an age of several intervals is nothing special.
        let heartbeat = keeper.info.heartbeat.interval(active.ttl());
        let late = heartbeat.max(active.ttl().saturating_sub(heartbeat.saturating_mul(2)));
        let is_late = keeper.info.lifetime != Lifetime::Process && keeper.clock.now().since(armed_at) > late;
        // From here to its arming nothing may panic: it would be renewed for ever.
        keeper.holds.add(&hold);
        if is_late {
            active.request_heartbeat();
        }
        // Checked after the insert: a session that ended before the insert did not mark this hold lost.
        if active.has_ended() || keeper.closing.is_cancelled() {
            hold.lose(active.end_reason().unwrap_or(LossReason::ClientClosed));
        }
        // The table is updated before callers are woken: a call of the owner in between enters the hold.
        let settled = cleanup.settle_grant(&hold);
        // After the table was updated, from which the end removes the hold; before callers are woken, who may end it.
        hold.arm(ending);
        entry.done();
        settled.announce();
        drop(permit);
    }
}

/// A grant in its session.
struct Granted {
    active: Arc<ActiveSession>,
    grant: Grant,
    /// Done when the grant has a hold.
    entry: EntryCleanup,
    /// Until when a pin keeps its entry.
    pinned_until: Option<BootInstant>,
}

/// Returns the error for a grant that was lost while it was pinned.
fn lost_while_pinned(name: &LockName) -> Error {
    Error::new(ErrorKind::Lost, "acquire").with_lock(name).with_message(
        "the session ended while the grant was pinned; its entry may stay until the end of the pin",
    )
}

/// Returns whether a claim in another session would fail in the same way.
fn is_final(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Denied | ErrorKind::InvalidConfig | ErrorKind::Unexpected)
}
