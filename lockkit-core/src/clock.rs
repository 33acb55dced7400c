//! The clock for deadlines.
//!
//! `std::time::Instant` stops while a Linux machine is suspended, so after an hour of sleep a holder would still rely
//! on its lock. Deadlines are therefore measured with the *boot clock*, which counts suspended time:
//!
//! | platform | source | counts suspended time |
//! |---|---|---|
//! | Linux, Android | `CLOCK_BOOTTIME` | yes |
//! | macOS, iOS | `CLOCK_MONOTONIC` | yes |
//! | others | `std::time::Instant` | as the platform documents (Windows: yes) |
//!
//! No clock helps against a paused and restored virtual machine; only the fencing token does.

use std::{fmt, sync::Arc, time::Duration};

/// A moment on a [`Clock`], in nanoseconds since an arbitrary start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(u64);

impl BootInstant {
    /// A moment that is never reached.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the moment `since_start` after the start of the clock.
    pub fn from_start(since_start: Duration) -> Self {
        Self(u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns a later moment; [`NEVER`](Self::NEVER) on overflow.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(Self::from_start(by).0))
    }

    /// Returns an earlier moment, but not before the start of the clock.
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(Self::from_start(by).0))
    }

    /// Returns the time from `earlier` to this moment; zero if `earlier` is the later one.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The clock of a client; its sessions use the same one for the send times of requests. Cheap to clone.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> BootInstant + Send + Sync>);

impl Clock {
    /// Returns the boot clock of this machine, the one to use outside tests.
    pub fn boot() -> Self {
        Self::new(boot_clock())
    }

    /// Returns the clock of the tokio runtime, which a test can pause and advance.
    pub fn tokio() -> Self {
        let start = tokio::time::Instant::now();
        Self::new(move || BootInstant::from_start(start.elapsed()))
    }

    /// Returns a clock for tests, with the readings of `now`: each must not be less than an earlier one.
    ///
    /// ```
    /// use std::sync::{Arc, atomic::{AtomicU64, Ordering::SeqCst}};
    /// use std::time::Duration;
    /// use lockkit_core::{BootInstant, Clock};
    ///
    /// let seconds = Arc::new(AtomicU64::new(0));
    /// let reading = Arc::clone(&seconds);
    /// let clock = Clock::new(move || BootInstant::from_start(Duration::from_secs(reading.load(SeqCst))));
    /// let start = clock.now();
    /// seconds.store(3600, SeqCst);
    /// assert_eq!(clock.now().since(start), Duration::from_secs(3600));
    /// ```
    pub fn new(now: impl Fn() -> BootInstant + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Returns the current reading.
    pub fn now(&self) -> BootInstant {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn boot_clock() -> impl Fn() -> BootInstant {
    #[cfg(target_vendor = "apple")]
    const ID: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    #[cfg(not(target_vendor = "apple"))]
    const ID: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    || {
        let reading = rustix::time::clock_gettime(ID);
        // Both fields are never negative on these clocks, and nanoseconds are below 10^9.
        BootInstant::from_start(Duration::new(
            reading.tv_sec.unsigned_abs(),
            reading.tv_nsec.unsigned_abs() as u32,
        ))
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn boot_clock() -> impl Fn() -> BootInstant {
    let start = std::time::Instant::now();
    move || BootInstant::from_start(start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_clock_runs_forward() {
        let clock = Clock::boot();
        let first = clock.now();
        assert!(clock.now() >= first);
        assert!(first > BootInstant::from_start(Duration::ZERO));
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(BootInstant::NEVER.after(Duration::from_secs(1)), BootInstant::NEVER);
        assert_eq!(BootInstant::from_start(Duration::from_secs(1)).after(Duration::MAX), BootInstant::NEVER);
        let early = BootInstant::from_start(Duration::from_secs(1));
        assert_eq!(early.before(Duration::from_secs(9)), BootInstant::from_start(Duration::ZERO));
        assert_eq!(early.since(BootInstant::NEVER), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn tokio_clock_follows_a_paused_runtime() {
        let clock = Clock::tokio();
        let start = clock.now();
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(clock.now().since(start), Duration::from_secs(5));
    }
}
