//! Acquiring a lock: one attempt after the other, until one wins. A failed attempt leaves nothing at the nodes.
//!
//! There is no queue. The first client that asks a majority while the lock is free gets it. Two clients that ask at the
//! same moment may split the nodes; both remove their keys and retry after pauses of different length.
//!
//! * The claim gives up, or the session is closed: the attempt under way runs to its end, which has time limits.
//! * No majority can be reached: a try fails, a waiter retries.
//! * The lock is released before a waiter has subscribed to the hints: it asks once more right after.
//! * The hint that the lock is free is lost, or sent to others only: a waiter retries several times a second anyway.

use std::{sync::Arc, time::Duration};

use lockkit_core::{
    Result,
    backend::{Acquired, Claim, Grant, retry_pauses},
};
use tokio::time::{Instant, sleep};
use tracing::debug;

use super::{attempt::AttemptOutcome, hints::Hint, session::RedlockSession};
use crate::{error::RequestError, keys::LockKeys};

/// Longest pause between two attempts of a waiter that receives no hint.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Shortest and longest time for the attempt of one claim after a hint. Waiters that received the same hint must not ask
/// in step, so each pauses for a random part of the time of all; if it is not known how many they are, of the longest.
const TURN_MIN: Duration = Duration::from_millis(1);
const TURN_MAX: Duration = Duration::from_millis(15);

impl RedlockSession {
    pub(super) async fn acquire_claim(&self, claim: &Claim) -> Result<Acquired> {
        let keys = Arc::new(self.layout.keys(claim.name())?);
        let mut subscription = None;
        let result = self.claim(claim, &keys, &mut subscription).await;
        if subscription.is_some() {
            self.unsubscribe(&keys).await;
        }
        result.map_err(|fault| fault.into_error("acquire").with_lock(claim.name()))
    }

    async fn claim(
        &self,
        claim: &Claim,
        keys: &Arc<LockKeys>,
        subscription: &mut Option<Arc<Hint>>,
    ) -> Result<Acquired, RequestError> {
        let (metadata, mut outage_pauses) = (claim.metadata_json().into(), retry_pauses());
        loop {
            if claim.has_given_up() {
                return Ok(Acquired::GaveUp);
            }
            if self.closed.is_cancelled() {
                return Err(RequestError::session_closed());
            }
            let hint = subscription.clone().unwrap_or_default();
            // Before the nodes are asked: a hint that arrives during the attempt ends the pause after it.
            let (released, start) = (hint.released.notified(), Instant::now());
            let (pause, is_contended) = match self.context.attempt(keys, &metadata).await {
                AttemptOutcome::Won(won) => {
                    let grant = Grant::new(claim, won.token, won.armed_at);
                    self.add_hold(claim.id(), won);
                    return Ok(Acquired::Granted(grant));
                }
                AttemptOutcome::Contended => {
                    claim.note_contended();
                    if !claim.wait() {
                        return Ok(Acquired::GaveUp);
                    }
                    outage_pauses = retry_pauses();
                    (jittered(PAUSE_MAX.min(self.context.ttl / 3)), true)
                }
                AttemptOutcome::Failed(fault) => {
                    if !claim.wait() || !fault.is_transient() {
                        return Err(fault);
                    }
                    debug!(?fault, claim = ?claim.id(), "no majority");
                    (outage_pauses.next_pause(), false)
                }
            };
            let took = start.elapsed();
            if subscription.is_none() {
                // Only now: a claim that finds the lock free at once never subscribes.
                *subscription = Some(self.subscribe(keys).await);
                if is_contended {
                    // The hint may have come before.
                    continue;
                }
            }
            tokio::select! {
                () = claim.give_up() => {}
                () = self.closed.cancelled() => {}
                () = next_attempt(pause, released, || pause_after_hint(hint.claims(), took)) => {}
            }
        }
    }

    /// Subscribes a waiter to the releases of its lock.
    async fn subscribe(&self, keys: &LockKeys) -> Arc<Hint> {
        let (hint, is_first) = self.context.nodes.hints.add_waiter(keys.lock());
        if is_first {
            self.context.nodes.set_subscription(keys.lock(), true).await;
        }
        hint
    }

    async fn unsubscribe(&self, keys: &LockKeys) {
        if self.context.nodes.hints.remove_waiter(keys.lock()) {
            self.context.nodes.set_subscription(keys.lock(), false).await;
        }
    }
}

/// Waits for the pause, or after a hint for the shorter pause that it leads to.
async fn next_attempt(
    pause: Duration,
    hint: impl Future<Output = ()>,
    pause_after_hint: impl FnOnce() -> Duration,
) {
    tokio::select! {
        () = sleep(pause) => {}
        () = hint => sleep(pause_after_hint()).await,
    }
}

/// A random pause, from a third of `longest` to all of it.
fn jittered(longest: Duration) -> Duration {
    longest.mul_f64(fastrand::f64().mul_add(0.67, 0.33))
}

/// A random pause after a hint that so many claims received, where an attempt takes so long.
fn pause_after_hint(claims: Option<usize>, attempt: Duration) -> Duration {
    let turns = claims.map_or(TURN_MAX, |claims| {
        attempt.clamp(TURN_MIN, TURN_MAX).saturating_mul(u32::try_from(claims).unwrap_or(u32::MAX))
    });
    turns.min(PAUSE_MAX).mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn hint_ends_a_pause() {
        let start = Instant::now();
        next_attempt(PAUSE_MAX, std::future::ready(()), || TURN_MAX).await;
        // The timer has a resolution of one millisecond.
        assert!(start.elapsed() <= TURN_MAX + Duration::from_millis(1), "{:?}", start.elapsed());
        let start = Instant::now();
        next_attempt(PAUSE_MAX, std::future::pending(), || TURN_MAX).await;
        assert!(start.elapsed() >= PAUSE_MAX, "{:?}", start.elapsed());
    }

    /// Waiters that ask in step would split the nodes again and again.
    #[test]
    fn pauses_of_waiters_differ() {
        for pause in [|| pause_after_hint(None, TURN_MIN), || jittered(TURN_MAX)] {
            let (one, other) = (pause(), pause());
            assert!(one != other && one.max(other) <= TURN_MAX, "{one:?} and {other:?}");
        }
    }

    /// The longest of many random pauses is close to the limit, and not above it.
    #[test]
    fn waiters_spread_their_attempts_over_the_time_that_all_need() {
        let (short, long) = (Duration::from_micros(300), Duration::from_secs(1));
        let cases = [
            (None, short, TURN_MAX),
            (None, long, TURN_MAX),
            (Some(1), short, TURN_MIN),
            (Some(1), long, TURN_MAX),
            (Some(8), Duration::from_millis(2), Duration::from_millis(16)),
            (Some(8), short, TURN_MIN * 8),
            (Some(500), short, PAUSE_MAX),
            (Some(usize::MAX), long, PAUSE_MAX),
        ];
        for (claims, attempt, limit) in cases {
            let longest = (0..1_000).map(|_| pause_after_hint(claims, attempt)).max().unwrap();
            assert!(longest <= limit && longest > limit * 9 / 10, "{claims:?} {attempt:?}: {longest:?}");
        }
    }
}
