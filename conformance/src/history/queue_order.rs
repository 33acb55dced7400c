//! First come, first served.

use std::collections::BTreeMap;

use super::{HoldRecord, by_lock};

/// Checks that claims are granted in order of arrival: a claim that was seen in the queue comes before every later one.
pub fn queue_order(history: &[HoldRecord]) -> Vec<String> {
    let mut faults = Vec::new();
    for holds in by_lock(history) {
        // A caller that re-enters a hold or joins an attempt arrived with the first one of the same token.
        let mut arrivals: BTreeMap<u64, &HoldRecord> = BTreeMap::new();
        for held in holds {
            let first = arrivals.entry(held.token).or_insert(held);
            if held.asked < first.asked {
                *first = held;
            }
        }
        for later in arrivals.values() {
            // Only a claim that was queued before the other one was made came first.
            let first =
                arrivals.values().filter(|held| held.queued.is_some_and(|queued| queued < later.asked));
            let last_granted = first.max_by_key(|held| held.granted);
            if let Some(overtaken) = last_granted.filter(|held| held.granted > later.granted) {
                faults.push(format!("{overtaken:?} was overtaken by {later:?}"));
            }
        }
    }
    faults
}
