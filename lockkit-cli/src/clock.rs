//! The clock of both sides of the watcher's pipe: absolute, and the same in every process of this host.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the time since the host started, including suspended time if the platform has such a clock (as in
/// `lockkit::Clock`).
pub(crate) fn now() -> Duration {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const ID: ClockId = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const ID: ClockId = ClockId::Monotonic;
    let reading = clock_gettime(ID);
    // Neither field is negative on these clocks, and nanoseconds are below 10^9.
    Duration::new(reading.tv_sec.unsigned_abs(), reading.tv_nsec.unsigned_abs() as u32)
}
