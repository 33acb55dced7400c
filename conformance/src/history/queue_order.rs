//! First come, first served.

use super::{Held, by_lock};

/// First come, first served: those that were seen in the queue one after another are granted in that order.
pub fn queue_order(history: &[Held]) -> Vec<String> {
    let mut faults = Vec::new();
    for mut holds in by_lock(history) {
        holds.retain(|held| held.queued.is_some());
        holds.sort_by_key(|held| held.queued);
        let overtaken = holds.windows(2).filter(|pair| {
            // Only who was there before the other had even asked came first.
            pair[0].queued.is_some_and(|queued| queued < pair[1].asked) && pair[1].granted < pair[0].granted
        });
        faults.extend(overtaken.map(|pair| format!("{:?} was overtaken by {:?}", pair[0], pair[1])));
    }
    faults
}
