//! Timers of callers, on the runtime that drives the caller.
//!
//! The keeper's runtime may be another one, and may be blocked: a caller that counts on it for its own time limit, or
//! for the moment of a loss, would wait as long as that one is blocked.

use std::{panic::catch_unwind, time::Duration};

use tokio::{
    runtime::Handle,
    time::{Instant, Sleep, sleep_until},
};

/// A timer of the runtime that drives the calling task. None outside a runtime, and on one without timers.
pub(super) fn of_caller(until: Instant) -> Option<Sleep> {
    Handle::try_current().ok()?;
    // A runtime that was built without timers panics here, and cannot be asked.
    catch_unwind(|| sleep_until(until)).ok()
}

/// Waits that long on the runtime that drives the calling task; for ever where that has no timers.
pub(super) async fn pause(time: Duration) {
    match Instant::now().checked_add(time).and_then(of_caller) {
        Some(timer) => timer.await,
        None => std::future::pending().await,
    }
}
