//! The holds of a client: those that heartbeats renew and whose deadlines the clock watch checks.
//!
//! No hold is accessed or dropped while the table is locked, because that may wake tasks; only its deadline is read.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::sync::Notify;

use super::{caught::contained, hold::Hold, loss::LossReason};
use crate::{
    BootInstant,
    backend::{ClaimId, Grant},
    limits::CLOCK_READ_PAUSE_MAX,
    sync::{Mutex, lock},
};

/// The holds of one client.
#[derive(Debug)]
pub(super) struct HoldTable {
    table: Mutex<Table>,
    /// Wakes the clock watch for a hold that ends before the next check.
    earlier: Notify,
}

#[derive(Debug)]
struct Table {
    holds: HashMap<ClaimId, Arc<Hold>>,
    /// When the clock is read next for all holds.
    next_check: BootInstant,
}

impl Default for HoldTable {
    fn default() -> Self {
        let table = Table { holds: HashMap::new(), next_check: BootInstant::NEVER };
        Self { table: Mutex::new(table), earlier: Notify::new() }
    }
}

impl HoldTable {
    pub(super) fn add(&self, hold: &Arc<Hold>) {
        let mut table = lock(&self.table);
        table.holds.insert(hold.grant().claim(), Arc::clone(hold));
        // With the table locked: the clock watch has either seen this hold, or set the time of its next check before.
        if hold.ends_by() < table.next_check {
            self.earlier.notify_one();
        }
    }

    /// Removes a hold that has ended.
    pub(super) fn remove(&self, id: ClaimId) {
        // The removed hold is dropped after the mutex was released.
        let _removed = lock(&self.table).holds.remove(&id);
    }

    pub(super) fn get(&self, id: ClaimId) -> Option<Arc<Hold>> {
        lock(&self.table).holds.get(&id).cloned()
    }

    #[cfg(feature = "testing")]
    pub(super) fn len(&self) -> usize {
        lock(&self.table).holds.len()
    }

    /// Returns the grants that a heartbeat must renew.
    pub(super) fn to_renew(&self) -> Vec<Grant> {
        let holds = self.all();
        holds.iter().filter(|hold| hold.wants_renewal()).map(|hold| hold.grant().clone()).collect()
    }

    /// Returns how many holds have not ended.
    pub(super) fn held(&self) -> usize {
        self.all().iter().filter(|hold| hold.end().is_none()).count()
    }

    /// Ends all holds with the session to which they belong; a new session is opened only after this.
    pub(super) fn lose_all(&self, why: LossReason) {
        for hold in self.all() {
            hold.lose(why);
        }
    }

    fn all(&self) -> Vec<Arc<Hold>> {
        lock(&self.table).holds.values().cloned().collect()
    }

    /// Marks the holds lost whose deadline has passed; returns the time until the next check, `None` if no hold has a
    /// deadline.
    pub(super) fn check_clock(&self, now: BootInstant) -> Option<Duration> {
        let mut first_end = BootInstant::NEVER;
        let mut passed = Vec::new();
        let mut table = lock(&self.table);
        for hold in table.holds.values() {
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
        table.next_check = next_check;
        drop(table);
        for hold in passed {
            // A panic, such as one of a log subscriber, must not end the checks of all other holds.
            contained(|| hold.check_clock());
        }
        (next_check != BootInstant::NEVER).then(|| next_check.since(now))
    }

    /// Waits for a hold that ends before the next check.
    pub(super) async fn ends_earlier(&self) {
        self.earlier.notified().await;
    }
}
