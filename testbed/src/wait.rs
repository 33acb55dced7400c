//! Waiting for servers, on a thread that may block.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Time limit of a step that would hang: generous, as no test depends on its length.
pub const HANG: Duration = Duration::from_secs(60);

/// Shortest pause between two looks of a test.
const LOOK_PAUSE: Duration = Duration::from_millis(2);

/// Longest pause between two looks.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Pause between two questions to the members of a cluster.
const LEADER_POLL: Duration = Duration::from_millis(20);

/// Calls `look` until it returns a value, with a pause after each call that does not: a twentieth of the wait so far, at
/// least `pause_min`. `None` when `time_max` has passed.
pub(crate) fn poll<T>(
    time_max: Duration,
    pause_min: Duration,
    mut look: impl FnMut() -> Option<T>,
) -> Option<T> {
    let started = Instant::now();
    loop {
        let found = look();
        if found.is_some() || started.elapsed() > time_max {
            return found;
        }
        std::thread::sleep((started.elapsed() / 20).clamp(pause_min, PAUSE_MAX));
    }
}

/// Waits, for a test, until `look` returns a value.
///
/// # Panics
///
/// When it returns none within [`HANG`].
#[track_caller]
#[allow(clippy::panic, reason = "a helper of tests")]
pub fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    let found = poll(HANG, LOOK_PAUSE, look);
    found.unwrap_or_else(|| panic!("not within {HANG:?}: {what}"))
}

/// Waits, for a test, until the condition is true.
///
/// # Panics
///
/// When it is not true within [`HANG`].
#[track_caller]
pub fn until(what: &str, condition: impl Fn() -> bool) {
    eventually(what, || condition().then_some(()));
}

/// Waits until `cluster` has a leader.
pub(crate) fn wait_for_leader(
    cluster: &str,
    time_max: Duration,
    leader: impl Fn() -> Option<usize>,
) -> Result<usize> {
    poll(time_max, LEADER_POLL, leader).with_context(|| format!("{cluster} has no leader"))
}
