//! What is known of one claim, between its first request and its confirmed end.

use tokio::sync::watch;

use super::{epoch::Epoch, rewrite::HeldKey};
use crate::{forms::ExclusiveKey, keys::QueuePath, wire::Revision};

/// The entry of one claim in its queue, and what is known of it.
#[derive(Debug)]
pub(crate) struct QueueEntry {
    pub(crate) queue: QueuePath,
    pub(crate) key: String,
    /// The guard key in addition to the entry, or the single key instead of it.
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
    /// Whether a copy may have created the key and is answered all the same, with an error.
    may_be_created: bool,
    /// The highest epoch that any of them carries.
    unanswered_epoch: Revision,
    /// Whether the effect of any request that names the key is unknown.
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
    pub(crate) fn new(queue: QueuePath, key: String, exclusive: Option<ExclusiveKey>) -> Self {
        Self { queue, key, exclusive, progress: watch::Sender::default(), held: HeldKey::default() }
    }

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

    /// Uncounts a copy that will not be executed any more, but may have been. Marks the key.
    pub(crate) fn enqueue_doubtful(&self) {
        self.enqueue_answered();
        self.put_in_doubt();
        self.progress.send_modify(|progress| progress.may_be_created = true);
    }

    /// Uncounts all copies: the epoch was bumped, so none of them can have an effect any more.
    pub(crate) fn epoch_bumped(&self) {
        self.progress.send_modify(|progress| progress.unanswered = 0);
    }

    /// Returns whether the claim's key may exist: a reply has shown it, or a copy of the enqueue was not answered, or with
    /// an error that leaves this open. That copy may have created it before the epoch was bumped.
    pub(crate) fn may_have_a_key(&self) -> bool {
        let progress = self.progress.borrow();
        progress.own.is_some() || progress.unanswered > 0 || progress.may_be_created
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

    /// Marks the key: it is not known which effect a request that names it has had, or will have at any later time.
    pub(crate) fn put_in_doubt(&self) {
        self.progress.send_modify(|progress| progress.in_doubt = true);
    }

    /// Returns whether later claims must not reuse the key.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.progress.borrow().in_doubt
    }

    pub(crate) fn set_own_revision(&self, own: Revision) {
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

    pub(crate) fn deliver(&self, created: Revision) {
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
    pub(crate) fn leave(&self) {
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
