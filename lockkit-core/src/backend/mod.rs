//! The traits that a backend implements, and the types that they exchange with the keeper.
//!
//! A backend author implements [`Backend`] and [`Session`]. The keeper implements everything that all stores have in
//! common: deadlines, renewals, cancel safety, retries of a release, re-entry. The documentation of the traits is the
//! contract; the conformance suite checks it.

mod admin;
mod claim;
mod evidence;
mod grant;
mod info;
mod powers;
mod promises;
pub mod tls;
mod url;

use std::{fmt::Debug, sync::Arc, time::Duration};

use async_trait::async_trait;
use backon::BackoffBuilder;

pub(crate) use self::claim::ClaimSource;
pub use self::{
    admin::{Admin, Contender, Inspection, ListedLock, Page},
    claim::{Claim, ClaimControl, ClaimId},
    evidence::{Evidence, SecretValue},
    grant::{Acquired, Grant, Loss, Renewal, Renewals},
    info::{BackendInfo, HeartbeatInterval, Lifetime},
    powers::{Elections, LeaderEntry, LeaderWatch, Pins, Polling, Powers, Records},
    promises::{FailoverLoss, LossDetection, Promises, QueueKind, TokenStrength},
    url::{BackendUrl, Host},
};
use crate::{
    Clock, Result,
    limits::{RECHECK_PAUSE_MAX, RECHECK_PAUSE_MIN, RETRY_PAUSE_MAX, RETRY_PAUSE_MIN},
};

/// Returns the pause before the next re-check of a waiter: a third of the ttl, but between [`RECHECK_PAUSE_MIN`] and
/// [`RECHECK_PAUSE_MAX`].
///
/// It varies by an eighth, so that the waiters of one lock do not send their re-checks at the same time.
pub fn recheck_pause(ttl: Duration) -> Duration {
    let middle = (ttl / 3).clamp(RECHECK_PAUSE_MIN, RECHECK_PAUSE_MAX);
    middle.mul_f64(fastrand::f64().mul_add(0.25, 0.875))
}

/// Returns the pauses between the retries of a failed step.
pub fn retry_pauses() -> RetryPauses {
    let pauses = backon::ExponentialBuilder::default()
        .with_min_delay(RETRY_PAUSE_MIN)
        // The jitter adds up to the same time again.
        .with_max_delay(RETRY_PAUSE_MAX / 2)
        .with_jitter()
        .without_max_times();
    RetryPauses(pauses.build())
}

/// The pauses between the retries of a failed step, as an endless iterator. They grow from [`RETRY_PAUSE_MIN`] to
/// [`RETRY_PAUSE_MAX`], with jitter.
#[derive(Debug)]
pub struct RetryPauses(backon::ExponentialBackoff);

impl Iterator for RetryPauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.next_pause())
    }
}

impl RetryPauses {
    /// Returns the next pause.
    pub fn next_pause(&mut self) -> Duration {
        self.0.next().unwrap_or(RETRY_PAUSE_MAX)
    }

    /// Waits for the next pause.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe; the pause counts as taken.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.next_pause()).await;
    }
}

/// A store that can lock.
///
/// # Contract
///
/// * Constructing the value does no I/O and needs no runtime: [`open_session`](Self::open_session) opens connections,
///   on the runtime that will drive them.
/// * All of [`info`](Self::info) and [`promises`](Self::promises) is true; the conformance suite checks it, except what
///   a failover can lose.
/// * Several clients may share one `Backend` value. Each calls `open_session` itself, and again after every lost
///   session.
///
/// # Cancel safety
///
/// Not required: the keeper drives every future of this trait to completion.
#[async_trait]
pub trait Backend: Debug + Send + Sync + 'static {
    /// Returns the properties of this backend, constant for the life of the value.
    fn info(&self) -> BackendInfo;

    /// Returns what this backend promises about its store, constant for the life of the value. By default, the
    /// [weakest promises](Promises::least): a backend that wraps another one must forward this call.
    fn promises(&self) -> Promises {
        Promises::least()
    }

    /// Opens a session whose holds live for `ttl` without renewal.
    ///
    /// The server may move the ttl into its own bounds, and rounds it up to its resolution; [`Session::ttl`] returns what
    /// it granted. [`Grant::armed_at`] and [`Renewal::Renewed`] are readings of the keeper's `clock`. The backend's
    /// request timeouts bound the call; the keeper retries it.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server cannot be reached (the keeper retries), `Denied` for wrong credentials,
    /// `InvalidConfig` for errors that no retry can fix.
    async fn open_session(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>>;

    /// Returns what an operator asks of the store, if the backend has this power.
    fn admin(&self) -> Option<&dyn Admin> {
        None
    }
}

/// A session of one client at the server, and the locks acquired in it.
///
/// # Contract
///
/// * The keeper drives every future of this trait to completion while the runtime lives. A backend sets its own time
///   limit on each request and still owns the request after the limit.
/// * Several calls run concurrently, also for one lock name (as different claims).
/// * After a call of [`close`](Self::close), every pending call ends, with an error if it has no result, and a new call
///   sends nothing. (An acquire may arrive just after the client has closed.)
///
/// # Cancel safety
///
/// Required of [`lost`](Self::lost) only: the keeper drives all other futures to completion.
#[async_trait]
pub trait Session: Debug + Send + Sync + 'static {
    /// Returns the lifetime that the server granted, which may differ from the requested one. `Duration::MAX` where a
    /// hold ends only by release or with its process ([`Lifetime::Process`]).
    fn ttl(&self) -> Duration;

    /// Acquires the lock for this claim; waits for it if [`Claim::wait`] is true.
    ///
    /// * If `claim.wait()` is false, send one request. If the lock is busy, return [`Acquired::GaveUp`] and leave
    ///   nothing behind.
    /// * When the server reports another holder, call [`Claim::note_contended`].
    /// * When [`Claim::give_up`] resolves, withdraw the claim's entry. Repeat this until the server has answered, the
    ///   session is over, or the entry must have expired by itself; then return `GaveUp` (or `Granted`, if the grant
    ///   came first).
    /// * If a reply is lost, repeat the request, idempotently by [`Claim::id`], until the outcome is known. While the
    ///   server is unreachable, a waiting claim waits; a try returns `Unavailable` after its clean-up. Where a lost request
    ///   may still create an entry later, return `EntryGone` instead of repeating it, and remove what it creates.
    /// * Treat every notification as a hint: re-check after each [`recheck_pause`], and return `Granted` only after an
    ///   answer of the store that shows the claim's own entry. A notification may grant only if it proves as much as
    ///   such an answer: on Redis, its token shows that the lock was granted after the last answer to the claim.
    /// * If the claim's own entry vanished while it waited, return [`Acquired::EntryGone`]; the keeper creates a new
    ///   claim.
    ///
    /// # Errors
    ///
    /// An error of any kind leaves no entry of this claim that could delay others beyond the session's ttl. Where an
    /// entry in a queue expires by itself and may be granted the lock until then, beyond two ttls.
    async fn acquire(&self, claim: Claim) -> Result<Acquired>;

    /// Sends one heartbeat: renews the session and all holds in `held`, which may be empty.
    ///
    /// Returns one result for the session and one for each hold; one hold may be `Gone` while others are renewed.
    /// Returns within the heartbeat interval; a missing answer is [`Renewal::Unknown`].
    async fn renew(&self, held: &[Grant]) -> Renewals;

    /// Ends this grant only; the entry of a later claim is never touched. Idempotent: returns `Ok` also if nothing of
    /// the grant is left.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server did not confirm the release; the keeper retries.
    async fn release(&self, grant: &Grant) -> Result<()>;

    /// Waits for the next loss that the server reports before the next heartbeat; pending forever if it reports none.
    ///
    /// Each lost grant is returned once, [`Loss::Session`] by every call.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future discards no loss: the next call returns it.
    async fn lost(&self) -> Loss;

    /// Ends the session with all its holds and waiters, at the server if it can be reached. Idempotent.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server did not confirm it; the keeper retries until the session must have expired.
    async fn close(&self) -> Result<()>;

    /// Returns what elections need, if the backend has this power.
    fn elections(&self) -> Option<&dyn Elections> {
        None
    }

    /// Returns what records need, one per lock name that only its holder can write, if the backend has this power.
    fn records(&self) -> Option<&dyn Records> {
        None
    }

    /// Returns what minimum hold times need, if the backend has this power.
    fn pins(&self) -> Option<&dyn Pins> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::TTL_MAX;

    #[test]
    fn recheck_pause_is_bounded_for_any_ttl() {
        for (ttl, middle) in [(1, 2.0), (15, 5.0), (60, 10.0), (TTL_MAX.as_secs(), 10.0)] {
            let pause = recheck_pause(Duration::from_secs(ttl)).as_secs_f64();
            assert!((middle * 0.87..middle * 1.13).contains(&pause), "{pause} s at a ttl of {ttl} s");
        }
    }

    #[test]
    fn recheck_pauses_differ_between_waiters() {
        fastrand::seed(1);
        let pauses: Vec<f64> =
            (0..1_000).map(|_| recheck_pause(Duration::from_secs(15)).as_secs_f64()).collect();
        let (short, long) =
            (pauses.iter().filter(|pause| **pause < 4.75), pauses.iter().filter(|pause| **pause > 5.25));
        assert!(short.count() > 100 && long.count() > 100, "waiters re-check at different times");
    }

    #[test]
    fn retry_pauses_grow_to_their_bound_with_jitter() {
        let mut last = Vec::new();
        for _ in 0..1_000 {
            let pauses: Vec<Duration> = retry_pauses().take(12).collect();
            let bounds = RETRY_PAUSE_MIN..=RETRY_PAUSE_MAX;
            assert!(pauses.iter().all(|pause| bounds.contains(pause)), "{pauses:?}");
            assert!(pauses[0] <= RETRY_PAUSE_MIN * 2 && pauses[11] >= RETRY_PAUSE_MAX / 2, "{pauses:?}");
            last.push(pauses[11].as_secs_f64() / RETRY_PAUSE_MAX.as_secs_f64());
        }
        let (low, high) = (last.iter().filter(|part| **part < 0.6), last.iter().filter(|part| **part > 0.9));
        assert!(low.count() > 50 && high.count() > 50, "clients that fail together do not retry together");
    }
}
