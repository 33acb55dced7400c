//! A claim up to its grant: enqueue, [wait](super::waiting), and withdraw if it is not granted.
//!
//! Failure cases:
//!
//! * The reply to the enqueue is lost. The enqueue is sent again; no other claim has this key, so a copy finds the
//!   effect of an earlier one. Copies that were never answered may arrive at any later time. A claim with such copies
//!   ends by a transaction that writes the client's epoch key (an epoch bump). Every copy compares the epoch, so a late
//!   one does nothing.
//! * The store is full. The enqueue that reaches the limit is executed and answered with an error, as those are that the
//!   server refuses. The claim fails, and its key is deleted in case it exists; a full store allows that.
//! * The claim gives up during a request. The reply is awaited (each request has a time limit). Then the key is
//!   deleted; the deletion is retried until it is answered.
//! * The lease ends. Every pending step ends, and nothing is left at the server.

use std::{ops::ControlFlow, sync::Arc};

use lockkit_core::{
    Error, Result,
    backend::{Acquired, Claim, ClaimId, Evidence, Grant, retry_pauses},
    support::SessionOver,
};
use tracing::debug;

use super::{EtcdSession, entry::QueueEntry};
use crate::{
    error::RequestError,
    wire::{self, EnqueueMode, EnqueueReply, token},
};

/// How a claim ended.
pub(crate) enum ClaimEnd {
    Granted,
    GaveUp,
    EntryGone,
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
        if !claim.wait() && self.was_recently_busy(claim.name()) && self.is_busy(entry).await {
            return Ok(self.found_busy(claim));
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
    pub(crate) fn found_busy(&self, claim: &Claim) -> ClaimEnd {
        claim.note_contended();
        self.recently_busy.record(claim.name(), self.lease.now());
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
        let (epoch, value) = (self.epoch.current(), self.layout.claim_value(claim));
        let mode = match claim.wait() {
            false => EnqueueMode::OnlyFirst,
            true if entry.has_unanswered() => EnqueueMode::AnywhereOnce,
            true => EnqueueMode::Anywhere,
        };
        let txn = wire::enqueue(&self.entry_keys(entry), epoch, &value, mode);
        entry.enqueue_sent(epoch);
        let answer = self.txn(txn).await;
        match &answer {
            Err(fault) if fault.may_come_later() => entry.put_in_doubt(),
            Err(fault) if fault.is_in_doubt() => entry.enqueue_doubtful(),
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
                return Some(ControlFlow::Break(self.found_busy(claim)));
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
        Some(ControlFlow::Continue(()))
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
        let withdraw = || self.withdraw_once(claim, entry);
        let withdrawn = self.state.repeat_withdrawal(claim.id(), RequestError::is_transient, withdraw).await;
        if let Err(fault) = withdrawn {
            // As long as the session lives, the key would block other clients.
            debug!(?fault, claim = ?claim.id(), "withdrawal refused; abandoning the session");
            self.state.mark_lost();
        }
        self.forget(claim.id(), entry);
    }

    /// Removes an ended claim from the registry. Returns its key to the pool unless a request in doubt names it.
    pub(crate) fn forget(&self, id: ClaimId, entry: &QueueEntry) {
        self.claims.forget(id);
        if !entry.is_in_doubt() {
            self.put_back_key(&entry.queue, entry.key.clone());
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
        let keys = self.entry_keys(entry);
        self.take_away(entry, |bump| wire::withdraw(&keys, bump), bump_epoch).await?;
        debug!(claim = ?claim.id(), "withdrawn");
        Ok(())
    }
}
