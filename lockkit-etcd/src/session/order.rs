//! The order of queues, as far as this client knows it: who is next after a hold.
//!
//! Reading a queue costs the server time in proportion to its length, so one read serves many releases. It returns a
//! *stretch* of the queue; a handoff carries the rest of it on to the next holder.
//!
//! A stretch is complete: at the revision of the read, the queue had no other key that was created after the stretch's
//! beginning and before its last key. That remains so. Keys that are created later have higher create revisions, so
//! nobody enters a stretch; contenders only leave it. So the first key of the stretch that was created after a hold is
//! the hold's successor as long as it exists, and the transaction that hands the lock off compares that.
//!
//! Failure cases:
//!
//! * A contender of the stretch gives up, or its session ends. The compare fails, the stretch is forgotten, and the
//!   queue is read again.
//! * A hold is older than the beginning of the stretch: others may be between them, so the stretch says nothing.
//! * A handoff is lost, and its stretch with it. The next holder reads the queue.
//! * The store is restored from a backup. A contender that had left may be in the queue again, but nobody waits under
//!   its key any more (`docs/decisions/0021-etcd-restored-from-a-backup.md`).

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard},
};

use lockkit_core::support::lock;

use crate::{
    handoff::NextContender,
    keys::QueuePath,
    wire::{QueuedKey, Revision},
};

/// Maximum number of contenders that one read returns.
pub(crate) const CONTENDERS_PER_READ: i64 = 128;

/// Maximum number of contenders behind its own that a handoff names. Each takes some 50 bytes of every handoff.
const NEXT_PER_HANDOFF: usize = 16;

/// Maximum number of queues whose order is remembered; all are forgotten when it is reached.
const REMEMBERED_MAX: usize = 256;

/// Consecutive contenders of a queue, by creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// It is complete from this create revision on, exclusive.
    after: Revision,
    keys: VecDeque<QueuedKey>,
}

impl Stretch {
    /// Returns the stretch of these keys; `None` if there are none, or if they are not in the order of creation after
    /// this revision.
    pub(crate) fn new(after: Revision, keys: Vec<QueuedKey>) -> Option<Self> {
        let last =
            keys.iter().try_fold(after, |before, key| (before < key.created).then_some(key.created))?;
        (last > after).then(|| Self { after, keys: keys.into() })
    }

    /// Returns whether this stretch covers the other one.
    fn contains(&self, other: &Self) -> bool {
        let last = |stretch: &Self| stretch.keys.back().map(|key| key.created);
        self.after <= other.after && last(self) >= last(other)
    }

    /// Returns the successor of a hold with this create revision; forgets those in front of it.
    fn successor(&mut self, own: Revision) -> Option<QueuedKey> {
        if own < self.after {
            return None;
        }
        while self.keys.front().is_some_and(|key| key.created <= own) {
            self.keys.pop_front();
        }
        self.keys.front().cloned()
    }
}

/// What a session knows of its queues.
#[derive(Debug, Default)]
pub(crate) struct KnownOrder(Mutex<HashMap<QueuePath, Stretch>>);

impl KnownOrder {
    /// Remembers what a read or a handoff has shown, unless more is known already.
    pub(crate) fn learn(&self, queue: &QueuePath, stretch: Stretch) {
        let mut known = self.lock();
        if known.get(queue).is_some_and(|known| known.contains(&stretch)) {
            return;
        }
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(queue.clone(), stretch);
    }

    /// Forgets what is known of a queue: it was wrong.
    pub(crate) fn forget(&self, queue: &QueuePath) {
        self.lock().remove(queue);
    }

    /// Returns the successor of the hold with this create revision; `None` if it is not known.
    pub(crate) fn successor(&self, queue: &QueuePath, own: Revision) -> Option<QueuedKey> {
        let mut known = self.lock();
        let successor = known.get_mut(queue)?.successor(own);
        if successor.is_none() {
            known.remove(queue);
        }
        successor
    }

    /// Returns who is next after this successor, for a handoff to it: keys behind `path`, which its queue's begin with.
    pub(crate) fn next_after(
        &self,
        queue: &QueuePath,
        successor: &QueuedKey,
        path: &str,
    ) -> Vec<NextContender> {
        let known = self.lock();
        let Some(stretch) = known.get(queue) else { return Vec::new() };
        let behind = stretch.keys.iter().skip_while(|key| key.created <= successor.created);
        // With raw names the successor's queue may be a part of this one.
        let in_its_queue = behind.filter(|key| key.key.starts_with(path.as_bytes()));
        // What cannot be written ends the list, which has to be complete.
        let entry = |key: &QueuedKey| {
            Some((str::from_utf8(&key.key).ok()?.strip_prefix(path)?.to_owned(), key.created))
        };
        in_its_queue.map_while(entry).take(NEXT_PER_HANDOFF).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueuePath, Stretch>> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::LockName;

    use super::*;
    use crate::keys::{Layout, Names};

    fn queue(name: &str) -> QueuePath {
        Layout::new("", Names::Raw).queue(&LockName::new(name).unwrap()).unwrap()
    }

    fn keys(of: &[(&str, Revision)]) -> Vec<QueuedKey> {
        of.iter().map(|(key, created)| QueuedKey { key: (*key).into(), created: *created }).collect()
    }

    fn created(key: Option<QueuedKey>) -> Option<Revision> {
        key.map(|key| key.created)
    }

    #[test]
    fn successor_is_the_first_that_was_created_later() {
        let (order, x) = (KnownOrder::default(), queue("x"));
        order.learn(&x, Stretch::new(5, keys(&[("x/a", 7), ("x/b", 9), ("x/c", 12)])).unwrap());
        assert_eq!(created(order.successor(&x, 5)), Some(7));
        assert_eq!(created(order.successor(&x, 7)), Some(9));
        assert_eq!(created(order.successor(&x, 10)), Some(12));
        assert_eq!(order.successor(&queue("y"), 7), None);
        assert_eq!(order.successor(&x, 12), None);
        assert!(order.lock().is_empty());
    }

    /// Others may be between such a hold and the first of the stretch.
    #[test]
    fn stretch_says_nothing_about_a_hold_before_its_beginning() {
        let (order, x) = (KnownOrder::default(), queue("x"));
        order.learn(&x, Stretch::new(5, keys(&[("x/a", 7)])).unwrap());
        assert_eq!(order.successor(&x, 4), None);
    }

    #[test]
    fn shorter_stretch_does_not_replace_a_longer_one() {
        let (order, x) = (KnownOrder::default(), queue("x"));
        order.learn(&x, Stretch::new(5, keys(&[("x/a", 7), ("x/b", 9), ("x/c", 12)])).unwrap());
        order.learn(&x, Stretch::new(7, keys(&[("x/b", 9)])).unwrap());
        assert_eq!(created(order.successor(&x, 9)), Some(12));
        order.learn(&x, Stretch::new(9, keys(&[("x/c", 12), ("x/d", 13)])).unwrap());
        assert_eq!(created(order.successor(&x, 12)), Some(13));
    }

    #[test]
    fn stretch_out_of_order_is_refused() {
        for wrong in [&[][..], &[("x/a", 5)], &[("x/a", 8), ("x/b", 7)], &[("x/a", 8), ("x/b", 8)]] {
            assert_eq!(Stretch::new(5, keys(wrong)), None, "{wrong:?}");
        }
    }

    #[test]
    fn handoff_names_those_behind_its_claim_in_its_queue() {
        let (order, a) = (KnownOrder::default(), queue("a"));
        let all = keys(&[("a/1", 7), ("a/b/2", 8), ("a/3", 9), ("a/b/4", 10)]);
        order.learn(&a, Stretch::new(5, all.clone()).unwrap());
        let next = |nth: usize, path| order.next_after(&a, &all[nth], path);
        assert_eq!(next(0, "a/").iter().map(|(_, created)| *created).collect::<Vec<_>>(), [8, 9, 10]);
        assert_eq!(next(1, "a/b/"), [("4".to_owned(), 10)]);
        assert_eq!(next(3, "a/b/"), []);
    }

    #[test]
    fn handoffs_and_memory_are_bounded() {
        let (order, x) = (KnownOrder::default(), queue("x"));
        let many: Vec<(String, Revision)> = (1..100).map(|nth| (format!("x/{nth}"), nth)).collect();
        let many = many.iter().map(|(key, nth)| (&**key, *nth)).collect::<Vec<_>>();
        for nth in 0..=REMEMBERED_MAX {
            order.learn(&queue(&nth.to_string()), Stretch::new(0, keys(&many[..1])).unwrap());
        }
        assert!(order.lock().len() <= REMEMBERED_MAX);
        order.learn(&x, Stretch::new(0, keys(&many)).unwrap());
        assert_eq!(order.next_after(&x, &keys(&many)[0], "x/").len(), NEXT_PER_HANDOFF);
    }

    #[test]
    fn key_that_is_no_text_ends_what_a_handoff_names() {
        let (order, x) = (KnownOrder::default(), queue("x"));
        let mut all = keys(&[("x/a", 7), ("x/b", 8), ("x/?", 9), ("x/d", 10)]);
        all[2].key = b"x/\xff".to_vec();
        order.learn(&x, Stretch::new(5, all.clone()).unwrap());
        assert_eq!(order.next_after(&x, &all[0], "x/"), [("b".to_owned(), 8)]);
    }

    /// It shows who comes after more of the holds.
    #[test]
    fn stretch_that_begins_earlier_is_not_covered_by_a_later_one() {
        let (order, x) = (KnownOrder::default(), queue("x"));
        order.learn(&x, Stretch::new(9, keys(&[("x/c", 12), ("x/d", 13)])).unwrap());
        order.learn(&x, Stretch::new(5, keys(&[("x/a", 7), ("x/b", 9), ("x/c", 12)])).unwrap());
        assert_eq!(created(order.successor(&x, 5)), Some(7));
    }
}
