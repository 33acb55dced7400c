//! When a lifetime that the server started must be treated as over by its holder.

use std::time::Duration;

use crate::{
    BootInstant,
    limits::{CLOCK_RATE_ERROR_PERCENT, CLOCK_READ_ERROR},
};

/// The moment from which a lifetime of `ttl` that the server started not before `armed_at` must not be relied on.
///
/// The server cannot end it before `armed_at + ttl`, whatever the reply's way took; the rate of the two clocks may
/// differ by [`CLOCK_RATE_ERROR_PERCENT`], and a reading may be late by [`CLOCK_READ_ERROR`].
pub(crate) fn deadline(armed_at: BootInstant, ttl: Duration) -> BootInstant {
    let sure = ttl - ttl / 100 * CLOCK_RATE_ERROR_PERCENT;
    armed_at.after(sure).before(CLOCK_READ_ERROR)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ten_seconds_are_relied_on_for_a_hundredth_and_two_milliseconds_less() {
        let armed_at = BootInstant::from_start(Duration::from_secs(100));
        let expected = BootInstant::from_start(Duration::from_millis(100_000 + 9_900 - 2));
        assert_eq!(deadline(armed_at, Duration::from_secs(10)), expected);
    }

    #[test]
    fn what_has_no_ttl_has_no_deadline() {
        let armed_at = BootInstant::from_start(Duration::from_secs(1));
        assert!(deadline(armed_at, Duration::MAX).after(CLOCK_READ_ERROR) == BootInstant::NEVER);
    }

    proptest! {
        #[test]
        fn a_deadline_is_before_the_servers(armed_ms in 0_u64..1_000_000, ttl_ms in 1_u64..100_000_000) {
            let armed_at = BootInstant::from_start(Duration::from_millis(armed_ms));
            let ttl = Duration::from_millis(ttl_ms);
            prop_assert!(deadline(armed_at, ttl) < armed_at.after(ttl));
        }
    }
}
