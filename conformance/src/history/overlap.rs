//! Mutual exclusion.

use super::{Held, by_lock};

/// Mutual exclusion: no two clients believe in one lock at the same time. O(n log n).
pub fn overlaps(history: &[Held]) -> Vec<String> {
    let mut faults = Vec::new();
    for mut holds in by_lock(history) {
        holds.sort_by_key(|held| (held.granted, held.ended));
        let mut longest: Option<&Held> = None;
        for held in holds {
            if let Some(before) = longest.filter(|before| held.granted < before.ended)
                && before.client != held.client
            {
                faults.push(format!("{held:?} while {before:?}"));
            }
            if longest.is_none_or(|before| before.ended < held.ended) {
                longest = Some(held);
            }
        }
    }
    faults
}
