//! Checkers for recorded histories: what was granted to whom, when, with which token, and what a resource admitted.
//!
//! All times are readings of one clock since the start of the history. A checker answers with every fault it finds,
//! each as a sentence; none for a good history.
//!
//! ```
//! use std::time::Duration;
//! use lockkit_conformance::history::{Held, overlaps};
//!
//! let at = Duration::from_millis;
//! let held = |client, from, to| Held {
//!     lock: "a".into(), client, token: client, asked: at(0), queued: None, granted: at(from), ended: at(to),
//! };
//! assert!(overlaps(&[held(1, 0, 10), held(2, 10, 20)]).is_empty());
//! assert_eq!(overlaps(&[held(1, 0, 10), held(2, 9, 20)]).len(), 1);
//! ```

use std::{collections::BTreeMap, time::Duration};

/// One hold, as its client believed in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The lock.
    pub lock: String,
    /// Who held it: a client or, where a client re-enters, an owner.
    pub client: u64,
    /// The fencing token.
    pub token: u64,
    /// When the acquire was called.
    pub asked: Duration,
    /// When the claim was known to be in the queue; `None` when it was granted without waiting, or nobody looked.
    pub queued: Option<Duration>,
    /// When the acquire was answered.
    pub granted: Duration,
    /// When the client stopped believing: the release was called, the deadline passed or the loss was seen.
    pub ended: Duration,
}

/// One write at a resource that refuses lower tokens, in the order in which the resource saw them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The token that came with it.
    pub token: u64,
    /// Whether it was applied.
    pub applied: bool,
}

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

/// Token order: a grant that was answered before another acquire was called has the lower token, and no two grants
/// share one, but for a client that re-enters a hold that it still has. O(n log n).
pub fn token_order(history: &[Held]) -> Vec<String> {
    let mut faults = Vec::new();
    for holds in by_lock(history) {
        let mut seen: BTreeMap<u64, &Held> = BTreeMap::new();
        for held in &holds {
            let before = seen.insert(held.token, held);
            let re_entered = |before: &Held| {
                before.client == held.client && held.granted <= before.ended && before.granted <= held.ended
            };
            if let Some(before) = before.filter(|before| !re_entered(before)) {
                faults.push(format!("one token for {before:?} and {held:?}"));
            }
        }
        let mut answered = holds.clone();
        answered.sort_by_key(|held| held.granted);
        let mut called = holds;
        called.sort_by_key(|held| held.asked);
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

/// The fenced resource: it applies a write if and only if no higher token was applied before.
pub fn fenced_writes(writes: &[Write]) -> Vec<String> {
    let (mut faults, mut highest) = (Vec::new(), 0);
    for (number, write) in writes.iter().enumerate() {
        match write.applied {
            true if write.token < highest => {
                faults.push(format!("write {number} with token {} was applied after {highest}", write.token));
            }
            false if write.token >= highest => {
                faults.push(format!("write {number} with token {} was refused at {highest}", write.token));
            }
            _ => {}
        }
        if write.applied {
            highest = highest.max(write.token);
        }
    }
    faults
}

fn by_lock(history: &[Held]) -> Vec<Vec<&Held>> {
    let mut locks: BTreeMap<&str, Vec<&Held>> = BTreeMap::new();
    for held in history {
        locks.entry(&held.lock).or_default().push(held);
    }
    locks.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn held(client: u64, token: u64, asked: u64, granted: u64, ended: u64) -> Held {
        Held {
            lock: "a".to_owned(),
            client,
            token,
            asked: ms(asked),
            queued: None,
            granted: ms(granted),
            ended: ms(ended),
        }
    }

    fn queued(held: Held, queued: u64) -> Held {
        Held { queued: Some(ms(queued)), ..held }
    }

    fn writes(writes: &[(u64, bool)]) -> Vec<Write> {
        writes.iter().map(|(token, applied)| Write { token: *token, applied: *applied }).collect()
    }

    #[test]
    fn good_histories_have_no_fault() {
        let other = Held { lock: "b".to_owned(), ..held(3, 1, 0, 1, 90) };
        let good = [
            held(1, 1, 0, 1, 10),
            queued(held(2, 2, 2, 10, 20), 3),
            queued(held(3, 3, 4, 21, 30), 5),
            // Re-entered, then taken anew.
            held(3, 3, 22, 22, 28),
            held(1, 7, 31, 32, 33),
            other,
        ];
        assert_eq!(overlaps(&good), Vec::<String>::new());
        assert_eq!(token_order(&good), Vec::<String>::new());
        assert_eq!(queue_order(&good), Vec::<String>::new());
        let good = writes(&[(1, true), (1, true), (3, true), (2, false), (3, true)]);
        assert_eq!(fenced_writes(&good), Vec::<String>::new());
    }

    /// Each with the one checker that must find it.
    #[test]
    fn bad_histories_are_found() {
        type Checker = fn(&[Held]) -> Vec<String>;
        let bad: [(&str, Checker, Vec<Held>); 11] = [
            ("double hold", overlaps, vec![held(1, 1, 0, 1, 10), held(2, 2, 2, 9, 20)]),
            ("hold within a hold", overlaps, vec![held(1, 1, 0, 1, 30), held(2, 2, 2, 9, 20)]),
            (
                "overlap with an older hold than the last",
                overlaps,
                vec![held(1, 1, 0, 1, 30), held(1, 1, 2, 3, 4), held(2, 2, 2, 29, 40)],
            ),
            ("both at once", overlaps, vec![held(1, 1, 0, 1, 10), held(2, 2, 0, 1, 10)]),
            ("equal token", token_order, vec![held(1, 5, 0, 1, 2), held(2, 5, 3, 4, 5)]),
            ("equal token of one client", token_order, vec![held(1, 5, 0, 1, 2), held(1, 5, 3, 4, 5)]),
            ("token back", token_order, vec![held(1, 5, 0, 1, 2), held(2, 4, 3, 4, 5)]),
            (
                "token back behind a lower one",
                token_order,
                vec![held(1, 9, 0, 1, 2), held(2, 3, 0, 3, 4), held(3, 5, 5, 6, 7)],
            ),
            ("re-entry with an older token", token_order, vec![held(1, 5, 0, 1, 9), held(1, 4, 3, 4, 5)]),
            (
                "overtaken",
                queue_order,
                vec![queued(held(1, 2, 0, 30, 40), 1), queued(held(2, 1, 5, 20, 25), 6)],
            ),
            (
                "overtaken in the middle",
                queue_order,
                vec![
                    queued(held(1, 1, 0, 10, 11), 1),
                    queued(held(2, 3, 2, 30, 31), 3),
                    queued(held(3, 2, 4, 20, 21), 5),
                ],
            ),
        ];
        for (what, checker, history) in bad {
            assert_eq!(checker(&history).len(), 1, "{what}");
        }
        for (what, history) in [
            ("a stale write applied", writes(&[(2, true), (1, true)])),
            ("a good write refused", writes(&[(1, true), (2, false)])),
            ("the same grant refused", writes(&[(2, true), (2, false)])),
            ("a stale write applied after a refusal", writes(&[(3, true), (2, false), (1, true)])),
        ] {
            assert_eq!(fenced_writes(&history).len(), 1, "{what}");
        }
    }
}
