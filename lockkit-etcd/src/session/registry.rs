//! The claims of one session, each between its first request and its confirmed end.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
};

use lockkit_core::{backend::ClaimId, support::lock};

use super::{entry::QueueEntry, order::KnownOrder};
use crate::{
    broken::BrokenHold,
    forms::ExclusiveKey,
    handoff::Handoff,
    keys::QueuePath,
    wire::{QueuedKey, Revision},
};

/// All claims of a session that may have a key at the server, and what is known of their queues.
#[derive(Debug, Default)]
pub(crate) struct ClaimRegistry {
    table: Mutex<ClaimTable>,
    pub(crate) order: KnownOrder,
}

#[derive(Debug, Default)]
struct ClaimTable {
    by_id: HashMap<ClaimId, Arc<QueueEntry>>,
    by_key: HashMap<String, Arc<QueueEntry>>,
    /// Those whose create revision is known, in the order of their queue.
    by_place: HashMap<QueuePath, BTreeMap<Revision, Arc<QueueEntry>>>,
}

impl ClaimRegistry {
    /// Registers a claim. Called before its first request is sent, because a handoff may arrive before the reply.
    pub(crate) fn enter(
        &self,
        id: ClaimId,
        queue: QueuePath,
        key: String,
        exclusive: Option<ExclusiveKey>,
    ) -> Arc<QueueEntry> {
        let entry = Arc::new(QueueEntry::new(queue, key.clone(), exclusive));
        let mut table = self.lock();
        table.by_id.insert(id, Arc::clone(&entry));
        table.by_key.insert(key, Arc::clone(&entry));
        entry
    }

    pub(crate) fn get(&self, id: ClaimId) -> Option<Arc<QueueEntry>> {
        self.lock().by_id.get(&id).cloned()
    }

    /// Returns whether this holds for any claim.
    pub(crate) fn any(&self, condition: impl Fn(&QueueEntry) -> bool) -> bool {
        self.lock().by_id.values().any(|entry| condition(entry))
    }

    /// Returns what this finds in any claim.
    pub(crate) fn select<T>(&self, find: impl Fn(&QueueEntry) -> Option<T>) -> Vec<T> {
        self.lock().by_id.values().filter_map(|entry| find(entry)).collect()
    }

    /// Records the create revision of a claim's key, which a reply to its enqueue has shown.
    pub(crate) fn place(&self, entry: &Arc<QueueEntry>, own: Revision) {
        let mut table = self.lock();
        table.by_place.entry(entry.queue.clone()).or_default().insert(own, Arc::clone(entry));
        drop(table);
        entry.set_own_revision(own);
    }

    /// Returns the nearest claim of this session in front of another one, with its key.
    pub(crate) fn in_front_of(&self, entry: &QueueEntry) -> Option<(Arc<QueueEntry>, QueuedKey)> {
        let own = entry.own_revision()?;
        let table = self.lock();
        let mut in_front = table.by_place.get(&entry.queue)?.range(..own);
        let (created, front) = in_front.next_back()?;
        Some((Arc::clone(front), QueuedKey { key: front.key.clone().into_bytes(), created: *created }))
    }

    /// Returns how many claims there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().by_id.len()
    }

    /// Returns whether a claim of this session uses the key.
    pub(crate) fn uses(&self, key: &str) -> bool {
        self.lock().by_key.contains_key(key)
    }

    /// Removes a claim that has left nothing at the server that this session would have to end.
    pub(crate) fn forget(&self, id: ClaimId) {
        let mut table = self.lock();
        let Some(entry) = table.by_id.remove(&id) else { return };
        table.by_key.remove(&entry.key);
        if let Some(own) = entry.own_revision()
            && let Some(places) = table.by_place.get_mut(&entry.queue)
        {
            places.remove(&own);
            if places.is_empty() {
                table.by_place.remove(&entry.queue);
            }
        }
        drop(table);
        entry.leave();
    }

    /// Returns the claim whose hold was broken. A claim that has not learned of its grant yet looks at the queue.
    pub(crate) fn broken(&self, broken: &BrokenHold) -> Option<ClaimId> {
        let table = self.lock();
        let is_meant =
            |entry: &QueueEntry| entry.deciding_key() == Some((broken.key.as_str(), broken.created));
        let (id, entry) = table.by_id.iter().find(|(_, entry)| is_meant(entry))?;
        if entry.exclusive.is_some() || entry.is_granted() {
            return Some(*id);
        }
        entry.predecessor_gone(0);
        None
    }

    /// Delivers a handoff to the claim that uses the key; the claim checks whether the handoff is for it.
    pub(crate) fn deliver(&self, mut handoff: Handoff) {
        let entry = self.lock().by_key.get(&handoff.key).cloned();
        if let Some(entry) = entry {
            if let Some(stretch) = handoff.take_order() {
                self.order.learn(&entry.queue, stretch);
            }
            entry.deliver(handoff.created);
        }
    }

    fn lock(&self) -> MutexGuard<'_, ClaimTable> {
        lock(&self.table)
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::LockName;

    use super::*;
    use crate::{
        keys::{Layout, Names},
        session::epoch::Epoch,
    };

    fn claims_with_one() -> (ClaimRegistry, Arc<QueueEntry>) {
        let claims = ClaimRegistry::default();
        let queue = Layout::new("", Names::Encoded).queue(&LockName::new("x").unwrap()).unwrap();
        let id = ClaimId::random();
        let key = queue.key(7, id);
        let entry = claims.enter(id, queue, key, None);
        (claims, entry)
    }

    fn handoff(entry: &QueueEntry, created: Revision) -> Handoff {
        Handoff { key: entry.key.clone(), created, next: Vec::new() }
    }

    fn bumped_at(revision: Revision) -> Epoch {
        let epoch = Epoch::default();
        epoch.observe(revision);
        epoch
    }

    #[test]
    fn one_bump_does_for_all_copies_that_were_sent_before_it() {
        let (_claims, entry) = claims_with_one();
        assert!(!entry.may_have_a_key() && !entry.needs_epoch_bump(&bumped_at(3)));
        entry.enqueue_sent(3);
        assert!(entry.needs_epoch_bump(&bumped_at(3)) && !entry.needs_epoch_bump(&bumped_at(4)));
        assert!(entry.may_have_a_key(), "the copy may have been executed before the bump");
        entry.enqueue_sent(4);
        entry.enqueue_sent(3);
        assert!(entry.needs_epoch_bump(&bumped_at(4)) && !entry.needs_epoch_bump(&bumped_at(5)));
    }

    #[test]
    fn nearest_claim_in_front_is_found_until_it_is_forgotten() {
        let (claims, first) = claims_with_one();
        let enter = |own| {
            let id = ClaimId::random();
            let entry = claims.enter(id, first.queue.clone(), first.queue.key(7, id), None);
            claims.place(&entry, own);
            (id, entry)
        };
        claims.place(&first, 5);
        let ((middle, _), (_, last)) = (enter(10), enter(20));
        let in_front = || claims.in_front_of(&last).map(|(_, key)| key.created);
        assert_eq!(in_front(), Some(10));
        claims.forget(middle);
        assert_eq!(in_front(), Some(5));
        assert!(claims.in_front_of(&first).is_none());
    }

    #[test]
    fn handoff_before_another_proof_shows_company() {
        let (claims, entry) = claims_with_one();
        claims.place(&entry, 10);
        claims.deliver(handoff(&entry, 10));
        entry.grant(true);
        assert!(entry.is_granted() && !entry.was_alone());
    }

    #[test]
    fn handoff_before_the_enqueue_reply_counts_after_it() {
        let (claims, entry) = claims_with_one();
        claims.deliver(handoff(&entry, 10));
        assert!(!entry.is_granted());
        claims.place(&entry, 10);
        assert!(entry.is_granted());
    }

    /// Events of several handoffs may come before the reply, in any order.
    #[test]
    fn newest_of_several_early_handoffs_counts() {
        for order in [[10, 8], [8, 10]] {
            let (claims, entry) = claims_with_one();
            for created in order {
                claims.deliver(handoff(&entry, created));
            }
            claims.place(&entry, 10);
            assert!(entry.is_granted(), "{order:?}");
        }
    }

    #[tokio::test]
    async fn latest_deletion_of_a_predecessor_is_reported_once() {
        let (_claims, entry) = claims_with_one();
        for revision in [7, 9, 0] {
            entry.predecessor_gone(revision);
        }
        assert_eq!(entry.when_predecessor_gone().await, 9);
        let again = tokio::time::timeout(std::time::Duration::ZERO, entry.when_predecessor_gone());
        assert!(again.await.is_err());
    }

    /// Its grant may be on the way.
    #[tokio::test]
    async fn waiter_whose_hold_is_reported_broken_looks_at_its_queue() {
        let (claims, entry) = claims_with_one();
        claims.place(&entry, 10);
        let broken = BrokenHold { key: entry.key.clone(), created: 10 };
        assert_eq!(claims.broken(&broken), None);
        let gone = tokio::time::timeout(std::time::Duration::ZERO, entry.when_predecessor_gone());
        assert_eq!(gone.await, Ok(0));
        entry.grant(false);
        assert!(claims.broken(&broken).is_some());
    }

    /// Its claim uses the same key again.
    #[test]
    fn report_of_an_earlier_broken_hold_breaks_no_later_one() {
        let (claims, entry) = claims_with_one();
        claims.place(&entry, 10);
        entry.grant(false);
        let broken = |created| claims.broken(&BrokenHold { key: entry.key.clone(), created });
        assert_eq!(broken(8), None);
        assert!(broken(10).is_some());
    }

    #[test]
    fn forgotten_claim_leaves_nothing() {
        let claims = ClaimRegistry::default();
        let queue = Layout::new("", Names::Encoded).queue(&LockName::new("x").unwrap()).unwrap();
        let id = ClaimId::random();
        let entry = claims.enter(id, queue.clone(), queue.key(7, id), None);
        claims.place(&entry, 5);
        claims.forget(id);
        let table = claims.lock();
        assert!(table.by_id.is_empty() && table.by_key.is_empty() && table.by_place.is_empty());
    }

    #[test]
    fn handoff_for_an_earlier_claim_or_another_key_is_ignored() {
        let (claims, entry) = claims_with_one();
        claims.deliver(handoff(&entry, 8));
        claims.place(&entry, 10);
        claims.deliver(handoff(&entry, 9));
        claims.deliver(Handoff { key: format!("y{}", entry.key), created: 10, next: Vec::new() });
        assert!(!entry.is_granted());
        let ids: Vec<ClaimId> = claims.lock().by_id.keys().copied().collect();
        claims.forget(ids[0]);
        claims.deliver(handoff(&entry, 10));
        assert!(!entry.is_granted());
    }
}
