//! Waiting for servers, on a thread that may block.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Pause between two questions to the members of a cluster.
const LEADER_POLL: Duration = Duration::from_millis(20);

/// Calls `look` until it returns a value, with a pause after each call that does not. `None` when `time_max` has
/// passed.
pub(crate) fn poll<T>(time_max: Duration, pause: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let started = Instant::now();
    loop {
        let found = look();
        if found.is_some() || started.elapsed() > time_max {
            return found;
        }
        std::thread::sleep(pause);
    }
}

/// Waits until `cluster` has a leader.
pub(crate) fn wait_for_leader(
    cluster: &str,
    time_max: Duration,
    leader: impl Fn() -> Option<usize>,
) -> Result<usize> {
    poll(time_max, LEADER_POLL, leader).with_context(|| format!("{cluster} has no leader"))
}
