//! The claims of one session, and what is known of each between its first request and its confirmed end.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
};

use lockkit_core::{FencingToken, backend::ClaimId, support::lock};
use tokio::sync::watch;

use crate::{
    broken::BrokenHold,
    epoch::Epoch,
    exclusive::ExclusiveKey,
    handoff::Handoff,
    keys::Queue,
    order::KnownOrder,
    rewrite::HeldKey,
    wire::{QueuedKey, Revision},
};

/// All claims of a session that may have a key at the server, and what is known of their queues.
#[derive(Debug, Default)]
pub(crate) struct ClaimRegistry {
    table: Mutex<Table>,
    pub(crate) order: KnownOrder,
}

#[derive(Debug, Default)]
struct Table {
    by_id: HashMap<ClaimId, Arc<QueueEntry>>,
    by_key: HashMap<String, Arc<QueueEntry>>,
    /// Those whose create revision is known, in the order of their queue.
    by_place: HashMap<Queue, BTreeMap<Revision, Arc<QueueEntry>>>,
}

impl ClaimRegistry {
    /// Registers a claim. Called before its first request is sent, because a handoff may arrive before the reply.
    pub(crate) fn enter(
        &self,
        id: ClaimId,
        queue: Queue,
        key: String,
        exclusive: Option<ExclusiveKey>,
    ) -> Arc<QueueEntry> {
        let entry = Arc::new(QueueEntry {
            queue,
            key: key.clone(),
            exclusive,
            progress: watch::Sender::default(),
            held: HeldKey::default(),
        });
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

    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

/// The entry of one claim in its queue, and what is known of it.
#[derive(Debug)]
pub(crate) struct QueueEntry {
    pub(crate) queue: Queue,
    pub(crate) key: String,
    /// The guard key beside the entry, or the single key instead of it.
    pub(crate) exclusive: Option<ExclusiveKey>,
    progress: watch::Sender<Progress>,
    /// What is known of the key while the claim holds the lock.
    pub(crate) held: HeldKey,
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// The create revision of the claim's key, once a reply has shown it.
    own: Option<Revision>,
    /// Copies of the enqueue that were sent but not answered; each may have been or may still be executed.
    unanswered: u32,
    /// The highest epoch that any of them carries.
    unanswered_epoch: Revision,
    /// Whether any request that names the key was left unanswered.
    in_doubt: bool,
    /// The create revision in the newest handoff that came before `own` was known.
    early_handoff: Option<Revision>,
    /// Whether there is a proof that the claim holds the lock.
    granted: bool,
    /// Whether the queue had no other key when the claim was granted.
    alone: bool,
    /// The revision at which the predecessor's key was deleted, until a read follows. 0: the waiter must read at once.
    predecessor_gone: Option<Revision>,
    /// Whether the claim has left its queue.
    left: bool,
}

impl Progress {
    /// Accepts a handoff as the grant, if it is for this claim. The transaction that put it has compared the key's
    /// create revision. A handoff with another create revision is for an earlier claim that used the same key.
    fn accept_handoff(&mut self, created: Revision) -> bool {
        let is_grant = !self.granted && self.own == Some(created);
        self.granted |= is_grant;
        is_grant
    }
}

impl QueueEntry {
    /// Counts a copy of the enqueue that is about to be sent with this epoch.
    pub(crate) fn enqueue_sent(&self, epoch: Revision) {
        self.progress.send_modify(|progress| {
            progress.unanswered += 1;
            progress.unanswered_epoch = progress.unanswered_epoch.max(epoch);
        });
    }

    /// Uncounts a copy that was answered or never sent.
    pub(crate) fn enqueue_answered(&self) {
        self.progress.send_modify(|progress| progress.unanswered -= 1);
    }

    /// Uncounts all copies: the epoch was bumped, so none of them can have an effect any more.
    pub(crate) fn epoch_bumped(&self) {
        self.progress.send_modify(|progress| progress.unanswered = 0);
    }

    /// Returns whether the claim's key may exist: a reply has shown it, or a copy of the enqueue was not answered. That
    /// copy may have created it before the epoch was bumped.
    pub(crate) fn may_have_a_key(&self) -> bool {
        let progress = self.progress.borrow();
        progress.own.is_some() || progress.unanswered > 0
    }

    /// Returns whether a copy of the enqueue was not answered.
    pub(crate) fn has_unanswered(&self) -> bool {
        self.progress.borrow().unanswered > 0
    }

    /// Returns whether a copy of the enqueue may still be executed. Not if the epoch was bumped since the last of them
    /// was sent, by whichever claim: after an outage one bump does for all.
    pub(crate) fn needs_epoch_bump(&self, epoch: &Epoch) -> bool {
        let progress = self.progress.borrow();
        progress.unanswered > 0 && progress.unanswered_epoch >= epoch.current()
    }

    /// Marks the key: a request that names it was not answered, and may be executed at any later time.
    pub(crate) fn put_in_doubt(&self) {
        self.progress.send_modify(|progress| progress.in_doubt = true);
    }

    /// Returns whether later claims must not reuse the key.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.progress.borrow().in_doubt
    }

    fn set_own_revision(&self, own: Revision) {
        self.progress.send_modify(|progress| {
            progress.own = Some(own);
            if let Some(created) = progress.early_handoff.take() {
                progress.accept_handoff(created);
            }
        });
    }

    pub(crate) fn own_revision(&self) -> Option<Revision> {
        self.progress.borrow().own
    }

    /// Returns the keys that a hold has at the server, with their create revisions.
    pub(crate) fn keys_of_hold(&self) -> impl Iterator<Item = (&[u8], Option<Revision>)> {
        let exclusive = self.exclusive.as_ref().map(|key| (key.key.as_bytes(), key.created()));
        let is_single = exclusive.is_some_and(|(key, _)| key == self.key.as_bytes());
        let queued = (!is_single).then(|| (self.key.as_bytes(), self.own_revision()));
        queued.into_iter().chain(exclusive)
    }

    /// Returns the key whose creation made the claim first, with its create revision: its exclusive key if it has one.
    pub(crate) fn deciding_key(&self) -> Option<(&str, Revision)> {
        match &self.exclusive {
            Some(exclusive) => Some((&exclusive.key, exclusive.created()?)),
            None => Some((&self.key, self.own_revision()?)),
        }
    }

    /// Records a proof that the claim is first.
    pub(crate) fn grant(&self, alone: bool) {
        self.progress.send_modify(|progress| {
            progress.alone = alone && !progress.granted;
            progress.granted = true;
        });
    }

    /// Returns whether the claim holds the lock.
    pub(crate) fn is_granted(&self) -> bool {
        self.progress.borrow().granted
    }

    /// Returns whether the queue had no other key when the claim was granted.
    pub(crate) fn was_alone(&self) -> bool {
        self.progress.borrow().alone
    }

    fn deliver(&self, created: Revision) {
        self.progress.send_if_modified(|progress| {
            if progress.own.is_none() {
                progress.early_handoff = progress.early_handoff.max(Some(created));
                return false;
            }
            progress.accept_handoff(created)
        });
    }

    /// Reports that the predecessor's key was deleted at this revision (0: it may have been deleted). The waiter reads
    /// the queue then.
    pub(crate) fn predecessor_gone(&self, revision: Revision) {
        self.progress.send_modify(|progress| {
            progress.predecessor_gone = Some(progress.predecessor_gone.unwrap_or(0).max(revision));
        });
    }

    /// Notes that the claim has left its queue: who waits behind it has to look who is in front now.
    fn leave(&self) {
        self.progress.send_modify(|progress| progress.left = true);
    }

    /// Waits until the claim has left its queue.
    pub(crate) async fn when_left(&self) {
        self.when(|progress| progress.left.then_some(0)).await;
    }

    /// Waits for the grant: a handoff or another proof.
    pub(crate) async fn when_granted(&self) {
        self.when(|progress| progress.own.filter(|_| progress.granted)).await;
    }

    /// Waits until the predecessor is reported gone, and clears the report.
    pub(crate) async fn when_predecessor_gone(&self) -> Revision {
        let revision = self.when(|progress| progress.predecessor_gone).await;
        self.progress.send_modify(|progress| progress.predecessor_gone = None);
        revision
    }

    async fn when(&self, answer: impl Fn(&Progress) -> Option<Revision>) -> Revision {
        let mut changes = self.progress.subscribe();
        loop {
            if let Some(revision) = answer(&changes.borrow_and_update()) {
                return revision;
            }
            // This entry owns the sender, so the channel cannot be closed.
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// The fencing token of a holder whose key has this create revision, which is never negative
/// (`docs/decisions/0029-etcd-token-is-the-create-revision.md`).
pub(crate) fn token(created: Revision) -> FencingToken {
    FencingToken::new(created.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use lockkit_core::LockName;

    use super::*;
    use crate::keys::{Layout, Names};

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
