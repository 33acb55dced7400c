//! Helpers of the cases that only one backend has ([`Harness::own_cases`](crate::Harness::own_cases)): failures are
//! returned.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::{Instant, sleep};

/// Time limit of a step that would hang. Shorter than [`LONG`], so that no step ends because a lease has.
pub const HANG: Duration = Duration::from_secs(30);

/// A ttl longer than any other wait of a case.
pub const LONG: Duration = Duration::from_secs(60);

/// Pause between two polls of a condition.
const POLL_PAUSE: Duration = Duration::from_millis(5);

/// Polls a condition until it holds, and returns how long that took.
///
/// # Errors
///
/// When the condition fails, or does not hold within [`HANG`].
///
/// # Cancel safety
///
/// That of `condition`.
pub async fn until(what: &str, condition: impl AsyncFn() -> Result<bool>) -> Result<Duration> {
    let start = Instant::now();
    while !condition().await? {
        ensure!(start.elapsed() < HANG, "not within {HANG:?}: {what}");
        sleep(POLL_PAUSE).await;
    }
    Ok(start.elapsed())
}

/// Runs blocking work, while the other tasks of the runtime continue.
///
/// # Panics
///
/// In a runtime with one thread. Cases on [real time](crate::Time::Real) have more.
pub fn off<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}
