//! How long things may take: computed from what the backend declares.

use std::time::Duration;

use lockkit_core::{
    backend::BackendInfo,
    limits::{RECHECK_PAUSE_MAX, RECHECK_PAUSE_MIN},
};

use crate::Time;

/// The bounds of one client.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The ttl that was granted; `Duration::MAX` where a hold ends with its process.
    pub ttl: Duration,
    /// How long a holder relies on an acknowledged lifetime.
    pub validity: Duration,
    /// Between two beats.
    pub beat: Duration,
    /// Longest time until a waiter that nothing notifies looks again.
    pub recheck: Duration,
    /// What the machine may add to each of them: timers on a paused clock, a loaded processor on a real one.
    pub slack: Duration,
}

impl Bounds {
    /// The bounds of a client with this granted ttl.
    pub fn new(info: &BackendInfo, ttl: Duration, time: Time) -> Self {
        let endless = ttl == Duration::MAX;
        let validity = if endless { ttl } else { ttl * 99 / 100 - Duration::from_millis(2) };
        // As `recheck_pause` has it, with an eighth for the jitter.
        let recheck =
            if endless { RECHECK_PAUSE_MIN } else { (ttl / 3).clamp(RECHECK_PAUSE_MIN, RECHECK_PAUSE_MAX) };
        let slack = match time {
            Time::Paused => Duration::from_millis(20),
            Time::Real => Duration::from_secs(5),
        };
        Self { ttl, validity, beat: info.beat.interval(ttl), recheck: recheck.mul_f64(1.125), slack }
    }

    /// How long the entry of a client that died delays others: what is left of its ttl, and the look of the next
    /// waiter where nothing notifies it.
    pub fn takeover(&self) -> Duration {
        if self.ttl == Duration::MAX {
            self.recheck + self.slack
        } else {
            self.ttl + self.recheck + self.slack
        }
    }

    /// How long the entry of an attempt that ended without a grant may delay others while its client is connected.
    pub fn cleanup(&self) -> Duration {
        self.recheck + self.slack
    }
}
