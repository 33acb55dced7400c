//! How long a client may rely on a lease: the rule that every deadline follows.
//!
//! A server starts a lease after the request for it was sent, so a client that counts from the sending counts from too
//! early, never from too late. What remains is the error of the two clocks: their rates may differ by
//! [`CLOCK_RATE_ERROR_PERCENT`], and a reading may be late by [`CLOCK_READ_ERROR`]. This module allows for that margin
//! once.

use std::time::Duration;

use crate::{
    BootInstant,
    limits::{CLOCK_RATE_ERROR_PERCENT, CLOCK_READ_ERROR},
};

/// Returns the instant from which a lease of `ttl` must not be relied on.
///
/// It is [`BootInstant::NEVER`] for `Duration::MAX`, the ttl of a hold without a lease.
///
/// `armed_at` is a reading from before the sending of the request that started or renewed the lease. If several servers
/// were asked, it is the reading from before the first request.
pub fn deadline(armed_at: BootInstant, ttl: Duration) -> BootInstant {
    if ttl == Duration::MAX {
        return BootInstant::NEVER;
    }
    armed_at.after(ttl - rate_error(ttl)).before(CLOCK_READ_ERROR)
}

/// Returns how long a holder relies on a lease of `ttl`, counted from the sending of its request.
pub fn validity(ttl: Duration) -> Duration {
    match ttl {
        Duration::MAX => ttl,
        _ => (ttl - rate_error(ttl)).saturating_sub(CLOCK_READ_ERROR),
    }
}

/// Returns how long a server that has lost its data must grant nothing.
///
/// After this time every lease of at most `max_ttl` that it may have granted has ended, by the clock of its holder and
/// by the clock that measures this pause.
pub fn quarantine(max_ttl: Duration) -> Duration {
    max_ttl + 2 * (rate_error(max_ttl) + CLOCK_READ_ERROR)
}

/// Returns the ttl of a lease that lives for at least `time`, by the clock of the client that asks for it: the server's
/// clock may be faster.
pub fn ttl_lasting(time: Duration) -> Duration {
    time.saturating_add(rate_error(time)).saturating_add(CLOCK_READ_ERROR)
}

/// Returns how much time has passed at a server, at least, while `elapsed` has passed by the client's clock: the server's
/// clock may be slower.
pub fn elapsed_at_least(elapsed: Duration) -> Duration {
    elapsed / 100 * (100 - CLOCK_RATE_ERROR_PERCENT)
}

fn rate_error(ttl: Duration) -> Duration {
    ttl / 100 * CLOCK_RATE_ERROR_PERCENT
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> BootInstant {
        BootInstant::from_start(Duration::from_millis(ms))
    }

    #[test]
    fn lease_of_ten_seconds_is_valid_for_one_percent_and_two_milliseconds_less() {
        let ttl = Duration::from_secs(10);
        assert_eq!(deadline(at(100_000), ttl), at(100_000 + 9_900 - 2));
        assert_eq!(validity(ttl), Duration::from_millis(9_898));
    }

    #[test]
    fn hold_without_ttl_has_no_deadline() {
        assert_eq!(deadline(at(1_000), Duration::MAX), BootInstant::NEVER);
        assert_eq!(validity(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn ttl_of_a_millisecond_is_over_when_it_starts() {
        let ttl = Duration::from_millis(1);
        assert!(deadline(at(1_000), ttl) < at(1_000));
        assert_eq!(validity(ttl), Duration::ZERO);
    }

    #[test]
    fn quarantine_of_a_minute_is_a_little_more_than_one() {
        assert_eq!(quarantine(Duration::from_secs(60)), Duration::from_millis(61_204));
    }

    #[test]
    fn lease_that_lasts_for_ever_is_as_long_as_can_be() {
        assert_eq!(ttl_lasting(Duration::MAX), Duration::MAX);
    }

    proptest! {
        #[test]
        fn deadline_is_before_the_end_at_the_server(armed_ms in 1_000_u64..1_000_000, ttl_ms in 1_u64..100_000_000) {
            let ttl = Duration::from_millis(ttl_ms);
            let deadline = deadline(at(armed_ms), ttl);
            // By any server's clock whose rate differs by no more than is allowed.
            prop_assert!(deadline < at(armed_ms).after(ttl.mul_f64(0.99)));
            // Not earlier than needed.
            prop_assert!(deadline.after(CLOCK_READ_ERROR + ttl / 50) >= at(armed_ms).after(ttl));
        }

        #[test]
        fn deadline_ends_the_validity(armed_ms in 1_000_u64..1_000_000, ttl_ms in 100_u64..100_000_000) {
            let ttl = Duration::from_millis(ttl_ms);
            prop_assert_eq!(deadline(at(armed_ms), ttl).since(at(armed_ms)), validity(ttl));
        }

        #[test]
        fn no_lease_outlives_the_quarantine(ttl_ms in 1_000_u64..100_000_000) {
            let ttl = Duration::from_millis(ttl_ms);
            // The holder's clock is slower, the clock that measures the quarantine faster.
            prop_assert!(validity(ttl).mul_f64(1.01) < quarantine(ttl).mul_f64(0.995));
        }

        #[test]
        fn lease_lasts_for_the_time_at_a_faster_server(time_ms in 0_u64..100_000_000) {
            let time = Duration::from_millis(time_ms);
            prop_assert!(ttl_lasting(time) >= time + time / 100 + CLOCK_READ_ERROR);
            // Not longer than needed.
            prop_assert!(ttl_lasting(time) <= time + time / 50 + CLOCK_READ_ERROR);
        }

        #[test]
        fn less_time_has_passed_at_a_slower_server(elapsed_ms in 0_u64..100_000_000) {
            let elapsed = Duration::from_millis(elapsed_ms);
            prop_assert!(elapsed_at_least(elapsed) <= elapsed - elapsed / 100);
            // Not less than needed.
            prop_assert!(elapsed_at_least(elapsed) >= elapsed - elapsed / 50);
        }
    }
}
