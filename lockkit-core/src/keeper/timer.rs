//! Timers on the caller's runtime.
//!
//! The keeper's runtime may be another one, and may be blocked. A caller that relied on its timers for a time limit or
//! for a loss would be late by that time.

use std::{panic::catch_unwind, time::Duration};

use tokio::{
    runtime::Handle,
    time::{Instant, Sleep, sleep_until},
};

/// Returns a timer of the calling task's runtime; `None` outside a runtime and on one without timers.
pub(super) fn of_caller(until: Instant) -> Option<Sleep> {
    Handle::try_current().ok()?;
    // A runtime that was built without timers panics here, and there is no way to query it.
    catch_unwind(|| sleep_until(until)).ok()
}

/// Waits for `time` by a timer of the calling task's runtime; pending forever if it has no timers.
pub(super) async fn pause(time: Duration) {
    match Instant::now().checked_add(time).and_then(of_caller) {
        Some(timer) => timer.await,
        None => std::future::pending().await,
    }
}
