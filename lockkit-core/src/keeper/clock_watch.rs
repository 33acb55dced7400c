//! The clock check of all holds of a client, by one task with one timer.
//!
//! Timers stop while the machine is suspended, the clock does not. So the task reads the clock at least once a second
//! while any hold has a deadline, and stores the losses that it finds. Failure cases:
//!
//! * A hold is added whose deadline comes before the next check: the task is woken ([`HoldTable::add`]).
//! * A renewal moves a deadline: the task reads the clock once too early, which does no harm.
//! * The runtime is busy or blocked: callers that wait for a loss have their own timers, and each read of a guard reads
//!   the clock ([`Hold::lost`], [`Hold::is_held`]).

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

#[cfg(doc)]
use super::hold::Hold;
use super::hold_table::HoldTable;
use crate::Clock;

/// Reads the clock for all holds of a client.
pub(super) struct ClockWatch {
    holds: Arc<HoldTable>,
    clock: Clock,
    closing: CancellationToken,
}

impl ClockWatch {
    pub(super) fn new(holds: Arc<HoldTable>, clock: Clock, closing: CancellationToken) -> Self {
        Self { holds, clock, closing }
    }

    /// Runs until the client closes, which ends all holds.
    pub(super) async fn run(self) {
        loop {
            let pause = self.holds.check_clock(self.clock.now());
            let next_check = async {
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.closing.cancelled() => return,
                () = self.holds.ends_earlier() => {}
                () = next_check => {}
            }
        }
    }
}
