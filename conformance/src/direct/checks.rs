//! Waits with a bound, and checks that panic.

use std::{fmt::Debug, time::Duration};

use lockkit_core::{
    Error, ErrorKind, Result,
    backend::{Acquired, Renewal},
    limits::{RECHECK_PAUSE_MAX, RECHECK_PAUSE_MIN},
};
use tokio::time::{Instant, timeout};

use crate::own;

/// Time limit of a step that would hang: generous, as no test depends on its length. Shorter than [`LONG`], so that no
/// step ends because a lease has.
pub const HANG: Duration = Duration::from_secs(30);

/// A ttl longer than any other wait of a test.
pub const LONG: Duration = Duration::from_secs(60);

/// How often [`sooner_than`] repeats its work.
const ROUNDS_MAX: usize = 3;

/// Whether a claim has ended without the lock, as a try or because it was given up.
pub fn is_gave_up(end: &Result<Acquired>) -> bool {
    matches!(end, Ok(Acquired::GaveUp))
}

/// Whether a claim has ended because its entry vanished.
pub fn is_entry_gone(end: &Result<Acquired>) -> bool {
    matches!(end, Ok(Acquired::EntryGone))
}

/// Whether a heartbeat has renewed a session or a grant.
pub fn is_renewed(renewal: &Renewal) -> bool {
    matches!(renewal, Renewal::Renewed { .. })
}

/// Asserts that an error is of this kind and has this in its text.
///
/// # Panics
///
/// When it is not, or has not.
#[track_caller]
pub fn assert_error(error: &Error, kind: ErrorKind, text: &str) {
    assert!(error.kind() == kind && error.to_string().contains(text), "{error}");
}

/// Asserts that each value is larger than the one before it.
///
/// # Panics
///
/// When one is not.
#[track_caller]
pub fn assert_rising<T: PartialOrd + Debug>(values: &[T]) {
    assert!(values.windows(2).all(|pair| pair[0] < pair[1]), "not strictly rising: {values:?}");
}

/// Polls a condition until it holds.
///
/// # Panics
///
/// When the condition does not hold within [`HANG`].
///
/// # Cancel safety
///
/// That of `condition`.
pub async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    if let Err(error) = own::until(what, async || Ok(condition().await)).await {
        panic!("{error}");
    }
}

/// Repeats a round until it takes less than `bound`, three times at most. A wait that is always longer fails; a
/// machine that is loaded for a while does not.
///
/// For waits that the tested step ends early, while another step ends them later.
///
/// # Panics
///
/// When every round takes longer, or one panics.
///
/// # Cancel safety
///
/// That of `round`.
pub async fn sooner_than(bound: Duration, round: impl AsyncFn()) {
    let mut took = Vec::new();
    while took.len() < ROUNDS_MAX {
        let start = Instant::now();
        round().await;
        took.push(start.elapsed());
        if took.last() < Some(&bound) {
            return;
        }
    }
    panic!("never in less than {bound:?}: {took:?}");
}

/// The shortest re-check pause of a waiter in a session with this ttl.
pub fn earliest_recheck(ttl: Duration) -> Duration {
    middle_of_rechecks(ttl).mul_f64(0.875)
}

/// The longest re-check pause of a waiter in a session with this ttl.
pub fn latest_recheck(ttl: Duration) -> Duration {
    middle_of_rechecks(ttl).mul_f64(1.125)
}

fn middle_of_rechecks(ttl: Duration) -> Duration {
    (ttl / 3).clamp(RECHECK_PAUSE_MIN, RECHECK_PAUSE_MAX)
}

/// Returns the result of the work, within [`HANG`].
///
/// # Panics
///
/// When the work hangs.
///
/// # Cancel safety
///
/// That of the work.
pub async fn bounded<T>(work: impl Future<Output = T>) -> T {
    timeout(HANG, work).await.unwrap_or_else(|_| panic!("no end within {HANG:?}"))
}
