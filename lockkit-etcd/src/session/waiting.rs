//! The wait of a claim in its queue, from the reply to its enqueue to a proof that it is first.
//!
//! Failure cases:
//!
//! * The predecessor dies, is foreign, or its handoff is lost. Its deletion is watched, and a periodic re-check reads
//!   both the claim's own key and the predecessor's. A deletion alone grants nothing: the predecessor may have been a
//!   waiter too, and one revision can delete several keys. After it, only a read that finds the claim's own key first
//!   grants.
//! * An earlier claim of this client waits or holds in front. While it has not left, this claim cannot be first, and
//!   needs no watch: so a client has one watch per queue, however many of its claims wait there. That the earlier claim
//!   leaves is known here as soon as its removal is answered.
//! * The claim's own key is deleted. The next re-check notices it, and the claim ends.
//! * The lease ends. Every pending step ends.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use lockkit_core::{
    backend::{Claim, recheck_pause, retry_pauses},
    support::SessionOver,
};

use super::{EtcdSession, acquire::ClaimEnd, entry::QueueEntry, watch::Cancel};
use crate::{
    error::RequestError,
    keys::Names,
    wire::{self, QueuedKey, Revision, queued_keys, revision_of},
};

/// How long a waiter whose predecessor was deleted waits for the handoff before it reads the queue. One transaction
/// writes both, and both events come over the same stream within microseconds, in any order.
const HANDOFF_GRACE: Duration = Duration::from_millis(50);

/// How long a waiter relies on a handoff alone before it looks for its predecessor, and watches it. The server serves
/// watches that start in the past only every 100 ms, so watching earlier gains little. Under contention most handoffs
/// come earlier.
const LOOK_AFTER: Duration = Duration::from_millis(100);

/// Reads that may return an older revision than the event that caused them: an event can arrive before its revision is
/// readable. The number is bounded, because after a restore from a backup that revision may be far away.
const EARLY_READS_MAX: usize = 4;

/// What a waiter knows of who is in front of it.
enum Ahead {
    Unknown,
    /// The nearest earlier claim of this client, with its key; others may be between the two.
    Own(Arc<QueueEntry>, QueuedKey),
    Predecessor(Predecessor),
}

/// The key directly before a claim's key in the queue.
struct Predecessor {
    queued: QueuedKey,
    /// The revision of the read that found it.
    seen_at: Revision,
}

impl EtcdSession {
    /// Waits in the queue until a handoff, or a read that finds the claim first.
    pub(crate) async fn wait(
        &self,
        claim: &Claim,
        entry: &Arc<QueueEntry>,
    ) -> Result<ClaimEnd, RequestError> {
        let mut ahead = self.ahead_of(entry);
        loop {
            let next = self.wait_behind(&ahead, entry);
            let step = tokio::select! {
                biased;
                () = entry.when_granted() => return Ok(ClaimEnd::Granted),
                () = claim.give_up() => return Ok(ClaimEnd::GaveUp),
                () = self.state.over() => return Err(SessionOver.into()),
                step = next => step?,
            };
            match step {
                ControlFlow::Break(end) => return Ok(end),
                ControlFlow::Continue(next) => ahead = next,
            }
        }
    }

    /// Returns what this client knows of its claims in front of another one.
    fn ahead_of(&self, entry: &QueueEntry) -> Ahead {
        self.claims.in_front_of(entry).map_or(Ahead::Unknown, |(front, key)| Ahead::Own(front, key))
    }

    /// Waits until what is ahead may have changed. Returns what is ahead then.
    async fn wait_behind(
        &self,
        ahead: &Ahead,
        entry: &Arc<QueueEntry>,
    ) -> Result<ControlFlow<ClaimEnd, Ahead>, RequestError> {
        let not_before = match ahead {
            Ahead::Unknown => {
                self.wait_for_handoff(entry).await;
                0
            }
            Ahead::Own(front, key) => {
                if self.wait_behind_own(front, key, entry).await? {
                    return Ok(ControlFlow::Continue(self.ahead_of(entry)));
                }
                0
            }
            Ahead::Predecessor(predecessor) => self.wait_behind_predecessor(predecessor, entry).await?,
        };
        self.read_position(entry, not_before).await
    }

    /// Waits for a while, because most handoffs come so soon. Others than lockkit's clients, who share a queue only with
    /// raw names, send none.
    async fn wait_for_handoff(&self, entry: &QueueEntry) {
        if self.layout.names() == Names::Raw {
            return;
        }
        tokio::select! {
            _ = entry.when_predecessor_gone() => {}
            () = tokio::time::sleep(LOOK_AFTER) => {}
        }
    }

    /// Waits until an earlier claim of this client has left. Returns `false` if the re-check misses one of the two keys.
    async fn wait_behind_own(
        &self,
        front: &QueueEntry,
        key: &QueuedKey,
        entry: &QueueEntry,
    ) -> Result<bool, RequestError> {
        loop {
            tokio::select! {
                biased;
                () = front.when_left() => return Ok(true),
                _ = entry.when_predecessor_gone() => return Ok(false),
                () = self.until_recheck() => {}
            }
            if !self.are_both_present(key, entry).await? {
                return Ok(false);
            }
        }
    }

    /// Waits until the predecessor's key or the claim's own key is deleted. Returns the least revision at which a read
    /// shows that; 0 if any read does.
    async fn wait_behind_predecessor(
        &self,
        predecessor: &Predecessor,
        entry: &Arc<QueueEntry>,
    ) -> Result<Revision, RequestError> {
        let Predecessor { queued, seen_at } = predecessor;
        let _watching = self.watches.add(queued.key.clone(), seen_at + 1, entry, Cancel::Later);
        loop {
            tokio::select! {
                biased;
                gone_at = entry.when_predecessor_gone() => {
                    if gone_at > 0 && queued.client().is_some() {
                        tokio::time::sleep(HANDOFF_GRACE).await;
                    }
                    return Ok(gone_at);
                }
                () = self.until_recheck() => {}
            }
            if !self.are_both_present(queued, entry).await? {
                return Ok(0);
            }
        }
    }

    async fn until_recheck(&self) {
        tokio::time::sleep(recheck_pause(self.lease.ttl())).await;
    }

    /// Returns whether the claim's key and the one in front of it still exist: the re-check. Reads both by name,
    /// because the cost of a range read grows with the queue. Compares create revisions, because a later claim may
    /// reuse either key. No other key can have come between the two: keys that are created later are behind both.
    async fn are_both_present(&self, front: &QueuedKey, entry: &QueueEntry) -> Result<bool, RequestError> {
        let QueuedKey { key, created } = front;
        let answer = self.read(|| self.server.txn(wire::read_keys([entry.key.as_bytes(), key]))).await?;
        Ok(wire::create_revisions(&answer) == [entry.own_revision(), Some(*created)])
    }

    /// Reads the claim's key and its predecessor, at one revision that is at least `not_before`.
    async fn read_position(
        &self,
        entry: &QueueEntry,
        not_before: Revision,
    ) -> Result<ControlFlow<ClaimEnd, Ahead>, RequestError> {
        let Some(own) = entry.own_revision() else {
            return Err(RequestError::unexpected("waiting without an entry"));
        };
        let mut early = retry_pauses().take(EARLY_READS_MAX);
        loop {
            let read = || self.server.range(entry.queue.as_str(), wire::own_and_predecessor(own));
            let answer = self.read(read).await?;
            let seen_at = revision_of(answer.header())?;
            if seen_at < not_before
                && let Some(pause) = early.next()
            {
                tokio::time::sleep(pause).await;
                continue;
            }
            return Ok(match queued_keys(&answer).as_slice() {
                [first] if first.created == own => {
                    entry.grant(false);
                    ControlFlow::Break(ClaimEnd::Granted)
                }
                [first, next] if first.created == own => {
                    let queued = next.clone();
                    ControlFlow::Continue(match self.claims.in_front_of(entry) {
                        Some((front, key)) if key == queued => Ahead::Own(front, key),
                        _ => Ahead::Predecessor(Predecessor { queued, seen_at }),
                    })
                }
                _ => ControlFlow::Break(ClaimEnd::EntryGone),
            });
        }
    }
}
