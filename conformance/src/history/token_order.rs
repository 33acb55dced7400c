//! Fencing tokens rise.

use std::collections::BTreeMap;

use super::{Held, by_lock};

/// Token order: a grant that was answered before another acquire was called has the lower token, and no two grants
/// share one, but for a client that re-enters a hold that it still has. O(n log n).
pub fn token_order(history: &[Held]) -> Vec<String> {
    let mut faults = Vec::new();
    for holds in by_lock(history) {
        let mut called = holds.clone();
        called.sort_by_key(|held| held.asked);
        // The entry that lasts longest, of each token.
        let mut seen: BTreeMap<u64, &Held> = BTreeMap::new();
        for held in &called {
            let longest = seen.entry(held.token).or_insert(held);
            // It entered at some time between its call and its answer, and so possibly before the other one left. By
            // the calls: an entry whose answer is on its way keeps the hold for others.
            if !std::ptr::eq(*longest, *held) && (longest.client != held.client || longest.ended < held.asked)
            {
                faults.push(format!("one token for {longest:?} and {held:?}"));
            }
            if longest.ended < held.ended {
                *longest = held;
            }
        }
        let mut answered = holds;
        answered.sort_by_key(|held| held.granted);
        let (mut next, mut highest) = (0, None::<&Held>);
        for held in called {
            while let Some(before) = answered.get(next).filter(|before| before.granted < held.asked) {
                highest = highest.filter(|highest| highest.token >= before.token).or(Some(before));
                next += 1;
            }
            // Equal ones are told above.
            if let Some(before) = highest.filter(|before| before.token > held.token) {
                faults.push(format!("{held:?} was called after {before:?} was answered"));
            }
        }
    }
    faults
}
