//! The end of a hold: one transaction deletes its key and hands the lock off to the next client.
//!
//! Failure cases:
//!
//! * The reply is lost. The transaction is retried; a key that does not exist means that it was executed.
//! * The successor gives up or dies between the read, perhaps that of an [earlier holder](super::order), and the
//!   transaction. The compare fails, and the successor is read again. After [`SUCCESSORS_MAX`] attempts the hold ends without a handoff; the successor watches its predecessor.
//! * The hold's key has another create revision than the hold: an operator deleted it, and a late copy of the enqueue
//!   created it again. Such a key is no grant, so it is deleted without a handoff. If no copy has arrived yet but one
//!   still may, the epoch is bumped all the same.
//! * The server refuses the release for good, because the user's rights or its password have changed. The session is
//!   abandoned, and the lock ends with the lease, one ttl after its last renewal.
//! * The store is full, and refuses what puts a key. The hold ends without a handoff, and without the epoch bump that it
//!   may need, which a heartbeat [makes up for](super::late_bump).
//! * The read of the successor is stale. Only the reply to a transaction shows that a key does not exist.
//! * The successor is of this client. Nothing is written for it: the reply to the transaction grants it the lock. If
//!   that reply is lost, it reads the queue.

use lockkit_core::backend::Grant;
use tracing::debug;

use super::{
    EtcdSession,
    entry::QueueEntry,
    order::{CONTENDERS_PER_READ, Stretch},
};
use crate::{
    client::{Txn, TxnResponse},
    error::{Effect, RequestError},
    forms::ExclusiveKey,
    handoff::Handoff,
    keys::ClaimKey,
    wire::{self, QueuedKey, RemovalReply, Revision, queued_keys, revision_of},
};

/// Successors that are tried before a hold ends without a handoff.
const SUCCESSORS_MAX: usize = 8;

impl EtcdSession {
    pub(crate) async fn release_grant(&self, grant: &Grant) -> Result<(), RequestError> {
        let Some(entry) = self.claims.get(grant.claim()) else { return Ok(()) };
        entry.held.mark_released();
        let released = if self.is_single() {
            self.remove_single(&entry).await
        } else {
            self.release_entry(&entry).await
        };
        if let Err(fault) = &released
            && !fault.is_transient()
        {
            // A retry would be refused too, and the lock would stay taken as long as the lease is renewed.
            debug!(?fault, claim = ?grant.claim(), "release refused; abandoning the session");
            self.state.mark_lost();
        }
        released?;
        self.forget(grant.claim(), &entry);
        if let Some(unused) = entry.held.pin_lease() {
            // No key is left under it, so it may as well expire.
            let _ = unused.revoke(&self.server).await;
        }
        Ok(())
    }

    /// Ends the hold of this claim.
    pub(crate) async fn release_entry(&self, entry: &QueueEntry) -> Result<(), RequestError> {
        let Some(own) = entry.own_revision() else {
            return Err(RequestError::unexpected("a hold without an entry"));
        };
        let (keys, bump_epoch) = (self.entry_keys(entry), entry.needs_epoch_bump(&self.epoch));
        // A claim that was alone probably has no successor: one request instead of two.
        let mut next = if entry.was_alone() { None } else { self.successor(entry, own).await? };
        for attempt in 0..SUCCESSORS_MAX {
            let removal = match &next {
                None => {
                    // The first time it is most probably alone, so the transaction is as short as it can be.
                    let txn = |bump| wire::release_alone(&keys, own, bump, attempt > 0);
                    Some(self.take_away(entry, txn, bump_epoch).await?)
                }
                Some(next) => self.handoff(entry, own, next, bump_epoch).await?,
            };
            match removal {
                None => break,
                Some(RemovalReply::Refuted) => {}
                Some(RemovalReply::StillThere(created)) if created == own => {}
                Some(removal) => return self.finish(entry, removal, bump_epoch).await,
            }
            self.claims.order.forget(&entry.queue);
            next = self.look_behind(entry, own, false).await?;
        }
        let txn = |bump| wire::release_without_handoff(&keys, own, bump);
        let removal = self.take_away(entry, txn, bump_epoch).await?;
        self.finish(entry, removal, bump_epoch).await
    }

    /// Ends the hold with a handoff to the next client. `None` if that is impossible: it is another program, or the
    /// server refuses to write its handoff key (no space, no permission, a lease that has ended).
    async fn handoff(
        &self,
        entry: &QueueEntry,
        own: Revision,
        next: &QueuedKey,
        bump_epoch: bool,
    ) -> Result<Option<RemovalReply>, RequestError> {
        let name = next.name();
        let Some(successor) = ClaimKey::parse(&name) else { return Ok(None) };
        let is_own = self.claims.uses(&name);
        let put_handoff = || {
            let behind = self.claims.order.next_after(&entry.queue, next, successor.queue);
            wire::put_handoff(next, behind, &successor.client())
        };
        let put_handoff = (!is_own).then(put_handoff);
        let keys = self.entry_keys(entry);
        let txn = |bump| wire::handoff(&keys, own, next, put_handoff.clone(), bump);
        let removal = match self.take_away(entry, txn, bump_epoch).await {
            Err(fault) if fault.asks_for_less() => return Ok(None),
            removal => removal?,
        };
        if is_own && removal == RemovalReply::Done {
            let key = name.into_owned();
            self.claims.deliver(Handoff { key, created: next.created, next: Vec::new() });
        }
        Ok(Some(removal))
    }

    /// Returns the next key in the queue, as this client knows it or as any member does, even one that lags behind: a
    /// stale answer fails a compare.
    async fn successor(&self, entry: &QueueEntry, own: Revision) -> Result<Option<QueuedKey>, RequestError> {
        match self.claims.order.successor(&entry.queue, own) {
            Some(known) => Ok(Some(known)),
            None => self.look_behind(entry, own, true).await,
        }
    }

    /// Reads who is next in the queue, and remembers those behind it for the releases that follow.
    async fn look_behind(
        &self,
        entry: &QueueEntry,
        own: Revision,
        may_be_stale: bool,
    ) -> Result<Option<QueuedKey>, RequestError> {
        let mut options = wire::successors_of(own, CONTENDERS_PER_READ);
        if may_be_stale {
            options = options.with_serializable();
        }
        let read = self.server.range(entry.queue.as_str(), options);
        let found = queued_keys(&self.state.unless_over(read).await?);
        let next = found.first().cloned();
        if let Some(stretch) = Stretch::new(own, found) {
            self.claims.order.learn(&entry.queue, stretch);
        }
        Ok(next)
    }

    /// Cleans up after a transaction that did not delete the key of the hold.
    async fn finish(
        &self,
        entry: &QueueEntry,
        removal: RemovalReply,
        bump_epoch: bool,
    ) -> Result<(), RequestError> {
        // Also if another client has deleted the key: a copy of the enqueue that is still under way would create it
        // again, and nobody would delete it.
        // A guard key does not end with the entry that an operator deleted.
        let is_left = bump_epoch || entry.exclusive.as_ref().is_some_and(ExclusiveKey::may_exist);
        if is_left && removal == RemovalReply::AlreadyGone || matches!(removal, RemovalReply::StillThere(_)) {
            let keys = self.entry_keys(entry);
            self.take_away(entry, |bump| wire::withdraw(&keys, bump), bump_epoch).await?;
        }
        Ok(())
    }

    /// Executes one of the transactions that delete a claim's key; in a full store without the epoch bump, if that is
    /// enough.
    pub(crate) async fn take_away(
        &self,
        entry: &QueueEntry,
        txn: impl Fn(bool) -> Txn,
        bump_epoch: bool,
    ) -> Result<RemovalReply, RequestError> {
        let answer = match self.send_removal(entry, txn(bump_epoch)).await {
            Err(fault) if bump_epoch && fault.effect == Effect::Full => {
                let removal = wire::parse_removal(&self.send_removal(entry, txn(false)).await?)?;
                if matches!(removal, RemovalReply::Done | RemovalReply::AlreadyGone) {
                    self.owe_bump(entry);
                }
                return Ok(removal);
            }
            answer => answer?,
        };
        let removal = wire::parse_removal(&answer)?;
        if bump_epoch && removal == RemovalReply::Done {
            self.epoch.observe(revision_of(answer.header())?);
            entry.epoch_bumped();
        }
        Ok(removal)
    }

    async fn send_removal(&self, entry: &QueueEntry, txn: Txn) -> Result<TxnResponse, RequestError> {
        let answer = self.state.unless_over(self.server.txn(txn)).await;
        if answer.as_ref().is_err_and(RequestError::is_in_doubt) {
            entry.put_in_doubt();
        }
        answer
    }
}
