//! Helpers of the cases that only one backend has ([`Harness::own_cases`](crate::Harness::own_cases)): failures are
//! returned.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

use crate::context::within;
pub use crate::direct::{HANG, LONG};

/// Pause between two polls of a condition: a twentieth of the wait so far, within these limits. Some conditions are
/// requests to a server, which a long wait would keep busy.
const POLL_PAUSE_MIN: Duration = Duration::from_millis(2);
const POLL_PAUSE_MAX: Duration = Duration::from_millis(100);

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
            sleep((start.elapsed() / 20).clamp(POLL_PAUSE_MIN, POLL_PAUSE_MAX)).await;
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
