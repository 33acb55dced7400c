//! A claim up to its grant: enqueue, wait, and withdraw if it is not granted.
//!
//! Failure cases:
//!
//! * The reply to the enqueue is lost. The enqueue is sent again; no other claim has this key, so a copy finds the
//!   effect of an earlier one. Copies that were never answered may arrive at any later time. A claim with such copies
//!   ends by a transaction that writes the client's epoch key (an epoch bump). Every copy compares the epoch, so a late
//!   one does nothing.
//! * The claim gives up during a request. The reply is awaited (each request has a time limit). Then the key is
//!   deleted; the deletion is retried until it is answered.
//! * The predecessor dies, is foreign, or its handoff is lost. Its deletion is watched, and a periodic re-check reads
//!   both the claim's own key and the predecessor's. A deletion alone grants nothing: the predecessor may have been a
//!   waiter too, and one revision can delete several keys. After it, only a read that finds the own key first grants.
//! * An earlier claim of this client waits or holds in front. While it has not left, this claim cannot be first, and
//!   needs no watch: so a client has one watch per queue, however many of its claims wait there. That the earlier claim
//!   leaves is known here as soon as its removal is answered.
//! * The own key is deleted. The next re-check notices it, and the claim ends.
//! * The lease ends. Every pending step ends, and nothing is left at the server.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use lockkit_core::{
    Error, Result,
    backend::{Acquired, Claim, ClaimId, Evidence, Grant, recheck_pause, retry_pauses},
    support::SessionOver,
};
use tracing::debug;

use crate::{
    error::RequestError,
    keys::Names,
    registry::{QueueEntry, token},
    session::EtcdSession,
    wire::{self, EnqueueReply, Place, QueuedKey, Revision, queued_keys, revision_of},
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

/// How a claim ended.
pub(crate) enum ClaimEnd {
    Granted,
    GaveUp,
    EntryGone,
}

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
    pub(crate) async fn acquire_claim(&self, claim: &Claim) -> Result<Acquired> {
        let entry = self.enter(claim)?;
        let end = if self.is_single() {
            self.claim_single(claim, &entry).await
        } else {
            self.claim_with_guard(claim, &entry).await
        };
        if let (Ok(ClaimEnd::Granted), Some((key, created))) = (&end, entry.deciding_key()) {
            let grant = Grant::new(claim, token(created), self.lease.armed_at());
            return Ok(Acquired::Granted(grant.with_evidence(Evidence::create_revision(key, created))));
        }
        self.withdraw(claim, &entry).await;
        match end {
            Ok(ClaimEnd::GaveUp) => Ok(Acquired::GaveUp),
            Err(fault) if !self.state.is_over() || self.state.is_closed() => Err(self.error(claim, fault)),
            // The session is lost, and the entry with it.
            _ => Ok(Acquired::EntryGone),
        }
    }

    fn error(&self, claim: &Claim, fault: RequestError) -> Error {
        fault.into_error("acquire").with_lock(claim.name())
    }

    pub(crate) async fn claim(
        &self,
        claim: &Claim,
        entry: &Arc<QueueEntry>,
    ) -> Result<ClaimEnd, RequestError> {
        if !claim.wait() && self.recently_busy.contains(&entry.queue) && self.is_busy(entry).await {
            return Ok(self.found_busy(claim, entry));
        }
        match self.enqueue(claim, entry).await? {
            ControlFlow::Break(end) => Ok(end),
            ControlFlow::Continue(()) => {
                claim.note_contended();
                self.wait(claim, entry).await
            }
        }
    }

    /// Returns whether the queue has any key; writes nothing. A failed read counts as not busy: the enqueue checks
    /// again.
    async fn is_busy(&self, entry: &QueueEntry) -> bool {
        let read = self.server.range(entry.queue.as_str(), wire::count_queue());
        self.state.unless_over(read).await.is_ok_and(|answer| answer.count() > 0)
    }

    /// Ends a try that found the lock held.
    pub(crate) fn found_busy(&self, claim: &Claim, entry: &QueueEntry) -> ClaimEnd {
        claim.note_contended();
        self.recently_busy.record(&entry.queue);
        ClaimEnd::GaveUp
    }

    /// Creates the claim's key in the queue. Continues if others are in front of it.
    async fn enqueue(
        &self,
        claim: &Claim,
        entry: &Arc<QueueEntry>,
    ) -> Result<ControlFlow<ClaimEnd>, RequestError> {
        let mut pauses = retry_pauses();
        loop {
            if claim.has_given_up() {
                return Ok(ControlFlow::Break(ClaimEnd::GaveUp));
            }
            let fault = match self.send_enqueue(claim, entry).await {
                Ok(answer) => match self.interpret(claim, entry, answer) {
                    Some(step) => return Ok(step),
                    // The epoch has changed; the next copy carries the new one.
                    None => continue,
                },
                Err(fault) => fault,
            };
            // A try does not wait for an unreachable server, unless one of its copies may have been executed.
            let retries = claim.wait() || entry.has_unanswered();
            if !fault.is_transient() || !retries {
                return Err(fault);
            }
            debug!(?fault, claim = ?claim.id(), "enqueue not answered");
            tokio::select! {
                () = pauses.wait() => {}
                () = claim.give_up() => {}
                () = self.state.over() => return Err(SessionOver.into()),
            }
        }
    }

    /// Sends one copy of the enqueue. The copy counts as unanswered until it is known that it cannot be executed later.
    async fn send_enqueue(&self, claim: &Claim, entry: &QueueEntry) -> Result<EnqueueReply, RequestError> {
        let (epoch, value) = (self.epoch.current(), self.layout.entry_value(claim.metadata()));
        let place = match claim.wait() {
            false => Place::OnlyFirst,
            true if self.recently_busy.contains(&entry.queue) => Place::ProbablyBehind,
            true => Place::ProbablyFirst,
        };
        let txn = wire::enqueue(&self.entry_keys(entry), epoch, &value, place);
        entry.enqueue_sent(epoch);
        let answer = self.txn(txn).await;
        match &answer {
            Err(fault) if fault.is_in_doubt() => entry.put_in_doubt(),
            _ => entry.enqueue_answered(),
        }
        let answer = wire::parse_enqueue(&answer?)?;
        match answer.epoch {
            // The epoch key is gone, or the store was restored to an earlier revision.
            Some(now) if now < epoch => self.state.mark_lost(),
            Some(now) => self.epoch.observe(now),
            None => {}
        }
        Ok(answer)
    }

    /// Returns what the reply to an enqueue means; `None` if nothing was done because the epoch had changed.
    fn interpret(
        &self,
        claim: &Claim,
        entry: &Arc<QueueEntry>,
        answer: EnqueueReply,
    ) -> Option<ControlFlow<ClaimEnd>> {
        let Some(own) = answer.own else {
            if !claim.wait() && answer.contenders > 0 {
                return Some(ControlFlow::Break(self.found_busy(claim, entry)));
            }
            return self.state.is_over().then_some(ControlFlow::Break(ClaimEnd::EntryGone));
        };
        self.claims.place(entry, own);
        let alone = answer.contenders == 1;
        // A try creates its key only in an empty queue.
        if alone || !claim.wait() {
            entry.grant(alone);
            return Some(ControlFlow::Break(ClaimEnd::Granted));
        }
        self.recently_busy.record(&entry.queue);
        Some(ControlFlow::Continue(()))
    }

    /// Waits in the queue until a handoff, or a read that finds the claim first.
    async fn wait(&self, claim: &Claim, entry: &Arc<QueueEntry>) -> Result<ClaimEnd, RequestError> {
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
        let _watching = self.watches.add(queued.key.clone(), seen_at + 1, entry);
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

    /// The re-check: returns whether the own key and one in front of it still exist. Reads both by name, because the
    /// cost of a range read grows with the queue. Compares create revisions, because a later claim may reuse either
    /// key. No other key can have come between the two: keys that are created later are behind both.
    async fn are_both_present(&self, front: &QueuedKey, entry: &QueueEntry) -> Result<bool, RequestError> {
        let QueuedKey { key, created } = front;
        let answer = self.read(|| self.server.txn(wire::read_keys([entry.key.as_bytes(), key]))).await?;
        Ok(wire::create_revisions(&answer) == [entry.own_revision(), Some(*created)])
    }

    /// Reads the own key and its predecessor, at one revision that is at least `not_before`.
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

    /// Retries a read until it is answered.
    pub(crate) async fn read<T, F>(&self, read: impl Fn() -> F) -> Result<T, RequestError>
    where
        F: Future<Output = Result<T, RequestError>>,
    {
        let mut pauses = retry_pauses();
        loop {
            match self.state.unless_over(read()).await {
                Err(fault) if fault.is_transient() => debug!(?fault, "read not answered"),
                answer => return answer,
            }
            pauses.wait().await;
        }
    }

    /// Deletes what a claim without a grant may have left at the server. Retries until the deletion is answered or the
    /// session is over.
    async fn withdraw(&self, claim: &Claim, entry: &QueueEntry) {
        let mut pauses = retry_pauses();
        while !self.state.is_over() {
            match self.withdraw_once(claim, entry).await {
                Ok(()) => break,
                Err(fault) if fault.is_transient() => {
                    debug!(?fault, claim = ?claim.id(), "not withdrawn yet")
                }
                Err(fault) => {
                    // As long as the session lives, the key would block other clients.
                    debug!(?fault, claim = ?claim.id(), "withdrawal refused; abandoning the session");
                    self.state.mark_lost();
                }
            }
            tokio::select! {
                () = pauses.wait() => {}
                () = self.state.over() => {}
            }
        }
        self.forget(claim.id(), entry);
    }

    /// Removes an ended claim from the registry. Returns its key to the pool unless a request in doubt names it.
    pub(crate) fn forget(&self, id: ClaimId, entry: &QueueEntry) {
        self.claims.forget(id);
        if !entry.is_in_doubt() {
            self.key_pool.put_back(&entry.queue, entry.key.clone());
        }
    }

    async fn withdraw_once(&self, claim: &Claim, entry: &QueueEntry) -> Result<(), RequestError> {
        if self.is_single() {
            return self.remove_single(entry).await;
        }
        if entry.is_granted() {
            // A handoff came while the claim gave up: it holds the lock, and passes it on.
            return self.release_entry(entry).await;
        }
        if !entry.may_have_a_key() {
            return Ok(());
        }
        let bump_epoch = entry.needs_epoch_bump(&self.epoch);
        self.take_away(entry, wire::withdraw(&self.entry_keys(entry), bump_epoch), bump_epoch).await?;
        debug!(claim = ?claim.id(), "withdrawn");
        Ok(())
    }
}
