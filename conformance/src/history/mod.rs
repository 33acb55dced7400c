//! Checkers for recorded histories: which client was granted which lock, when, with which token, and what a resource
//! admitted.
//!
//! All times are readings of one clock since the start of the history. With the feature `linearizability`,
//! `linearizable()` needs only an order, not times. A checker returns every fault that it finds as a sentence, and nothing for a good history.
//!
//! ```
//! use std::time::Duration;
//! use lockkit_conformance::history::{HoldRecord, overlaps};
//!
//! let at = Duration::from_millis;
//! let held = |client, from, to| HoldRecord::new("a", client, client, at(0)..at(from), at(to));
//! assert!(overlaps(&[held(1, 0, 10), held(2, 10, 20)]).is_empty());
//! assert_eq!(overlaps(&[held(1, 0, 10), held(2, 9, 20)]).len(), 1);
//! ```

mod fenced_writes;
#[cfg(feature = "linearizability")]
mod linearizable;
mod operation;
mod overlap;
mod queue_order;
mod token_order;

use std::{collections::BTreeMap, ops::Range, time::Duration};

#[cfg(feature = "linearizability")]
pub use self::linearizable::linearizable;
pub use self::{
    fenced_writes::fenced_writes,
    operation::{Call, Moment, Operation, Response},
    overlap::overlaps,
    queue_order::queue_order,
    token_order::token_order,
};

/// One hold, from the client's point of view.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldRecord {
    /// The lock.
    pub lock: String,
    /// The holder: a client or, where a client re-enters, an owner.
    pub client: u64,
    /// The fencing token.
    pub token: u64,
    /// When the acquire was called.
    pub asked: Duration,
    /// When the claim was known to be in the queue; `None` when it was granted without waiting, or not observed.
    pub queued: Option<Duration>,
    /// When the acquire returned.
    pub granted: Duration,
    /// When the hold ended for the client: the release was called, the deadline passed or the loss was seen.
    pub ended: Duration,
}

impl HoldRecord {
    /// Makes the record of a hold that was not observed in the queue. `acquire` begins when the acquire was called, and
    /// ends when it returned.
    pub fn new(
        lock: impl Into<String>,
        client: u64,
        token: u64,
        acquire: Range<Duration>,
        ended: Duration,
    ) -> Self {
        let (asked, granted) = (acquire.start, acquire.end);
        Self { lock: lock.into(), client, token, asked, queued: None, granted, ended }
    }
}

/// One write at a resource that refuses lower tokens, in the order of its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Write {
    /// The token of the write.
    pub token: u64,
    /// Whether it was applied.
    pub applied: bool,
}

impl Write {
    /// Makes a write with this token.
    pub fn new(token: u64, applied: bool) -> Self {
        Self { token, applied }
    }
}

fn by_lock(history: &[HoldRecord]) -> Vec<Vec<&HoldRecord>> {
    let mut locks: BTreeMap<&str, Vec<&HoldRecord>> = BTreeMap::new();
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

    fn held(client: u64, token: u64, asked: u64, granted: u64, ended: u64) -> HoldRecord {
        HoldRecord::new("a", client, token, ms(asked)..ms(granted), ms(ended))
    }

    fn queued(held: HoldRecord, queued: u64) -> HoldRecord {
        HoldRecord { queued: Some(ms(queued)), ..held }
    }

    fn writes(writes: &[(u64, bool)]) -> Vec<Write> {
        writes.iter().map(|(token, applied)| Write::new(*token, *applied)).collect()
    }

    #[test]
    fn good_histories_have_no_fault() {
        let other = HoldRecord { lock: "b".to_owned(), ..held(3, 1, 0, 1, 90) };
        let good = [
            held(1, 1, 0, 1, 10),
            queued(held(2, 2, 2, 10, 20), 3),
            queued(held(3, 3, 4, 21, 30), 5),
            // Re-entered twice, then acquired again.
            held(3, 3, 22, 22, 23),
            held(3, 3, 27, 27, 29),
            held(1, 7, 31, 32, 33),
            // One attempt of two callers: before the second one returns, the first one has released and joined again.
            held(4, 8, 34, 36, 37),
            held(4, 8, 38, 39, 40),
            held(4, 8, 35, 41, 42),
            other,
        ];
        assert_eq!(overlaps(&good), Vec::<String>::new());
        assert_eq!(token_order(&good), Vec::<String>::new());
        assert_eq!(queue_order(&good), Vec::<String>::new());
        let good = writes(&[(1, true), (1, true), (3, true), (2, false), (3, true)]);
        assert_eq!(fenced_writes(&good), Vec::<String>::new());
    }

    /// Each bad history with the one checker that must find it.
    #[test]
    fn bad_histories_are_found() {
        type Checker = fn(&[HoldRecord]) -> Vec<String>;
        let bad: [(&str, Checker, Vec<HoldRecord>); 13] = [
            ("double hold", overlaps, vec![held(1, 1, 0, 1, 10), held(2, 2, 2, 9, 20)]),
            ("hold within a hold", overlaps, vec![held(1, 1, 0, 1, 30), held(2, 2, 2, 9, 20)]),
            (
                "overlap with an older hold than the last",
                overlaps,
                vec![held(1, 1, 0, 1, 30), held(1, 1, 2, 3, 4), held(2, 2, 2, 29, 40)],
            ),
            ("two holds at the same time", overlaps, vec![held(1, 1, 0, 1, 10), held(2, 2, 0, 1, 10)]),
            ("equal token", token_order, vec![held(1, 5, 0, 1, 2), held(2, 5, 3, 4, 5)]),
            ("equal token of one client", token_order, vec![held(1, 5, 0, 1, 2), held(1, 5, 3, 4, 5)]),
            ("falling token", token_order, vec![held(1, 5, 0, 1, 2), held(2, 4, 3, 4, 5)]),
            (
                "falling token behind a lower one",
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
                "overtaken by a claim that never waited",
                queue_order,
                vec![queued(held(1, 2, 0, 30, 40), 1), held(2, 1, 5, 20, 25)],
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
            (
                "overtaken, with a concurrent claim in between",
                queue_order,
                vec![
                    queued(held(1, 3, 0, 30, 31), 1),
                    queued(held(2, 1, 0, 10, 11), 5),
                    queued(held(3, 2, 6, 20, 21), 7),
                ],
            ),
        ];
        for (what, checker, history) in bad {
            assert_eq!(checker(&history).len(), 1, "{what}");
        }
    }

    #[test]
    fn bad_writes_are_found() {
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
