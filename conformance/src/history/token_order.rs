//! The order of fencing tokens.

use std::collections::BTreeMap;

use super::{HoldRecord, by_lock};

/// Checks token order: a grant that was returned before another acquire was called has the lower token. No two grants
/// share a token, unless a client re-enters a hold that it still has. O(n log n).
pub fn token_order(history: &[HoldRecord]) -> Vec<String> {
    let mut faults = Vec::new();
    for holds in by_lock(history) {
        let mut called = holds.clone();
        called.sort_by_key(|held| held.asked);
        // Of each token, the entry that lasts longest.
        let mut seen: BTreeMap<u64, &HoldRecord> = BTreeMap::new();
        for held in &called {
            let longest = seen.entry(held.token).or_insert(held);
            // The entry took effect between its call and its return, so possibly before the other one was released.
            // The call is what counts: an entry that has not returned yet keeps the hold for others.
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
        let (mut next, mut highest) = (0, None::<&HoldRecord>);
        for held in called {
            while let Some(before) = answered.get(next).filter(|before| before.granted < held.asked) {
                highest = highest.filter(|highest| highest.token >= before.token).or(Some(before));
                next += 1;
            }
            // Equal tokens are reported above.
            if let Some(before) = highest.filter(|before| before.token > held.token) {
                faults.push(format!("{held:?} was called after {before:?} had returned"));
            }
        }
    }
    faults
}
