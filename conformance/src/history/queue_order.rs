//! First come, first served.

use std::collections::BTreeMap;

use super::{Held, by_lock};

/// First come, first served: who was seen in the queue is granted before everybody who asked after that.
pub fn queue_order(history: &[Held]) -> Vec<String> {
    let mut faults = Vec::new();
    for holds in by_lock(history) {
        // Who re-enters a hold, or joins an attempt, came with the first of those that share its token.
        let mut came: BTreeMap<u64, &Held> = BTreeMap::new();
        for held in holds {
            let first = came.entry(held.token).or_insert(held);
            if held.asked < first.asked {
                *first = held;
            }
        }
        for later in came.values() {
            // Only who was there before the other had even asked came first.
            let first = came.values().filter(|held| held.queued.is_some_and(|queued| queued < later.asked));
            let last_served = first.max_by_key(|held| held.granted);
            if let Some(overtaken) = last_served.filter(|held| held.granted > later.granted) {
                faults.push(format!("{overtaken:?} was overtaken by {later:?}"));
            }
        }
    }
    faults
}
