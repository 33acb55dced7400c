//! Helpers of the cases that only one backend has ([`Harness::own_cases`](crate::Harness::own_cases)): failures are
//! returned.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

use crate::context::within;
pub use crate::direct::{HANG, LONG};

/// Pause between two polls of a condition.
const POLL_PAUSE: Duration = Duration::from_millis(2);

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
    let poll = async {
        while !condition().await? {
            sleep(POLL_PAUSE).await;
        }
        Ok(start.elapsed())
    };
    within(HANG, what, poll).await?
}

/// Runs blocking work, while the other tasks of the runtime continue.
///
/// # Panics
///
/// In a runtime with one thread. Cases on [real time](crate::Time::Real) have more.
pub fn off<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}
