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
    backend::{Acquired, Claim, Grant, RetryPauses, retry_pauses},
};
use tokio::time::{Instant, sleep};
use tracing::debug;

use super::{RedlockSession, attempt::VoteOutcome};
use crate::{error::RequestError, keys::LockKeys, redlock::hints::Hint};

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
                VoteOutcome::Won(won) => {
                    let grant = Grant::new(claim, won.token, won.armed_at);
                    self.add_hold(claim.id(), won);
                    return Ok(Acquired::Granted(grant));
                }
                VoteOutcome::Contended => {
                    claim.note_contended();
                    if !claim.wait() {
                        return Ok(Acquired::GaveUp);
                    }
                    (pause_while_held(&mut outage_pauses, self.context.ttl), true)
                }
                VoteOutcome::Failed(fault) => {
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
                () = next_attempt(pause, released, || pause_after_hint(&hint, took)) => {}
            }
        }
    }

    /// Subscribes a waiter to the releases of its lock.
    async fn subscribe(&self, keys: &LockKeys) -> Arc<Hint> {
        let (hint, is_first) = self.context.nodes.hints.add_waiter(keys.lock());
        if is_first {
            self.context.nodes.follow_waiters(keys.lock()).await;
        }
        hint
    }

    async fn unsubscribe(&self, keys: &LockKeys) {
        if self.context.nodes.hints.remove_waiter(keys.lock()) {
            self.context.nodes.follow_waiters(keys.lock()).await;
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

/// Returns a random pause after an attempt that found the lock held. A majority has answered, so the pauses of the next
/// outage begin again.
fn pause_while_held(outage_pauses: &mut RetryPauses, ttl: Duration) -> Duration {
    *outage_pauses = retry_pauses();
    jittered(PAUSE_MAX.min(ttl / 3))
}

/// Returns a random pause, from a third of `longest` to all of it.
fn jittered(longest: Duration) -> Duration {
    longest.mul_f64(fastrand::f64().mul_add(0.67, 0.33))
}

/// Returns a random pause after a hint, where an attempt takes so long.
fn pause_after_hint(hint: &Hint, attempt: Duration) -> Duration {
    let turns = hint.claims().map_or(TURN_MAX, |claims| {
        attempt.clamp(TURN_MIN, TURN_MAX).saturating_mul(u32::try_from(claims).unwrap_or(u32::MAX))
    });
    turns.min(PAUSE_MAX).mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, OnceLock};

    use lockkit_core::{
        BootInstant, Clock, ErrorKind, LockName, Metadata,
        backend::ClaimControl,
        limits::{RETRY_PAUSE_MAX, RETRY_PAUSE_MIN},
        support::lock,
    };
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::redlock::{
        hints::Hints, membership::Rejoiner, nodes::Nodes, session::attempt::SessionContext,
        wire::RequestBuilder,
    };
    use crate::{
        keys::{Layout, Names},
        topology::{Address, Connector, Dialer, Listener, Login, Password, Topology},
    };

    /// Returns a clock with the time of a test, and when it was read.
    fn recording_clock() -> (Clock, Arc<Mutex<Vec<Duration>>>) {
        let (start, readings) = (Instant::now(), Arc::<Mutex<Vec<_>>>::default());
        let recorded = Arc::clone(&readings);
        let record = move || {
            let now = start.elapsed();
            lock(&recorded).push(now);
            BootInstant::from_start(now)
        };
        (Clock::new(record), readings)
    }

    /// A session whose nodes can never be reached.
    fn session_without_nodes(clock: Clock, login: Login) -> RedlockSession {
        let addresses = (0..3).map(|node| Address::Unix(format!("/nonexistent/{node}").into())).collect();
        let ttl = Duration::from_secs(60);
        let dialer = Dialer { login, tls: None, timeout: ttl };
        let topology = Topology::Replicas(addresses);
        let connector = Connector { topology, dialer, sentinel_login: Login::default(), cluster_retries: 0 };
        let (hints, broken) = Hints::of_session();
        let (nodes, closed) = (Nodes::connect(&connector, ttl, hints), CancellationToken::new());
        let rejoiner = Rejoiner::new(nodes.clone(), ttl, clock.clone(), closed.clone());
        let requests = RequestBuilder { ttl_ms: 60_000, keep_ms: 60_000 };
        let context = SessionContext { nodes, requests, ttl, clock, rejoiner };
        RedlockSession::new(context, Layout::new("", Names::Encoded, false), closed, broken)
    }

    /// All clients lose the nodes at the same moment. Each attempt reads the clock once, before it asks.
    #[tokio::test(start_paused = true)]
    async fn pauses_without_nodes_grow_and_differ() {
        const TIME: Duration = Duration::from_secs(600);
        let (clock, readings) = recording_clock();
        let (session, control) = (session_without_nodes(clock, Login::default()), ClaimControl::new());
        let metadata = Metadata::of_this_process(None);
        let claim = Claim::new(LockName::new("x").unwrap(), true, metadata, &control);
        let give_up = async {
            sleep(TIME).await;
            control.give_up();
        };
        let (end, ()) = tokio::join!(session.acquire_claim(&claim), give_up);
        assert!(matches!(end, Ok(Acquired::GaveUp)), "{end:?}");
        let readings = lock(&readings);
        let pauses: Vec<Duration> = readings.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses.iter().all(|pause| *pause >= RETRY_PAUSE_MIN), "{pauses:?}");
        assert!(pauses.iter().max().is_some_and(|pause| *pause > RETRY_PAUSE_MAX / 2), "{pauses:?}");
        let last = &pauses[pauses.len() / 2..];
        let spread = last.iter().max().unwrap().saturating_sub(*last.iter().min().unwrap());
        assert!(spread > RETRY_PAUSE_MAX / 8, "{spread:?} of {} pauses", last.len());
        assert!(pauses.len() >= TIME.as_secs() as usize / 3, "{} pauses", pauses.len());
    }

    /// The nodes may have answered before the release. Each attempt reads the clock once, before it asks.
    #[tokio::test(start_paused = true)]
    async fn hint_during_an_attempt_ends_the_pause_after_it() {
        let ((clock, readings), hints) = (recording_clock(), Arc::<OnceLock<Arc<Hints>>>::default());
        let hinted = Arc::clone(&hints);
        // Each reading sends a hint.
        let hinting = Clock::new(move || {
            hinted.get().inspect(|hints| hints.gap());
            clock.now()
        });
        let (session, control) = (session_without_nodes(hinting, Login::default()), ClaimControl::new());
        hints.set(Arc::clone(&session.context.nodes.hints)).unwrap();
        let metadata = Metadata::of_this_process(None);
        let claim = Claim::new(LockName::new("x").unwrap(), true, metadata, &control);
        let give_up = async {
            sleep(Duration::from_secs(60)).await;
            control.give_up();
        };
        let (end, ()) = tokio::join!(session.acquire_claim(&claim), give_up);
        assert!(matches!(end, Ok(Acquired::GaveUp)), "{end:?}");
        let readings = lock(&readings);
        // During the first attempt it has not subscribed yet.
        let pauses = readings.windows(2).skip(1).map(|pair| pair[1] - pair[0]);
        // The timer has a resolution of one millisecond.
        assert!(
            pauses.max().is_some_and(|pause| pause <= TURN_MAX + Duration::from_millis(1)),
            "{readings:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn waiter_fails_where_no_retry_helps() {
        let login = Login { password: Some(Password::File("/nonexistent".into())), ..Login::default() };
        let (session, control) = (session_without_nodes(Clock::tokio(), login), ClaimControl::new());
        let metadata = Metadata::of_this_process(None);
        let claim = Claim::new(LockName::new("x").unwrap(), true, metadata, &control);
        let end = tokio::time::timeout(Duration::from_secs(600), session.acquire_claim(&claim)).await;
        assert_eq!(end.expect("it waits").unwrap_err().kind(), ErrorKind::InvalidConfig);
    }

    #[tokio::test(start_paused = true)]
    async fn waiter_that_fails_unsubscribes() {
        let (session, control) =
            (session_without_nodes(Clock::tokio(), Login::default()), ClaimControl::new());
        let metadata = Metadata::of_this_process(None);
        let claim = Claim::new(LockName::new("x").unwrap(), true, metadata, &control);
        let channels = || session.context.nodes.hints.channels().len();
        let before = channels();
        let close = async {
            sleep(RETRY_PAUSE_MAX).await;
            assert_eq!(channels(), before + 2, "the waiter has subscribed");
            session.closed.cancel();
        };
        let (end, ()) = tokio::join!(session.acquire_claim(&claim), close);
        assert!(end.is_err(), "{end:?}");
        assert_eq!(channels(), before);
    }

    /// A close would take until the end of the longest pause.
    #[tokio::test(start_paused = true)]
    async fn waiter_that_gives_up_or_is_closed_ends_its_pause() {
        for closes in [false, true] {
            let (clock, readings) = recording_clock();
            let (session, control) = (session_without_nodes(clock, Login::default()), ClaimControl::new());
            let metadata = Metadata::of_this_process(None);
            let claim = Claim::new(LockName::new("x").unwrap(), true, metadata, &control);
            let end = async {
                // By then, pauses are near the longest.
                while lock(&readings).len() < 12 {
                    sleep(Duration::from_millis(1)).await;
                }
                if closes {
                    session.closed.cancel();
                } else {
                    control.give_up();
                }
                Instant::now()
            };
            let (_, ended) = tokio::join!(session.acquire_claim(&claim), end);
            assert!(ended.elapsed() < RETRY_PAUSE_MIN, "{:?}", ended.elapsed());
        }
    }

    #[test]
    fn pauses_of_an_outage_begin_again_after_a_majority_has_answered() {
        let mut outage_pauses = retry_pauses();
        let last = (0..12).map(|_| outage_pauses.next_pause()).last().unwrap();
        assert!(last >= RETRY_PAUSE_MAX / 2, "{last:?}");
        let held = pause_while_held(&mut outage_pauses, Duration::from_secs(60));
        assert!(held <= PAUSE_MAX, "{held:?}");
        let next = outage_pauses.next_pause();
        assert!(next <= 2 * RETRY_PAUSE_MIN, "{next:?}");
    }

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
        for pause in [|| pause_after_hint(&Hint::default(), TURN_MIN), || jittered(TURN_MAX)] {
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
            let hint = Hint::default();
            hint.send(claims.unwrap_or_default());
            let longest = (0..1_000).map(|_| pause_after_hint(&hint, attempt)).max().unwrap();
            assert!(longest <= limit && longest > limit * 9 / 10, "{claims:?} {attempt:?}: {longest:?}");
        }
    }
}
