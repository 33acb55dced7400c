//! The life of one claim, from the first request to the confirmed release, as one task.

use std::{future::Future, sync::Arc};

use tokio::sync::OwnedSemaphorePermit;
use tracing::{Instrument, debug, debug_span, warn};

use super::{
    Keeper, LockRequest,
    attempt::Attempt,
    caught,
    cleanup::CleanupGuard,
    closed,
    deadline::deadline,
    hold::{End, Hold},
    session::Live,
};
use crate::{
    Error, ErrorKind, Result,
    backend::{Acquired, Claim, Grant, Lifetime, retry_pauses},
    limits::RETRY_PAUSE_MAX,
};

/// The life of the claims of one attempt, which wait in the queue or only try. What it owes is taken on before the
/// first poll: a task that is spawned on a runtime that has ended is dropped without one.
///
/// `place` is kept until the attempt is over, and not only as long as its caller waits: what callers have started and
/// left is bounded too.
pub(super) fn live(
    keeper: Arc<Keeper>,
    request: LockRequest,
    waits: bool,
    attempt: Arc<Attempt>,
    place: OwnedSemaphorePermit,
) -> impl Future<Output = ()> {
    let span = debug_span!("lock", name = ?request.name);
    let cleanup = CleanupGuard::new(keeper, &request, attempt);
    async move {
        let keeper = Arc::clone(&cleanup.keeper);
        let acquired = keeper.acquire_grant(&request, waits, &cleanup.attempt);
        let (live, grant) = match acquired.instrument(debug_span!("acquire")).await {
            Ok(Some(granted)) => granted,
            Ok(None) => return cleanup.settle_failure(Ok(None)),
            Err(error) => return cleanup.settle_failure(Err(error)),
        };
        let hold = cleanup.settle_grant(&live, grant, request.max_hold);
        drop(place);
        let grant = hold.grant().clone();
        let token = grant.token();
        keeper.keep_hold(&hold).instrument(debug_span!("hold", %token)).await;
        cleanup.forget_reentry();
        let expired = hold.loss().is_some() && keeper.clock.now() >= hold.deadline();
        if expired && keeper.info.lifetime == Lifetime::Session {
            live.abandon("a hold passed its deadline");
        }
        drop(hold);
        keeper.give_back(&live, grant, Some(cleanup)).instrument(debug_span!("release", %token)).await;
    }
    .instrument(span)
}

impl Keeper {
    /// Claims the lock in one session after another, until it is granted or nobody wants it any more: `None`, as for a
    /// try that the store answers with busy.
    async fn acquire_grant(
        self: &Arc<Self>,
        request: &LockRequest,
        waits: bool,
        attempt: &Arc<Attempt>,
    ) -> Result<Option<(Arc<Live>, Grant)>> {
        let mut pauses = retry_pauses();
        loop {
            let live = tokio::select! {
                biased;
                () = attempt.control().given_up() => return Ok(None),
                () = self.refusing.cancelled() => return Err(closed("acquire").with_lock(&request.name)),
                live = self.live_session() => live.ok_or_else(|| closed("acquire").with_lock(&request.name))?,
            };
            let claim = Claim::new(request.name.clone(), waits, self.metadata(), attempt.control());
            let span = debug_span!("claim", id = ?claim.id(), wait = waits);
            match self.claim(&live, claim, attempt).instrument(span).await {
                Ok(Acquired::Granted(grant)) if self.is_current(&live, &grant) => {
                    return Ok(Some((live, grant)));
                }
                Ok(Acquired::Granted(grant)) => {
                    warn!(token = %grant.token(), "granted too late; released");
                    // Not confirmed at once: then the next claim waits behind it meanwhile.
                    self.give_back(&live, grant, None).await;
                }
                _ if attempt.is_over() => return Ok(None),
                Ok(Acquired::GaveUp) if !waits => return Ok(None),
                Ok(Acquired::GaveUp) => {
                    return Err(Error::new(ErrorKind::Unexpected, "acquire")
                        .with_lock(&request.name)
                        .with_message("the backend gave up a claim that nobody had given up"));
                }
                Ok(Acquired::EntryGone) => debug!("the waiting entry vanished; claiming anew"),
                Err(error) if live.has_ended() && !is_final(error.kind()) => {
                    debug!(error = format_args!("{error:#}"), "the session ended while claiming")
                }
                Err(error) => return Err(error),
            }
            tokio::select! {
                () = tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)) => {}
                () = attempt.control().given_up() => return Ok(None),
                () = self.refusing.cancelled() => {}
            }
        }
    }

    /// Whether a grant may be handed out: not when its deadline has passed, or its session is over already.
    fn is_current(&self, live: &Live, grant: &Grant) -> bool {
        let over = live.has_ended() || self.refusing.is_cancelled();
        !over && self.clock.now() < deadline(grant.armed_at(), live.ttl())
    }

    /// Drives one claim to its end. A client that closes answers the callers at once and makes the claim give up; one
    /// whose withdrawal is not confirmed for a ttl costs its session, which would keep the entry alive.
    async fn claim(&self, live: &Live, claim: Claim, attempt: &Arc<Attempt>) -> Result<Acquired> {
        let name = claim.name().clone();
        let work = caught("acquire", live.session().acquire(claim));
        let mut acquire = std::pin::pin!(async {
            work.await.unwrap_or_else(|error| {
                // What it has left behind is unknown, and nobody else can withdraw it.
                live.abandon("the backend panicked");
                Err(error.with_lock(&name))
            })
        });
        tokio::select! {
            biased;
            acquired = &mut acquire => return acquired,
            () = attempt.control().given_up() => {}
            () = self.refusing.cancelled() => {
                attempt.end(Err(closed("acquire").with_lock(&name)));
            }
        }
        if self.info.lifetime == Lifetime::Session {
            tokio::select! {
                biased;
                acquired = &mut acquire => return acquired,
                () = tokio::time::sleep(live.ttl()) => live.abandon("a withdrawal was not confirmed for a ttl"),
            }
        }
        acquire.await
    }

    /// Stands by a hold until it has ended.
    async fn keep_hold(&self, hold: &Hold) {
        let granted = tokio::time::Instant::now();
        let end = loop {
            tokio::select! {
                biased;
                end = hold.ended() => break end,
                () = tokio::time::sleep(hold.next_look()) => {}
            }
        };
        crate::metrics::held(&self.info, granted.elapsed(), matches!(end, End::Lost));
        if let (End::Lost, Some(error)) = (end, hold.loss()) {
            warn!(token = %hold.grant().token(), error = format_args!("{error:#}"), "lock lost");
        }
    }
}

/// Whether a claim in another session would end the same way.
fn is_final(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Denied | ErrorKind::InvalidConfig | ErrorKind::Unexpected)
}
