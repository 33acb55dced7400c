//! Bounds on time, computed from what the backend declares.

use std::time::Duration;

use anyhow::{Result, ensure};
use lockkit_core::{
    backend::BackendInfo,
    lease,
    limits::{RECHECK_PAUSE_MAX, RECHECK_PAUSE_MIN},
};

use crate::Time;

/// What a busy machine may add to the quickest of several attempts.
const QUICKEST_SLACK: Duration = Duration::from_secs(1);

/// The bounds of one client.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Bounds {
    /// The granted ttl; `Duration::MAX` where a hold ends with its process.
    pub ttl: Duration,
    /// How long a holder may rely on an acknowledged lifetime.
    pub validity: Duration,
    /// The time between two heartbeats.
    pub heartbeat: Duration,
    /// The longest time until a waiter without a notification re-checks.
    pub recheck: Duration,
    /// What the machine may add to each bound: timers on a paused clock, a loaded processor on a real one.
    pub slack: Duration,
}

impl Bounds {
    /// Returns the bounds of a client with this granted ttl.
    pub fn new(info: &BackendInfo, ttl: Duration, time: Time) -> Self {
        let endless = ttl == Duration::MAX;
        // The same as `recheck_pause`; the eighth below is its jitter.
        let recheck =
            if endless { RECHECK_PAUSE_MIN } else { (ttl / 3).clamp(RECHECK_PAUSE_MIN, RECHECK_PAUSE_MAX) };
        let slack = match time {
            Time::Paused => Duration::from_millis(20),
            Time::Real => Duration::from_secs(5),
        };
        Self {
            ttl,
            validity: lease::validity(ttl),
            heartbeat: info.heartbeat.interval(ttl),
            recheck: recheck.mul_f64(1.125),
            slack,
        }
    }

    /// How long the entry of a dead client may delay others: the rest of its ttl, and the re-check of the next waiter.
    pub fn takeover(&self) -> Duration {
        if self.ttl == Duration::MAX {
            self.recheck + self.slack
        } else {
            self.ttl + self.recheck + self.slack
        }
    }

    /// The same as the backend [documents](crate::Harness::expiry_delay) it. A busy machine may exceed it now and then.
    pub fn documented_takeover(&self, expiry_delay: Duration) -> Duration {
        let lease = if self.ttl == Duration::MAX { Duration::ZERO } else { self.ttl };
        lease + expiry_delay + self.slack.min(QUICKEST_SLACK)
    }

    /// How long a waiter whom no notification reaches waits in the quickest of several attempts.
    pub(crate) fn quickest_look(&self) -> Duration {
        self.recheck + self.slack.min(QUICKEST_SLACK)
    }

    /// How long a holder may take to notice what its next heartbeats show.
    ///
    /// Fails where the hold's own deadline could be sooner, which ends the hold without any heartbeat.
    pub(crate) fn notice(&self, heartbeats: u32) -> Result<Duration> {
        let bound = self.heartbeat * heartbeats + self.slack;
        ensure!(
            bound < self.validity,
            "a hold ends by itself after {:?}, not after {bound:?}",
            self.validity
        );
        Ok(bound)
    }

    /// How long the entry of an attempt without a grant may delay others while its client is connected.
    pub fn cleanup(&self) -> Duration {
        self.recheck + self.slack
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::backend::Lifetime;

    use super::*;

    /// In numbers: the suite takes the rule from the core, whose mistakes it must find.
    #[test]
    fn lease_of_ten_seconds_is_valid_for_one_percent_and_two_milliseconds_less() {
        let info = BackendInfo::new("any", Lifetime::Session);
        let bounds = Bounds::new(&info, Duration::from_secs(10), Time::Real);
        assert_eq!(bounds.validity, Duration::from_millis(9_898));
    }
}
