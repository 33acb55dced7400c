//! The outcome of a claim at a broken backend.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use lockkit_core::{
    BootInstant, Error, ErrorKind, FencingToken, LockName, Result,
    backend::{Acquired, Claim, Grant},
};
use tokio::{
    task::yield_now,
    time::{Instant, sleep, timeout},
};

use super::{Defect, wrapper::BrokenSession};

/// Longer than a request takes on a paused clock.
const NO_ANSWER: Duration = Duration::from_millis(200);

/// The ttls that [`Defect::LifetimeTooLong`] adds to a lifetime.
pub(super) const ADDED_TTLS: u32 = 10;

impl BrokenSession {
    pub(super) async fn broken_acquire(&self, claim: Claim) -> Result<Acquired> {
        match self.defect {
            Defect::DoubleGrant => Ok(self.invented(&claim)),
            Defect::OrphanOnCancel => self.orphan_on_cancel(claim).await,
            Defect::OrphanOnTry if !claim.wait() => self.orphan_on_try(claim).await,
            Defect::LeftWatch if claim.wait() => {
                self.shared.state().left_watches.push(claim.name().clone());
                self.inner.acquire(claim).await
            }
            Defect::SlowWakeUp | Defect::LostWakeUp => self.wake_up_late(claim).await,
            Defect::RechecksInStep if claim.wait() => self.recheck_in_step(claim).await,
            Defect::FalseFifo => self.serve_the_youngest(claim).await,
            Defect::SentBack if claim.wait() => self.sent_back(claim).await,
            Defect::LossyNames => self.under_a_cut_name(claim).await,
            Defect::NoRetry => self.without_retry(claim).await,
            Defect::WallClockInStore => {
                let reading = Duration::from_millis(claim.metadata().since_ms);
                self.by_clock_in_store(claim, reading).await
            }
            Defect::BootClockInStore => {
                let reading = self.clock.now().since(BootInstant::from_start(Duration::ZERO));
                self.by_clock_in_store(claim, reading).await
            }
            Defect::FailureAsBusy if !claim.wait() => {
                // On a timeout the claim is dropped; it was only a try.
                timeout(NO_ANSWER, self.inner.acquire(claim)).await.unwrap_or(Ok(Acquired::GaveUp))
            }
            Defect::FailureAsBusy => {
                let mut acquiring = pin!(self.inner.acquire(claim.clone()));
                match timeout(NO_ANSWER, &mut acquiring).await {
                    Ok(acquired) => acquired,
                    Err(_) => {
                        claim.note_contended();
                        acquiring.await
                    }
                }
            }
            Defect::OneFirstClaim => {
                let Ok(mut is_done) = self.first_claim.try_lock() else {
                    return Err(Error::new(ErrorKind::Unavailable, "acquire"));
                };
                if !std::mem::replace(&mut *is_done, true) {
                    yield_now().await;
                }
                drop(is_done);
                self.inner.acquire(claim).await
            }
            Defect::ClaimsOutliveClose => match self.inner.acquire(claim).await {
                Err(error) if error.kind() == ErrorKind::Closed => std::future::pending().await,
                Ok(Acquired::EntryGone) => std::future::pending().await,
                answer => answer,
            },
            _ => {
                let acquired = self.inner.acquire(claim.clone()).await?;
                self.changed(&claim, acquired)
            }
        }
    }

    fn changed(&self, claim: &Claim, acquired: Acquired) -> Result<Acquired> {
        let with_token = |grant: &Grant, token: u64| {
            Acquired::Granted(Grant::new(claim, FencingToken::new(token), grant.armed_at()))
        };
        Ok(match (self.defect, acquired) {
            (Defect::EqualToken, Acquired::Granted(grant)) => with_token(&grant, 7),
            (Defect::FallingToken, Acquired::Granted(grant)) => {
                with_token(&grant, u64::from(u32::MAX) - grant.token().get())
            }
            (Defect::LifetimeFromReply, Acquired::Granted(grant)) => {
                Acquired::Granted(Grant::new(claim, grant.token(), self.clock.now()))
            }
            (Defect::LifetimeTooLong, Acquired::Granted(grant)) => {
                let armed_at = grant.armed_at().after(self.ttl * ADDED_TTLS);
                Acquired::Granted(Grant::new(claim, grant.token(), armed_at))
            }
            (Defect::TokensStartAgain, Acquired::Granted(grant)) => {
                Acquired::Granted(Grant::new(claim, self.next_token(), grant.armed_at()))
            }
            (Defect::LeakyGiveUp, Acquired::Granted(_)) if claim.has_given_up() => Acquired::GaveUp,
            (Defect::GrantWithoutEntry, Acquired::EntryGone) => self.invented(claim),
            (Defect::BusyAsFailure, Acquired::GaveUp) if !claim.has_given_up() => {
                return Err(Error::new(ErrorKind::Unavailable, "acquire"));
            }
            (_, acquired) => acquired,
        })
    }

    /// Returns the outcome of a claim that the store cannot or must not grant.
    pub(super) async fn refused(&self, claim: &Claim) -> Option<Result<Acquired>> {
        let is_forbidden = self.forbidden.as_ref() == Some(claim.name());
        let kind = match (is_forbidden, self.shared.state().is_full) {
            (true, _) => ErrorKind::Denied,
            (false, true) => ErrorKind::Unavailable,
            (false, false) => return None,
        };
        match (kind, self.defect) {
            (ErrorKind::Denied, Defect::DenialAsBusy) | (ErrorKind::Unavailable, Defect::FullStoreAsBusy) => {
                claim.note_contended();
                if claim.wait() {
                    claim.give_up().await;
                }
                Some(Ok(Acquired::GaveUp))
            }
            _ => Some(Err(Error::new(kind, "acquire").with_lock(claim.name()))),
        }
    }

    async fn by_clock_in_store(&self, claim: Claim, reading: Duration) -> Result<Acquired> {
        let name = claim.name().clone();
        let until = self.shared.state().held_until.get(&name).copied();
        let acquired = match until {
            Some(until) if until < reading => self.invented(&claim),
            _ => self.inner.acquire(claim).await?,
        };
        if matches!(acquired, Acquired::Granted(_)) {
            self.shared.state().held_until.insert(name, reading + self.ttl);
        }
        Ok(acquired)
    }

    async fn orphan_on_cancel(&self, claim: Claim) -> Result<Acquired> {
        self.contended(&claim).await;
        let (uncancelled, _) = self.detached(&claim, claim.name().clone(), claim.wait());
        let inner = Arc::clone(&self.inner);
        let acquiring = tokio::spawn(async move { inner.acquire(uncancelled).await });
        tokio::select! {
            biased;
            acquired = acquiring => acquired.unwrap_or(Ok(Acquired::EntryGone)),
            () = claim.give_up() => Ok(Acquired::GaveUp),
        }
    }

    async fn orphan_on_try(&self, claim: Claim) -> Result<Acquired> {
        let (queues, _) = self.detached(&claim, claim.name().clone(), true);
        let acquired = self.inner.acquire(claim).await?;
        if matches!(acquired, Acquired::GaveUp) {
            let inner = Arc::clone(&self.inner);
            let mut orphan = Box::pin(async move { inner.acquire(queues).await });
            // It is in the queue before the caller goes on.
            if poll_fn(|context| Poll::Ready(orphan.as_mut().poll(context))).await.is_pending() {
                tokio::spawn(orphan);
            }
        }
        Ok(acquired)
    }

    async fn wake_up_late(&self, claim: Claim) -> Result<Acquired> {
        let contended = self.contended(&claim).await;
        let acquired = self.inner.acquire(claim.clone()).await?;
        let Acquired::Granted(grant) = &acquired else { return Ok(acquired) };
        if !contended {
            return Ok(acquired);
        }
        let released = self.shared.state().released.get(claim.name()).copied();
        // A notification arrives at once, so a later grant came from a re-check.
        let notified = released.is_some_and(|at| Instant::now() - at < NO_ANSWER);
        match self.defect {
            Defect::SlowWakeUp => sleep(self.ttl / 10).await,
            _ if notified => {}
            _ => {
                claim.give_up().await;
                self.inner.release(grant).await?;
                return Ok(Acquired::GaveUp);
            }
        }
        Ok(acquired)
    }

    async fn under_a_cut_name(&self, claim: Claim) -> Result<Acquired> {
        let letters = claim.name().as_str().chars().filter(|letter| letter.is_ascii_alphanumeric());
        let cut = LockName::new(letters.take(64).collect::<String>().to_lowercase())?;
        let (other, control) = self.detached(&claim, cut, claim.wait());
        let forward = async {
            claim.give_up().await;
            control.give_up();
            std::future::pending::<()>().await;
        };
        let acquired = tokio::select! {
            acquired = self.inner.acquire(other) => acquired?,
            () = forward => Acquired::GaveUp,
        };
        if control.was_contended() {
            claim.note_contended();
        }
        Ok(acquired)
    }

    async fn without_retry(&self, claim: Claim) -> Result<Acquired> {
        let contended = self.contended(&claim).await;
        let inner = Arc::clone(&self.inner);
        let sent = claim.clone();
        let mut acquiring = tokio::spawn(async move { inner.acquire(sent).await });
        let limit = if contended { Duration::MAX } else { NO_ANSWER };
        match timeout(limit, &mut acquiring).await {
            Ok(acquired) => acquired.unwrap_or(Ok(Acquired::EntryGone)),
            // The request may still arrive, and its claim is never withdrawn.
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "acquire").with_lock(claim.name())),
        }
    }
}
