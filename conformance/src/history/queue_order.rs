//! First come, first served.

use super::{Held, by_lock};

/// First come, first served: those that were seen in the queue one after another are granted in that order.
pub fn queue_order(history: &[Held]) -> Vec<String> {
    let mut faults = Vec::new();
    for mut holds in by_lock(history) {
        holds.retain(|held| held.queued.is_some());
        for later in &holds {
            // Only who was there before the other had even asked came first.
            let first = holds.iter().filter(|held| held.queued.is_some_and(|queued| queued < later.asked));
            let last_served = first.max_by_key(|held| held.granted);
            if let Some(overtaken) = last_served.filter(|held| held.granted > later.granted) {
                faults.push(format!("{overtaken:?} was overtaken by {later:?}"));
            }
        }
    }
    faults
}
