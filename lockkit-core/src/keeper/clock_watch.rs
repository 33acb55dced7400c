//! The clock check of all holds of a client, by one task with one timer.
//!
//! Timers stop while the machine is suspended, the clock does not. So the task reads the clock at least once a second
//! while any hold has a deadline, and stores the losses that it finds. Failure cases:
//!
//! * A hold is added whose deadline comes before the next check: the task is woken ([`ClockWatch::added`]).
//! * A renewal moves a deadline: the task reads the clock once too early, which does no harm.
//! * The runtime is busy or blocked: callers that wait for a loss have their own timers, and each read of a guard reads
//!   the clock ([`Hold::lost`], [`Hold::is_held`]).

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;

use super::{Keeper, caught::contained, hold::Hold};
use crate::{
    BootInstant,
    backend::ClaimId,
    limits::CLOCK_READ_PAUSE_MAX,
    sync::{Mutex, lock},
};

/// When the clock is read next. Lock order: the table of holds, then this mutex.
#[derive(Debug)]
pub(super) struct ClockWatch {
    next_check: Mutex<BootInstant>,
    earlier: Notify,
}

impl Default for ClockWatch {
    fn default() -> Self {
        Self { next_check: Mutex::new(BootInstant::NEVER), earlier: Notify::new() }
    }
}

impl ClockWatch {
    /// Wakes the task if this hold, which was added to the table, ends before the next check.
    fn added(&self, hold: &Hold) {
        if hold.ends_by() < *lock(&self.next_check) {
            self.earlier.notify_one();
        }
    }
}

impl Keeper {
    /// Adds a hold to those that heartbeats renew and the clock watch visits.
    pub(super) fn add_hold(&self, hold: &Arc<Hold>) {
        let mut holds = lock(&self.holds);
        holds.insert(hold.grant().claim(), Arc::clone(hold));
        // With the table locked: the task has either seen this hold, or set the time of its next check before.
        self.clock_watch.added(hold);
    }

    /// Removes a hold that has ended.
    pub(super) fn remove_hold(&self, id: ClaimId) {
        // The removed hold is dropped after the mutex was released.
        let _removed = lock(&self.holds).remove(&id);
    }

    /// Reads the clock for all holds until the client closes, which ends them.
    pub(super) async fn watch_clock(self: Arc<Self>) {
        loop {
            let pause = self.check_holds();
            let next_check = async {
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.closing.cancelled() => return,
                () = self.clock_watch.earlier.notified() => {}
                () = next_check => {}
            }
        }
    }

    /// Marks the holds lost whose deadline has passed; returns the time until the next check, `None` if no hold has a
    /// deadline.
    fn check_holds(&self) -> Option<Duration> {
        let now = self.clock.now();
        let mut first_end = BootInstant::NEVER;
        let mut passed = Vec::new();
        let holds = lock(&self.holds);
        for hold in holds.values() {
            let end = hold.ends_by();
            if end <= now {
                passed.push(Arc::clone(hold));
            } else {
                first_end = first_end.min(end);
            }
        }
        let next_check = match first_end {
            BootInstant::NEVER => BootInstant::NEVER,
            first_end => first_end.min(now.after(CLOCK_READ_PAUSE_MAX)),
        };
        *lock(&self.clock_watch.next_check) = next_check;
        drop(holds);
        // Without the table's mutex: a loss wakes tasks.
        for hold in passed {
            // A panic, such as one of a log subscriber, must not end the checks of all other holds.
            contained(|| hold.check_clock());
        }
        (next_check != BootInstant::NEVER).then(|| next_check.since(now))
    }
}
