//! Claims that create one key: the lock itself in [`Form::Single`](crate::Form::Single), or, for a claim that is first in
//! its queue, the guard key. Create the key if it is absent; otherwise wait until it is deleted, and try again.
//!
//! Failure cases:
//!
//! * The reply to the create is lost. The create is sent again; a key with the claim's id in its value is its own.
//!   Copies that were never answered may arrive at any later time. A single key's copies compare the client's epoch,
//!   and the claim ends by an epoch bump, as an enqueue does ([`acquire`](super::acquire)). A guard's copies compare the
//!   claim's entry in the queue, which the same transaction deletes that ends the claim.
//! * The store is full. The create that reaches the limit is executed and answered with an error. The claim fails, and
//!   the key is deleted if its value is the claim's.
//! * The claim gives up during a request. The reply is awaited; then the key is deleted if it is the claim's.
//! * The deletion that a waiter watches is not reported. A re-check reads the key, and the claim's entry in the queue if
//!   it has one. The re-check writes nothing.
//! * An operator deletes the key, and another claim or program creates it: another create revision. The next heartbeat
//!   loses the hold, and its release leaves that key alone.
//! * Another program takes the key between its deletion and the next try: the claim waits again. Nothing orders the
//!   two, so a program that is always faster can starve a waiter.
//! * The claim is first in its queue, and an operator deletes its entry there: the create finds the entry gone, and the
//!   claim ends. Its guard key, if it has one, is deleted with the release.
//! * The lease ends. Every pending step ends, and nothing is left at the server.

use std::{ops::ControlFlow, sync::Arc};

use lockkit_core::{
    backend::{Claim, recheck_pause, retry_pauses},
    support::SessionOver,
};
use tracing::debug;

use super::{EtcdSession, acquire::ClaimEnd, entry::QueueEntry, watch::Cancel};
use crate::{
    client::{Compare, CompareOp, GetOptions, Txn},
    error::RequestError,
    forms::{
        Form,
        exclusive::{Condition, CreateReply, ExclusiveKey, FoundCondition, FoundKey},
    },
    wire::{self, Revision},
};

impl EtcdSession {
    /// Registers the claim with its keys.
    pub(crate) fn enter(&self, claim: &Claim) -> lockkit_core::Result<Arc<QueueEntry>> {
        let (id, name) = (claim.id(), claim.name());
        if self.is_single() {
            let lock = self.layout.single(name)?;
            let key = lock.as_str().to_owned();
            let exclusive = ExclusiveKey::new(key.clone(), claim);
            let entry = self.claims.enter(id, lock, key, Some(exclusive));
            // Keeps the key out of the pool of keys that later claims reuse: it is the lock's, not the claim's.
            entry.put_in_doubt();
            return Ok(entry);
        }
        let queue = self.layout.queue(name)?;
        let guard = self.layout.guard(name, &queue)?.map(|key| ExclusiveKey::new(key, claim));
        let key = self.take_key(&queue, id);
        Ok(self.claims.enter(id, queue, key, guard))
    }

    /// Returns whether a lock is one key instead of a queue.
    pub(crate) fn is_single(&self) -> bool {
        self.layout.shape.form == Form::Single
    }

    /// Claims the lock: first the queue, then the guard key, always in this order, so that no two clients wait for each
    /// other.
    pub(crate) async fn claim_with_guard(
        &self,
        claim: &Claim,
        entry: &Arc<QueueEntry>,
    ) -> Result<ClaimEnd, RequestError> {
        let Some(guard) = &entry.exclusive else { return self.claim(claim, entry).await };
        // A try that finds a foreign holder writes nothing.
        if !claim.wait() && self.exists(guard).await {
            return Ok(self.found_busy(claim));
        }
        match self.claim(claim, entry).await? {
            ClaimEnd::Granted => self.claim_key(claim, entry, guard).await,
            end => Ok(end),
        }
    }

    /// Acquires the lock that is one key.
    pub(crate) async fn claim_single(
        &self,
        claim: &Claim,
        entry: &Arc<QueueEntry>,
    ) -> Result<ClaimEnd, RequestError> {
        let Some(key) = &entry.exclusive else { return Err(no_key()) };
        let guessed_busy = !claim.wait() && self.was_recently_busy(claim.name());
        if guessed_busy && self.exists(key).await {
            return Ok(self.found_busy(claim));
        }
        self.claim_key(claim, entry, key).await
    }

    /// Returns whether the key exists; writes nothing. A failed read counts as not: the create checks again.
    async fn exists(&self, key: &ExclusiveKey) -> bool {
        let read = self.server.range(&key.key, GetOptions::new().with_count_only());
        self.state.unless_over(read).await.is_ok_and(|answer| answer.count() > 0)
    }

    async fn claim_key(
        &self,
        claim: &Claim,
        entry: &Arc<QueueEntry>,
        key: &ExclusiveKey,
    ) -> Result<ClaimEnd, RequestError> {
        loop {
            let found = match self.create(claim, entry, key).await? {
                ControlFlow::Break(end) => return Ok(end),
                ControlFlow::Continue(found) => found,
            };
            if !claim.wait() {
                return Ok(self.found_busy(claim));
            }
            claim.note_contended();
            tokio::select! {
                biased;
                () = claim.give_up() => return Ok(ClaimEnd::GaveUp),
                () = self.state.over() => return Err(SessionOver.into()),
                changed = self.wait_for_deletion(found, entry, key) => changed?,
            }
        }
    }

    /// Creates the key. Continues with the key of another claim or program.
    async fn create(
        &self,
        claim: &Claim,
        entry: &QueueEntry,
        key: &ExclusiveKey,
    ) -> Result<ControlFlow<ClaimEnd, FoundKey>, RequestError> {
        let mut pauses = retry_pauses();
        loop {
            if claim.has_given_up() {
                return Ok(ControlFlow::Break(ClaimEnd::GaveUp));
            }
            let fault = match self.send_create(entry, key).await {
                Ok(CreateReply::Created(created)) => {
                    key.set_created(created);
                    return Ok(ControlFlow::Break(ClaimEnd::Granted));
                }
                Ok(_) if self.state.is_over() => return Ok(ControlFlow::Break(ClaimEnd::EntryGone)),
                Ok(CreateReply::Exists { condition, .. } | CreateReply::ConditionFailed(condition))
                    if is_entry_gone(entry, condition) =>
                {
                    return Ok(ControlFlow::Break(ClaimEnd::EntryGone));
                }
                Ok(CreateReply::Exists { key, .. }) => return Ok(ControlFlow::Continue(key)),
                // The epoch has changed; the next copy carries the new one.
                Ok(CreateReply::ConditionFailed(_)) => continue,
                Err(fault) => fault,
            };
            // A try does not wait for an unreachable server, unless one of its copies may have been executed.
            if !fault.is_transient() || !(claim.wait() || key.may_exist()) {
                return Err(fault);
            }
            debug!(?fault, claim = ?claim.id(), "create not answered");
            tokio::select! {
                () = pauses.wait() => {}
                () = claim.give_up() => {}
                () = self.state.over() => return Err(SessionOver.into()),
            }
        }
    }

    /// Sends one copy of the create.
    async fn send_create(&self, entry: &QueueEntry, key: &ExclusiveKey) -> Result<CreateReply, RequestError> {
        let queued = entry.own_revision();
        let epoch = self.epoch.current();
        let condition = match queued {
            Some(own) => Condition {
                compare: Compare::create_revision(&*entry.key, CompareOp::Equal, own),
                key: &entry.key,
            },
            None => Condition {
                compare: Compare::mod_revision(&*self.keys.epoch, CompareOp::Equal, epoch),
                key: &self.keys.epoch,
            },
        };
        if queued.is_none() {
            entry.enqueue_sent(epoch);
        }
        let answer = self.txn(key.create(self.lease.id(), condition)).await;
        match &answer {
            Err(fault) if fault.is_in_doubt() => key.put_in_doubt(),
            _ => {}
        }
        if queued.is_none() && !answer.as_ref().is_err_and(RequestError::may_come_later) {
            entry.enqueue_answered();
        }
        let reply = key.parse_create(&answer?)?;
        match reply {
            CreateReply::Exists { condition, .. } | CreateReply::ConditionFailed(condition)
                if queued.is_none() =>
            {
                // The epoch key is gone, or the store was restored to an earlier revision.
                if condition.modified < epoch {
                    self.state.mark_lost();
                }
                self.epoch.observe(condition.modified);
            }
            _ => {}
        }
        Ok(reply)
    }

    /// Waits until the key that was found is deleted, or the claim's entry in its queue is.
    async fn wait_for_deletion(
        &self,
        found: FoundKey,
        entry: &Arc<QueueEntry>,
        key: &ExclusiveKey,
    ) -> Result<(), RequestError> {
        // Each handoff deletes this key: a watch that nobody needs would report them all.
        let lock = key.key.clone().into_bytes();
        let _watching = self.watches.add(lock, found.seen_at + 1, entry, Cancel::AtOnce);
        let queued: Option<(&[u8], Revision)> = entry.own_revision().map(|own| (entry.key.as_bytes(), own));
        let keys = || queued.map(|(queued, _)| queued).into_iter().chain([key.key.as_bytes()]);
        let unchanged: Vec<Option<Revision>> =
            queued.map(|(_, own)| own).into_iter().chain([found.created]).map(Some).collect();
        loop {
            tokio::select! {
                biased;
                _ = entry.when_predecessor_gone() => return Ok(()),
                () = tokio::time::sleep(recheck_pause(self.lease.ttl())) => {}
            }
            let answer = self.read(|| self.server.txn(wire::read_keys(keys()))).await?;
            if wire::create_revisions(&answer) != unchanged {
                return Ok(());
            }
        }
    }

    /// Deletes the single key of a claim or hold, if it is its own.
    pub(crate) async fn remove_single(&self, entry: &QueueEntry) -> Result<(), RequestError> {
        let Some(key) = &entry.exclusive else { return Err(no_key()) };
        let bump_epoch = entry.needs_epoch_bump(&self.epoch);
        if !bump_epoch && !key.may_exist() {
            return Ok(());
        }
        let txn = |bump: bool| {
            let bump = bump.then(|| wire::put_epoch(&self.keys));
            Txn::new().and_then(key.removals().into_iter().chain(bump))
        };
        self.take_away(entry, txn, bump_epoch).await.map(drop)
    }
}

/// Returns whether the claim had an entry in a queue that does not exist any more.
fn is_entry_gone(entry: &QueueEntry, condition: FoundCondition) -> bool {
    entry.own_revision().is_some_and(|own| own != condition.created)
}

fn no_key() -> RequestError {
    RequestError::unexpected("a claim without its key")
}
