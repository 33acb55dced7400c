//! One clock for all processes of a run.

use std::{sync::LazyLock, time::Duration};

use lockkit::{BootInstant, Clock};

/// Returns the time since the machine was started. All processes of the machine read the same clock, so that their
/// reports can be ordered.
pub(crate) fn now() -> Duration {
    static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::boot);
    CLOCK.now().since(BootInstant::from_start(Duration::ZERO))
}
