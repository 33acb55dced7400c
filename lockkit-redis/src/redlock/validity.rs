//! Until when a majority is worth something: the arithmetic, and nothing else.

use std::time::Duration;

use lockkit_core::{
    BootInstant,
    limits::{CLOCK_RATE_ERROR_PERCENT, CLOCK_READ_ERROR},
};

/// The moment from which keys that were set with this ttl, the first of them not before `asked_at`, must not be relied
/// on. However long the nodes took to answer: their keys cannot end before.
pub(super) fn deadline(asked_at: BootInstant, ttl: Duration) -> BootInstant {
    let sure = ttl - ttl / 100 * CLOCK_RATE_ERROR_PERCENT;
    asked_at.after(sure).before(CLOCK_READ_ERROR)
}

/// How long a node that has lost its data stays out: whatever relied on what it had has ended by then, by the clock of
/// whoever held it.
pub(super) fn quarantine(max_ttl: Duration) -> Duration {
    max_ttl + max_ttl / 100 * (2 * CLOCK_RATE_ERROR_PERCENT) + 2 * CLOCK_READ_ERROR
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> BootInstant {
        BootInstant::from_start(Duration::from_millis(ms))
    }

    #[test]
    fn ten_seconds_are_worth_a_hundredth_and_two_milliseconds_less() {
        assert_eq!(deadline(at(100_000), Duration::from_secs(10)), at(100_000 + 9_900 - 2));
    }

    #[test]
    fn a_ttl_of_a_millisecond_is_worth_nothing() {
        assert!(deadline(at(1_000), Duration::from_millis(1)) < at(1_000));
    }

    #[test]
    fn a_minute_of_quarantine_is_a_little_more_than_one() {
        assert_eq!(quarantine(Duration::from_secs(60)), Duration::from_millis(61_204));
    }

    proptest! {
        #[test]
        fn what_is_relied_on_ends_before_the_first_key_by_any_allowed_clock(
            asked_ms in 1_000_u64..1_000_000,
            ttl_ms in 100_u64..100_000_000,
        ) {
            let ttl = Duration::from_millis(ttl_ms);
            let relied_on = deadline(at(asked_ms), ttl).since(at(asked_ms));
            // A node's clock runs faster by what is allowed for: its key ends that much earlier.
            prop_assert!(relied_on <= ttl.mul_f64(0.99));
            prop_assert!(relied_on + CLOCK_READ_ERROR + ttl / 50 >= ttl);
        }

        #[test]
        fn nothing_outlives_the_quarantine(ttl_ms in 1_000_u64..100_000_000) {
            let ttl = Duration::from_millis(ttl_ms);
            let relied_on = deadline(at(0), ttl).since(at(0));
            // The holder's clock runs slower, and that of whoever waits faster.
            prop_assert!(relied_on.mul_f64(1.01) < quarantine(ttl).mul_f64(0.995));
        }
    }
}
