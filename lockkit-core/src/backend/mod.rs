//! The traits that a backend implements, and what passes between it and the keeper.
//!
//! A backend author writes [`Backend`] and [`Session`]; everything that is the same for all stores (deadlines,
//! renewals, cancel safety, retries of a release, re-entry) is done once, by the keeper. The documentation of the
//! traits is the contract; the conformance suite checks it.

mod admin;
mod claim;
mod grant;
mod info;
pub mod tls;
mod url;

use std::{fmt::Debug, sync::Arc, time::Duration};

use async_trait::async_trait;
use backon::BackoffBuilder;

pub use self::{
    admin::{Admin, Contender, Inspection},
    claim::{Claim, ClaimControl, ClaimId},
    grant::{Acquired, Beat, Grant, Loss, Renewal},
    info::{BackendInfo, BeatInterval, FailoverLoss, Lifetime, LossDetection, QueueKind, TokenStrength},
    url::{BackendUrl, Host},
};
use crate::{
    Clock, Result,
    limits::{RECHECK_PAUSE_MAX, RECHECK_PAUSE_MIN, RETRY_PAUSE_MAX, RETRY_PAUSE_MIN},
};

/// The pause before a waiter looks again although nothing has notified it: ttl / 3, but at least
/// [`RECHECK_PAUSE_MIN`] and at most [`RECHECK_PAUSE_MAX`]; varied by an eighth, so that the waiters of one lock do not
/// look in step.
pub fn recheck_pause(ttl: Duration) -> Duration {
    let middle = (ttl / 3).clamp(RECHECK_PAUSE_MIN, RECHECK_PAUSE_MAX);
    middle.mul_f64(fastrand::f64().mul_add(0.25, 0.875))
}

/// The pauses between the tries of one step that fails: growing from [`RETRY_PAUSE_MIN`] to [`RETRY_PAUSE_MAX`], with
/// jitter, without end.
pub fn retry_pauses() -> impl Iterator<Item = Duration> + Send {
    backon::ExponentialBuilder::default()
        .with_min_delay(RETRY_PAUSE_MIN)
        // The jitter comes on top: up to as much again.
        .with_max_delay(RETRY_PAUSE_MAX / 2)
        .with_jitter()
        .without_max_times()
        .build()
}

/// A store that can lock.
///
/// # Contract
///
/// * Constructing the value does no I/O and needs no runtime: connections are opened in
///   [`open_session`](Self::open_session), on the runtime that will drive them.
/// * What [`info`](Self::info) claims is true; the conformance suite fails a claim that is not.
/// * One `Backend` value may be used by several clients; each calls `open_session` for itself, and again after every
///   lost session.
///
/// # Cancel safety
///
/// None is asked for: the keeper drives every future of this trait to its end.
#[async_trait]
pub trait Backend: Debug + Send + Sync + 'static {
    /// What this backend is and promises: constant for the life of the value.
    fn info(&self) -> BackendInfo;

    /// Opens a session whose holds live for `ttl` without renewal, rounded up to what the server can do and raised to
    /// its minimum. `clock` is the keeper's: [`Grant::armed_at`] and [`Renewal::Renewed`] are readings of it.
    ///
    /// Bounded by the backend's own request timeouts: the keeper does the retrying.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the server cannot be reached (the keeper tries again), `Denied` for wrong credentials,
    /// `InvalidConfig` for what no retry will mend.
    async fn open_session(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>>;

    /// The power to look into the store beside any session, where the backend has it.
    fn admin(&self) -> Option<&dyn Admin>;
}

/// One client's liveness at the server, and the locks that it takes in its name.
///
/// # Contract
///
/// * The keeper drives every future of this trait to its end; none is dropped half-way while the runtime lives. A
///   backend that waits for a server puts its own time limit on each request and goes on owning it.
/// * Several calls run at the same time, also on one lock name (as different claims).
/// * After [`close`](Self::close) was called, every other call ends, with an error if it has no better answer, and a
///   new one sends nothing: an acquire may come in when the client has just closed.
///
/// # Cancel safety
///
/// None is asked for, but of [`lost`](Self::lost): the keeper drives all other futures to their end.
#[async_trait]
pub trait Session: Debug + Send + Sync + 'static {
    /// The lifetime that the server granted, not the one that was asked for. `Duration::MAX` where a hold ends only
    /// by release or with its process ([`Lifetime::Process`]).
    fn ttl(&self) -> Duration;

    /// Takes the lock for this claim, or waits for it when [`Claim::wait`] says so.
    ///
    /// * `claim.wait() == false`: ask the server once; busy is [`Acquired::GaveUp`], and nothing stays behind.
    /// * Once the server has said that somebody else holds the lock, call [`Claim::note_contended`].
    /// * When [`Claim::give_up`] resolves: withdraw the claim's entry, repeatedly if need be until the server has
    ///   answered or the session is over, then answer `GaveUp` (or `Granted`, when the grant came first).
    /// * A reply that never came is not a failure: ask again, idempotently by [`Claim::id`], until the outcome is
    ///   known. While the server is away a waiting claim waits; a try answers `Unavailable` after its clean-up.
    /// * Every notification is a hint: re-check in pauses of [`recheck_pause`], and answer `Granted` only on an answer
    ///   of the store that shows the own entry.
    /// * The own entry vanished while waiting: [`Acquired::EntryGone`]; the keeper comes back with a new claim.
    ///
    /// # Errors
    ///
    /// Whatever the answer, an error leaves no entry of this claim behind that could delay others beyond the
    /// session's ttl.
    async fn acquire(&self, claim: Claim) -> Result<Acquired>;

    /// One beat: proves the session alive and every one of `held` still in place. Called also with nothing held.
    ///
    /// Answers for the session and, one each, for the holds; a hold may be answered `Gone` while its neighbours are
    /// renewed. Ends within the time between two beats: what was not answered by then is [`Renewal::Unknown`].
    async fn renew(&self, held: &[Grant]) -> Beat;

    /// Ends this grant, and only this one: the entry of a later claim is never touched. Idempotent: `Ok` also when
    /// nothing of the grant is left.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the server did not confirm it; the keeper calls again.
    async fn release(&self, grant: &Grant) -> Result<()>;

    /// Waits for the next loss that the server tells ahead of the next beat; pending for ever where it tells none.
    ///
    /// Each lost grant is told once, [`Loss::Session`] again and again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no loss: the next call tells it.
    async fn lost(&self) -> Loss;

    /// Ends the session and everything held or waiting in it, at the server where it can be reached. Idempotent.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the server did not confirm it; the keeper calls again until one ttl after the last renewal.
    async fn close(&self) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::TTL_MAX;

    #[test]
    fn recheck_pause_has_bounds_whatever_the_ttl() {
        for (ttl, middle) in [(1, 2.0), (15, 5.0), (60, 10.0), (TTL_MAX.as_secs(), 10.0)] {
            let pause = recheck_pause(Duration::from_secs(ttl)).as_secs_f64();
            assert!((middle * 0.87..middle * 1.13).contains(&pause), "{pause} s at a ttl of {ttl} s");
        }
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
        assert!(low.count() > 50 && high.count() > 50, "clients that fail together do not try in step");
    }
}
