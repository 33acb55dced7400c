//! The life of one claim, from the first request to the confirmed release, as one task.

use std::{
    future::Future,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::sync::OwnedSemaphorePermit;
use tracing::{Instrument, debug, debug_span, warn};

use super::{
    Keeper, Wanted,
    attempt::{Answer, Attempt},
    caught, closed,
    deadline::deadline,
    hold::{End, Hold},
    reentry::Key,
    session::Live,
};
use crate::{
    BootInstant, Error, ErrorKind, Result,
    backend::{Acquired, Claim, Grant, Lifetime, retry_pauses},
    limits::{RELEASE_ANSWER_MAX, RETRY_PAUSE_MAX},
    sync::lock,
};

/// The life of the claims of one attempt. What it owes is taken on before the first poll: a task that is spawned on a
/// runtime that has ended is dropped without one.
///
/// `place` is kept until the attempt is over, and not only as long as its caller waits: what callers have started and
/// left is bounded too.
pub(super) fn live(
    keeper: Arc<Keeper>,
    wanted: Wanted,
    attempt: Arc<Attempt>,
    place: Option<OwnedSemaphorePermit>,
) -> impl Future<Output = ()> {
    let span = debug_span!("lock", name = ?wanted.name);
    let owed = Owed::new(keeper, &wanted, attempt);
    async move {
        let Owed { keeper, attempt, .. } = &owed;
        let acquired = tokio::select! {
            biased;
            acquired = keeper.acquire_grant(&wanted, attempt).instrument(debug_span!("acquire")) => acquired,
            never = attempt.answer_deadlines() => match never {},
        };
        let Some((live, grant)) = owed.settle_failure(acquired) else { return };
        let hold = owed.settle_grant(&live, grant, wanted.max_hold);
        drop(place);
        let token = hold.grant().token();
        keeper.keep_hold(&live, &hold).instrument(debug_span!("hold", %token)).await;
        owed.forget_reentry(&hold);
        keeper.give_back(&live, &hold).instrument(debug_span!("release", %token)).await;
    }
    .instrument(span)
}

impl Keeper {
    /// Claims the lock in one session after another, until it is granted or nobody wants it any more.
    async fn acquire_grant(&self, wanted: &Wanted, attempt: &Attempt) -> Result<Option<(Arc<Live>, Grant)>> {
        let mut pauses = retry_pauses();
        loop {
            let live = tokio::select! {
                biased;
                () = attempt.given_up() => return Ok(None),
                () = self.closing.cancelled() => return Err(closed("acquire").with_lock(&wanted.name)),
                live = self.live_session() => live.ok_or_else(|| closed("acquire").with_lock(&wanted.name))?,
            };
            let claim = Claim::new(wanted.name.clone(), attempt.queues(), self.metadata(), attempt.control());
            let queued = claim.wait();
            let span = debug_span!("claim", id = ?claim.id(), wait = queued);
            let acquired = self.claim(&live, claim, attempt).instrument(span).await;
            if attempt.is_over() && !matches!(acquired, Ok(Acquired::Granted(_))) {
                return Ok(None);
            }
            match acquired {
                Ok(Acquired::Granted(grant)) if self.is_current(&live, &grant) => {
                    return Ok(Some((live, grant)));
                }
                Ok(Acquired::Granted(grant)) => {
                    warn!(token = %grant.token(), "granted too late; released");
                    // Not confirmed: then the session ends it, and the next claim waits behind it meanwhile.
                    let _ = self.release_until_done(&live, &grant, None).await;
                }
                Ok(Acquired::GaveUp) if attempt.control().has_given_up() => return Ok(None),
                Ok(Acquired::GaveUp) if !queued => {
                    attempt.answer_tries();
                    if attempt.control().has_given_up() {
                        return Ok(None);
                    }
                    // Somebody who waits has joined a try.
                    continue;
                }
                Ok(Acquired::GaveUp) => {
                    return Err(Error::new(ErrorKind::Unexpected, "acquire")
                        .with_lock(&wanted.name)
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
                () = attempt.given_up() => return Ok(None),
                () = self.closing.cancelled() => {}
            }
        }
    }

    /// Whether a grant may be handed out: not when its deadline has passed, or its session is over already.
    fn is_current(&self, live: &Live, grant: &Grant) -> bool {
        let over = live.has_ended() || self.closing.is_cancelled();
        !over && self.clock.now() < deadline(grant.armed_at(), live.ttl())
    }

    /// Drives one claim to its end; a client that closes answers the callers at once and makes it give up.
    async fn claim(&self, live: &Live, claim: Claim, attempt: &Attempt) -> Result<Acquired> {
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
            () = self.closing.cancelled() => attempt.end(|| Err(closed("acquire").with_lock(&name))),
        }
        acquire.await
    }

    /// Stands by a hold until it has ended.
    async fn keep_hold(&self, live: &Live, hold: &Hold) {
        let granted = tokio::time::Instant::now();
        // Never longer than a beat: timers stop while the machine is suspended, the clock does not.
        let look_every = self.info.beat.interval(live.ttl());
        let end = loop {
            let next_look = hold.remaining().min(look_every);
            tokio::select! {
                biased;
                end = hold.ended() => break end,
                () = tokio::time::sleep(next_look) => {}
            }
        };
        crate::metrics::held(&self.info, granted.elapsed(), matches!(end, End::Lost));
        if let (End::Lost, Some(error)) = (end, hold.loss()) {
            warn!(token = %hold.grant().token(), error = format_args!("{error:#}"), "lock lost");
        }
    }

    /// Gives the entry of an ended hold back.
    async fn give_back(&self, live: &Live, hold: &Hold) {
        let expired = hold.loss().is_some() && self.clock.now() >= hold.deadline();
        if expired && self.info.lifetime == Lifetime::Session {
            live.abandon("a hold passed its deadline");
        }
        let outcome = self.release_until_done(live, hold.grant(), Some(hold)).await;
        hold.finish(outcome);
        debug!(token = %hold.grant().token(), "hold ended");
    }

    /// Releases as long as the session lives, and where holds have a lifetime of their own no longer than one ttl.
    /// The hold's guard is answered in time, whatever goes on here.
    async fn release_until_done(&self, live: &Live, grant: &Grant, hold: Option<&Hold>) -> Result<()> {
        let unconfirmed = || {
            Error::new(ErrorKind::Unavailable, "release")
                .with_lock(grant.name())
                .with_message("the store did not confirm the release")
        };
        let answer_at = tokio::time::Instant::now() + RELEASE_ANSWER_MAX;
        let own_end = match self.info.lifetime {
            Lifetime::Hold => self.clock.now().after(live.ttl()),
            Lifetime::Session | Lifetime::Process => BootInstant::NEVER,
        };
        let work = async {
            let mut pauses = retry_pauses();
            loop {
                // Where the session carries the holds, its end ends this one, and the client that closes ends it.
                let session_does_it = self.info.lifetime == Lifetime::Session && self.closing.is_cancelled();
                if live.has_ended() || (session_does_it && hold.is_some_and(|hold| hold.loss().is_some())) {
                    return Err(unconfirmed().with_message("the session ended first"));
                }
                let released = caught("release", live.session().release(grant));
                let error = match released.await.unwrap_or_else(Err) {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                };
                debug!(error = format_args!("{error:#}"), "not released yet");
                if self.clock.now() >= own_end {
                    return Err(error);
                }
                tokio::select! {
                    () = tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)) => {}
                    () = live.ended() => {}
                }
            }
        };
        tokio::pin!(work);
        tokio::select! {
            biased;
            outcome = &mut work => return outcome,
            () = tokio::time::sleep_until(answer_at) => {
                if let Some(hold) = hold {
                    hold.finish(Err(unconfirmed()));
                }
            }
        }
        work.await
    }
}

/// Whether a claim in another session would end the same way.
fn is_final(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Denied | ErrorKind::InvalidConfig | ErrorKind::Unexpected)
}

/// What a life task owes to others: an answer to its callers, an outcome to its guards, its places in the tables.
///
/// Paid on the way; what is still owed when the task's future is dropped, because the runtime ended, is paid by
/// `Drop`, so that nobody waits for a task that is no more.
struct Owed {
    keeper: Arc<Keeper>,
    key: Option<Key>,
    attempt: Arc<Attempt>,
    hold: OnceLock<Arc<Hold>>,
}

impl Owed {
    fn new(keeper: Arc<Keeper>, wanted: &Wanted, attempt: Arc<Attempt>) -> Self {
        let key = wanted.owner.clone().map(|owner| (wanted.name.clone(), owner));
        Self { keeper, key, attempt, hold: OnceLock::new() }
    }

    fn settle_failure(&self, acquired: Result<Option<(Arc<Live>, Grant)>>) -> Option<(Arc<Live>, Grant)> {
        let answer = || -> Answer {
            match &acquired {
                Ok(_) => Ok(None),
                Err(error) => Err(error.clone()),
            }
        };
        if !matches!(acquired, Ok(Some(_))) {
            self.forget_attempt();
            self.attempt.end(answer);
        }
        acquired.ok().flatten()
    }

    fn settle_grant(&self, live: &Live, grant: Grant, max_hold: Option<Duration>) -> Arc<Hold> {
        let keeper = &self.keeper;
        debug!(token = %grant.token(), claim = ?grant.claim(), "granted");
        let entered = Hold::enter_first(grant, live.ttl(), max_hold, keeper.clock.clone());
        let hold = Arc::clone(entered.hold());
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
        // With this share the hold ends when nobody took one: every caller has left. It goes before they are told, or the
        // release of one who is quick would not be the last, and answered before the store has confirmed it.
        let share = move || Ok(Some(entered.share()));
        // First the table, then the answers: whoever comes in between enters the hold.
        let answers = match &self.key {
            Some(key) => keeper.reentry.granted(key, &self.attempt, &hold, share),
            None => self.attempt.settle(share),
        };
        answers.send();
        hold
    }

    fn forget_reentry(&self, hold: &Arc<Hold>) {
        if let Some(key) = &self.key {
            self.keeper.reentry.ended(key, hold);
        }
    }

    fn forget_attempt(&self) {
        if let Some(key) = &self.key {
            self.keeper.reentry.failed(key, &self.attempt);
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.forget_attempt();
        self.attempt.end(|| Err(closed("acquire")));
        if let Some(hold) = self.hold.get() {
            self.forget_reentry(hold);
            hold.lose("the runtime ended");
            hold.finish(Err(closed("release").with_lock(hold.grant().name())));
            lock(&self.keeper.holds).remove(&hold.grant().claim());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        sync::{
            Weak,
            atomic::{AtomicBool, Ordering},
        },
        task::{Context, Wake, Waker},
    };

    use super::*;
    use crate::{LockName, keeper::attempt::Patience};

    /// Notes, when a caller is woken, whether the share that stayed behind is gone.
    struct AtWake {
        share: Weak<()>,
        was_gone: AtomicBool,
    }

    impl Wake for AtWake {
        fn wake(self: Arc<Self>) {
            self.was_gone.store(self.share.strong_count() == 0, Ordering::SeqCst);
        }
    }

    #[test]
    fn the_share_that_answers_are_made_of_is_gone_before_a_caller_hears() {
        let (attempt, mut ticket) = Attempt::begin(LockName::new("a").unwrap(), Patience::Unlimited);
        let share = Arc::new(());
        let seen = Arc::new(AtWake { share: Arc::downgrade(&share), was_gone: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&seen));
        assert!(Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker)).is_pending());
        attempt.end(move || {
            let _made_of = &share;
            Ok(None)
        });
        assert!(seen.was_gone.load(Ordering::SeqCst));
    }
}
