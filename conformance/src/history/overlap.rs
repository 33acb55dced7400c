//! Mutual exclusion.

use super::{HoldRecord, by_lock};

/// Checks mutual exclusion: no two clients hold one lock at the same time. O(n log n).
pub fn overlaps(history: &[HoldRecord]) -> Vec<String> {
    let mut faults = Vec::new();
    for mut holds in by_lock(history) {
        holds.sort_by_key(|held| (held.granted, held.ended));
        let mut longest: Option<&HoldRecord> = None;
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
