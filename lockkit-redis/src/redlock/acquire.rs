//! Acquiring a lock: one attempt after the other, until one wins. A failed attempt leaves nothing at the nodes.
//!
//! There is no queue. The first client that asks a majority while the lock is free gets it. Two clients that ask at the
//! same moment may split the nodes; both remove their keys and retry after pauses of different length.
//!
//! * The claim gives up, or the session is closed: the attempt under way runs to its end, which has time limits.
//! * No majority can be reached: a try fails, a waiter retries.
//! * The lock is released before a waiter has subscribed to the hints: it asks once more right after.
//! * The hint that the lock is free is lost: a waiter retries several times a second anyway.

use std::{sync::Arc, time::Duration};

use lockkit_core::{
    Result,
    backend::{Acquired, Claim, Grant, retry_pauses},
};
use tokio::{sync::Notify, time::sleep};
use tracing::debug;

use super::{attempt::AttemptOutcome, session::RedlockSession, wire::released_channel};
use crate::{error::RequestError, keys::LockKeys};

/// Longest pause between two attempts of a waiter that receives no hint.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Longest pause between a hint and the next attempt: waiters that received the same hint must not ask in step.
const PAUSE_AFTER_HINT_MAX: Duration = Duration::from_millis(15);

impl RedlockSession {
    pub(super) async fn acquire_claim(&self, claim: &Claim) -> Result<Acquired> {
        let keys = Arc::new(self.layout.keys(claim.name())?);
        let mut subscription = None;
        let result = self.claim(claim, &keys, &mut subscription).await;
        if let Some(subscription) = subscription {
            self.unsubscribe(subscription).await;
        }
        result.map_err(|fault| fault.into_error("acquire").with_lock(claim.name()))
    }

    async fn claim(
        &self,
        claim: &Claim,
        keys: &Arc<LockKeys>,
        subscription: &mut Option<Subscription>,
    ) -> Result<Acquired, RequestError> {
        let (metadata, mut outage_pauses) = (claim.metadata_json().into(), retry_pauses());
        loop {
            if claim.has_given_up() {
                return Ok(Acquired::GaveUp);
            }
            if self.closed.is_cancelled() {
                return Err(RequestError::session_closed());
            }
            let notify =
                subscription.as_ref().map(|subscription| Arc::clone(&subscription.hint)).unwrap_or_default();
            // Before the nodes are asked: a hint that arrives during the attempt ends the pause after it.
            let hint = notify.notified();
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
                () = next_attempt(pause, hint) => {}
            }
        }
    }

    async fn subscribe(&self, keys: &LockKeys) -> Subscription {
        let channel = released_channel(keys.lock());
        let (hint, is_first) = self.context.nodes.hints.add_waiter(&channel);
        if is_first {
            self.context.nodes.set_subscription(&channel, true).await;
        }
        Subscription { channel, hint }
    }

    async fn unsubscribe(&self, subscription: Subscription) {
        if self.context.nodes.hints.remove_waiter(&subscription.channel) {
            self.context.nodes.set_subscription(&subscription.channel, false).await;
        }
    }
}

/// A waiter's subscription to the releases of its lock.
#[derive(Debug)]
struct Subscription {
    channel: String,
    hint: Arc<Notify>,
}

/// Waits for the pause, or until shortly after a hint.
async fn next_attempt(pause: Duration, hint: impl Future<Output = ()>) {
    tokio::select! {
        () = sleep(pause) => {}
        () = hint => sleep(pause_after_hint()).await,
    }
}

/// A random pause, from a third of `longest` to all of it.
fn jittered(longest: Duration) -> Duration {
    longest.mul_f64(fastrand::f64().mul_add(0.67, 0.33))
}

/// A random pause up to the longest.
fn pause_after_hint() -> Duration {
    PAUSE_AFTER_HINT_MAX.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn hint_ends_a_pause() {
        let start = Instant::now();
        next_attempt(PAUSE_MAX, std::future::ready(())).await;
        // The timer has a resolution of one millisecond.
        assert!(start.elapsed() <= PAUSE_AFTER_HINT_MAX + Duration::from_millis(1), "{:?}", start.elapsed());
        let start = Instant::now();
        next_attempt(PAUSE_MAX, std::future::pending()).await;
        assert!(start.elapsed() >= PAUSE_MAX, "{:?}", start.elapsed());
    }

    /// Waiters that ask in step would split the nodes again and again.
    #[test]
    fn pauses_of_waiters_differ() {
        for pause in [pause_after_hint, || jittered(PAUSE_AFTER_HINT_MAX)] {
            let (one, other) = (pause(), pause());
            assert!(one != other && one.max(other) <= PAUSE_AFTER_HINT_MAX, "{one:?} and {other:?}");
        }
    }
}
