//! A claim's life up to its grant: one attempt after the other, each of which leaves nothing.
//!
//! There is no queue: whoever asks a majority first when the lock is free gets it. Two who ask at the same moment may
//! split the nodes between them; both take everything back, and come again after pauses of different length.
//!
//! * The claim is given up, or the session closed: the attempt under way is driven to its end, which has time limits.
//! * No majority can be reached: a try says so, a waiter goes on.
//! * The hint that the lock is free is missed: a waiter looks some times a second anyway.

use std::{sync::Arc, time::Duration};

use lockkit_core::{
    Result,
    backend::{Acquired, Claim, Grant, retry_pauses},
    limits::RETRY_PAUSE_MAX,
};
use tokio::{sync::Notify, time::sleep};
use tracing::debug;

use super::{attempt::Outcome, calls::released_channel, session::RedlockSession};
use crate::{error::Fault, keys::LockKeys};

/// Longest pause between two attempts of a waiter that hears nothing.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Longest pause between a hint and the attempt that follows it: those who hear it must not ask in step.
const AFTER_HINT_MAX: Duration = Duration::from_millis(15);

impl RedlockSession {
    pub(super) async fn acquire_claim(&self, claim: &Claim) -> Result<Acquired> {
        let keys = self.layout.keys(claim.name())?;
        let mut ear = None;
        let end = self.claim(claim, &keys, &mut ear).await;
        if let Some(ear) = ear {
            self.stop_listening(ear).await;
        }
        end.map_err(|fault| fault.into_error("acquire").with_lock(claim.name()))
    }

    async fn claim(&self, claim: &Claim, keys: &LockKeys, ear: &mut Option<Ear>) -> Result<Acquired, Fault> {
        let mut outages = retry_pauses();
        loop {
            if claim.has_given_up() {
                return Ok(Acquired::GaveUp);
            }
            if self.closed.is_cancelled() {
                return Err(Fault::session_over());
            }
            let heard = ear.as_ref().map(|ear| Arc::clone(&ear.hint)).unwrap_or_default();
            let hint = heard.notified();
            tokio::pin!(hint);
            // Listens from here on, before the nodes are asked.
            hint.as_mut().enable();
            let pause = match self.table.attempt(keys, claim.metadata()).await {
                Outcome::Won(won) => {
                    let grant = Grant::new(claim, won.token, won.armed_at);
                    self.hold(claim.id(), won);
                    return Ok(Acquired::Granted(grant));
                }
                Outcome::Contended => {
                    claim.note_contended();
                    if !claim.wait() {
                        return Ok(Acquired::GaveUp);
                    }
                    outages = retry_pauses();
                    jittered(PAUSE_MAX.min(self.table.ttl / 3))
                }
                Outcome::Failed(fault) => {
                    if !claim.wait() || !fault.may_pass() {
                        return Err(fault);
                    }
                    debug!(?fault, claim = ?claim.id(), "no majority");
                    outages.next().unwrap_or(RETRY_PAUSE_MAX)
                }
            };
            if ear.is_none() {
                // Whoever finds the lock free at once has never listened. The next attempt comes soon.
                *ear = Some(self.listen(keys).await);
            }
            tokio::select! {
                () = claim.give_up() => {}
                () = self.closed.cancelled() => {}
                () = next_attempt(pause, hint) => {}
            }
        }
    }

    async fn listen(&self, keys: &LockKeys) -> Ear {
        let channel = released_channel(keys.lock());
        let (hint, is_first) = self.table.nodes.hints.join(&channel);
        if is_first {
            self.table.nodes.listen(&channel, true).await;
        }
        Ear { channel, hint }
    }

    async fn stop_listening(&self, ear: Ear) {
        if self.table.nodes.hints.leave(&ear.channel) {
            self.table.nodes.listen(&ear.channel, false).await;
        }
    }
}

/// What a waiter hears with.
#[derive(Debug)]
struct Ear {
    channel: String,
    hint: Arc<Notify>,
}

/// Passes when it is time for the next attempt: after a pause, or soon after a hint.
async fn next_attempt(pause: Duration, hint: impl Future<Output = ()>) {
    tokio::select! {
        () = sleep(pause) => {}
        () = hint => sleep(after_hint()).await,
    }
}

/// From a third of this time to all of it.
fn jittered(longest: Duration) -> Duration {
    longest.mul_f64(fastrand::f64().mul_add(0.67, 0.33))
}

/// Any time up to the longest.
fn after_hint() -> Duration {
    AFTER_HINT_MAX.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn hint_ends_a_pause() {
        let start = Instant::now();
        next_attempt(PAUSE_MAX, std::future::ready(())).await;
        // The timer counts whole milliseconds.
        assert!(start.elapsed() <= AFTER_HINT_MAX + Duration::from_millis(1), "{:?}", start.elapsed());
        let start = Instant::now();
        next_attempt(PAUSE_MAX, std::future::pending()).await;
        assert!(start.elapsed() >= PAUSE_MAX, "{:?}", start.elapsed());
    }

    /// Waiters that ask in step split the nodes between them again and again.
    #[test]
    fn no_two_waiters_pause_for_the_same_time() {
        for pause in [after_hint, || jittered(AFTER_HINT_MAX)] {
            let (one, other) = (pause(), pause());
            assert!(one != other && one.max(other) <= AFTER_HINT_MAX, "{one:?} and {other:?}");
        }
    }
}
