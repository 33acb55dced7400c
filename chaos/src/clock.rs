//! One clock for all processes of a run.

use std::{sync::LazyLock, time::Duration};

use lockkit::{BootInstant, Clock};

/// Time since the machine was started. All processes of the machine read the same, so that what they report can be put in
/// one order.
pub(crate) fn now() -> Duration {
    static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::boot);
    CLOCK.now().since(BootInstant::from_start(Duration::ZERO))
}
