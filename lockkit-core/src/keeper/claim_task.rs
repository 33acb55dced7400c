//! The task of one attempt, in the order of its steps: request, grant, hold, release.

use std::{future::Future, sync::Arc};

use tokio::sync::OwnedSemaphorePermit;
use tracing::{Instrument, debug, debug_span, warn};

use super::{
    Keeper, LockRequest,
    active_session::ActiveSession,
    attempt::Attempt,
    caught,
    cleanup::CleanupGuard,
    closed,
    hold::{Hold, HoldEnd},
    loss::LossReason,
    releases::{ReleaseKind, Releaser},
};
use crate::{
    BootInstant, Error, ErrorKind, LockName, Result,
    backend::{Acquired, Claim, Grant, Lifetime, retry_pauses},
    lease,
    metrics::{self, Counted, Moment},
    sync::lock,
};

/// Acquires, holds and releases one lock for the callers of an attempt.
pub(super) struct ClaimTask {
    keeper: Arc<Keeper>,
    request: LockRequest,
    /// Whether the claims wait in the queue; false for a try.
    waits: bool,
    attempt: Arc<Attempt>,
}

impl ClaimTask {
    /// Returns the task of this attempt.
    ///
    /// The cleanup guard is created before the first poll, because a task that is spawned after the end of its runtime
    /// is dropped without one.
    ///
    /// The task keeps `permit` until the attempt ends, even if its callers leave before: this also bounds the number of
    /// attempts that are being withdrawn.
    pub(super) fn run(
        keeper: Arc<Keeper>,
        request: LockRequest,
        waits: bool,
        attempt: Arc<Attempt>,
        permit: OwnedSemaphorePermit,
    ) -> impl Future<Output = ()> {
        let cleanup = CleanupGuard::new(Arc::clone(&keeper), &request, Arc::clone(&attempt));
        let task = Self { keeper, request, waits, attempt };
        async move {
            let (acquired, scheme) = (task.acquire_grant(), task.keeper.info.scheme);
            let span = debug_span!("acquire", lock = task.request.name.as_ref(), scheme);
            let Granted { active, grant, pinned_until } = match acquired.instrument(span).await {
                Ok(Some(granted)) => granted,
                Ok(None) => return cleanup.settle_failure(Ok(None)),
                Err(error) => return cleanup.settle_failure(Err(error)),
            };
            let (lock, token) = (grant.name().as_ref(), grant.token().get());
            let span = debug_span!("hold", lock, scheme, token, claim = ?grant.claim());
            let hold = span.in_scope(|| task.settle_grant(&cleanup, &active, grant));
            drop(permit);
            let grant = hold.grant().clone();
            task.keep_hold(&hold).instrument(span).await;
            cleanup.forget_hold();
            task.abandon_if_expired(&active, &hold);
            let kind = match pinned_until.filter(|until| task.keeper.clock.now() < *until) {
                Some(_) if hold.was_used() => ReleaseKind::Leave,
                Some(pinned_until) => ReleaseKind::Unpin { pinned_until },
                None => ReleaseKind::Remove,
            };
            drop(hold);
            let releaser = Releaser::new(task.keeper, active);
            releaser.release(grant, kind, Some(cleanup)).await;
        }
        // The spans of the task are children of the caller's.
        .in_current_span()
    }

    /// Requests the lock in one session after another until it is granted.
    ///
    /// Returns `None` if all callers have left, and for a try if the lock is busy.
    async fn acquire_grant(&self) -> Result<Option<Granted>> {
        let Self { keeper, request, waits, attempt } = self;
        let mut pauses = retry_pauses();
        loop {
            let active = tokio::select! {
                biased;
                () = attempt.control().given_up() => return Ok(None),
                () = keeper.refusing.cancelled() => return Err(keeper.not_open("acquire").with_lock(&request.name)),
                active = keeper.active_session() => active.ok_or_else(|| keeper.not_open("acquire").with_lock(&request.name))?,
            };
            let metadata = keeper.metadata(request.proposal.clone());
            let claim = Claim::new(request.name.clone(), *waits, metadata, attempt.control());
            let span = debug_span!("claim", claim = ?claim.id(), wait = waits);
            match self.request_claim(&active, claim).instrument(span).await {
                Ok(Acquired::Granted(grant)) => {
                    let pinned = self.pin(&active, &grant).await;
                    if let Ok(pinned_until) = pinned
                        && self.is_current(&active, &grant)
                    {
                        return Ok(Some(Granted { active, grant, pinned_until }));
                    }
                    let has_ended = active.has_ended();
                    warn!(
                        lock = grant.name().as_ref(),
                        scheme = keeper.info.scheme,
                        token = grant.token().get(),
                        claim = ?grant.claim(),
                        "granted too late; released"
                    );
                    // If this is not confirmed at once, the next claim waits behind the late grant until it is.
                    let kind = self.request.at_least.map_or(ReleaseKind::Remove, |at_least| {
                        ReleaseKind::Unpin { pinned_until: keeper.clock.now().after(at_least) }
                    });
                    Releaser::new(Arc::clone(keeper), active).release(grant, kind, None).await;
                    match pinned {
                        // The session could not remove the entry any more, and a new claim would wait behind it.
                        Ok(Some(_)) if has_ended => return Err(pinned_in_vain(&request.name)),
                        Err(error)
                            if has_ended && error.kind() != ErrorKind::Lost && !is_final(error.kind()) =>
                        {
                            return Err(pinned_in_vain(&request.name).with_source(error));
                        }
                        Err(error) if is_final(error.kind()) => return Err(error),
                        _ => {}
                    }
                }
                _ if attempt.is_over() => return Ok(None),
                Ok(Acquired::GaveUp) if !waits => return Ok(None),
                Ok(Acquired::GaveUp) => {
                    return Err(Error::new(ErrorKind::Unexpected, "acquire")
                        .with_lock(&request.name)
                        .with_message("the backend gave up a claim that was still wanted"));
                }
                Ok(Acquired::EntryGone) => debug!("the waiting entry vanished; a new claim follows"),
                Err(error) if active.has_ended() && !is_final(error.kind()) => {
                    debug!(error = format_args!("{error:#}"), "the session ended while claiming")
                }
                Err(error) => return Err(error),
            }
            tokio::select! {
                () = pauses.wait() => {}
                () = attempt.control().given_up() => return Ok(None),
                () = keeper.refusing.cancelled() => {}
            }
        }
    }

    /// Drives one claim to completion.
    ///
    /// When the client closes, the callers get their result at once and the claim gives up. If the withdrawal is not
    /// confirmed for a ttl, the session is abandoned, because its renewals would keep the entry alive.
    async fn request_claim(&self, active: &ActiveSession, claim: Claim) -> Result<Acquired> {
        let (attempt, name) = (&self.attempt, claim.name().clone());
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
            () = self.keeper.refusing.cancelled() => {
                attempt.end(Err(closed("acquire").with_lock(&name)));
            }
        }
        if self.keeper.info.lifetime == Lifetime::Session {
            tokio::select! {
                biased;
                acquired = &mut acquire => return acquired,
                () = tokio::time::sleep(active.ttl()) => active.abandon(LossReason::WithdrawalUnconfirmed),
            }
        }
        acquire.await
    }

    /// Pins a grant whose hold shall last at least so long; returns until when it stays.
    ///
    /// # Errors
    ///
    /// `Lost` if the grant is not held any more.
    async fn pin(&self, active: &ActiveSession, grant: &Grant) -> Result<Option<BootInstant>> {
        let Some(at_least) = self.request.at_least else { return Ok(None) };
        let Some(pins) = active.session().pins() else {
            return Err(self.keeper.unsupported("pin").with_lock(grant.name()));
        };
        // Read before the request is sent: the entry stays at least until then.
        let until = self.keeper.clock.now().after(at_least);
        match caught("pin", pins.pin(grant, at_least)).await? {
            Ok(true) => Ok(Some(until)),
            Ok(false) => Err(Error::new(ErrorKind::Lost, "pin").with_lock(grant.name())),
            Err(error) => Err(error),
        }
    }

    /// Returns whether a grant may be returned to callers: its session is still in use and its deadline has not passed.
    fn is_current(&self, active: &ActiveSession, grant: &Grant) -> bool {
        let over = active.has_ended() || self.keeper.refusing.is_cancelled();
        !over && self.keeper.clock.now() < lease::deadline(grant.armed_at(), active.ttl())
    }

    /// Makes a hold of the grant, and shares it among the callers of the attempt.
    fn settle_grant(&self, cleanup: &CleanupGuard, active: &ActiveSession, grant: Grant) -> Arc<Hold> {
        let keeper = &self.keeper;
        debug!("granted");
        if let Some(contended) = self.attempt.control().contended_since()
            && !self.attempt.is_over()
        {
            metrics::left_queue(keeper.info.scheme, contended);
        }
        let hold = Hold::new(grant, active.ttl(), self.request.max_hold, keeper.clock.clone());
        cleanup.set_hold(&hold);
        lock(&keeper.holds).insert(hold.grant().claim(), Arc::clone(&hold));
        // A grant that arrives more than a heartbeat interval after its request could expire before the next heartbeat.
        let heartbeat = keeper.info.heartbeat.interval(active.ttl());
        if keeper.info.lifetime == Lifetime::Hold
            && keeper.clock.now().since(hold.grant().armed_at()) > heartbeat
        {
            active.request_heartbeat();
        }
        // Checked after the insert: a session that ended before the insert did not mark this hold lost.
        if active.has_ended() || keeper.closing.is_cancelled() {
            hold.lose(active.end_reason().unwrap_or(LossReason::ClientClosed));
        }
        // The table is updated before callers are woken: a call of the owner in between enters the hold.
        cleanup.settle_grant(&hold).announce();
        hold
    }

    /// Waits until the hold has ended.
    async fn keep_hold(&self, hold: &Hold) {
        let _report = EndReport::new(hold, self.keeper.info.scheme);
        loop {
            tokio::select! {
                biased;
                _ = hold.ended() => break,
                () = tokio::time::sleep(hold.next_clock_check()) => {}
            }
        }
    }

    /// Abandons the session of a hold that passed its deadline, because renewals would keep the hold's entry alive.
    fn abandon_if_expired(&self, active: &ActiveSession, hold: &Hold) {
        let expired = hold.loss().is_some() && self.keeper.clock.now() >= hold.deadline();
        if expired && self.keeper.info.lifetime == Lifetime::Session {
            active.abandon(LossReason::HoldExpired);
        }
    }
}

/// A grant in its session.
struct Granted {
    active: Arc<ActiveSession>,
    grant: Grant,
    /// Until when a pin keeps its entry.
    pinned_until: Option<BootInstant>,
}

/// Reports the end of a hold when it is dropped: after the end, or because the runtime drops the task.
struct EndReport<'a> {
    hold: &'a Hold,
    scheme: &'static str,
    granted: Moment,
    _counted: Counted,
}

impl<'a> EndReport<'a> {
    fn new(hold: &'a Hold, scheme: &'static str) -> Self {
        Self { hold, scheme, granted: Moment::now(), _counted: Counted::hold(scheme) }
    }
}

impl Drop for EndReport<'_> {
    fn drop(&mut self) {
        let Self { hold, scheme, .. } = *self;
        // No effect after the end: then the task goes on.
        hold.lose(LossReason::RuntimeEnded);
        let loss = match hold.end() {
            Some(HoldEnd::Lost(reason)) => Some(reason),
            Some(HoldEnd::Released) | None => None,
        };
        metrics::hold_ended(scheme, self.granted, loss);
        if let Some(reason) = loss {
            let grant = hold.grant();
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
}

/// The error for a grant that was lost while it was pinned.
fn pinned_in_vain(name: &LockName) -> Error {
    Error::new(ErrorKind::Lost, "acquire").with_lock(name).with_message(
        "the session ended while the grant was pinned; its entry may stay until the end of the pin",
    )
}

/// Returns whether a claim in another session would fail in the same way.
fn is_final(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Denied | ErrorKind::InvalidConfig | ErrorKind::Unexpected)
}
