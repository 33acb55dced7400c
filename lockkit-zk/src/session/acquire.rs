//! A claim up to its grant: create a node, wait for those before it, and withdraw it if the claim ends without a grant.
//! A try on a lock that was recently busy [looks first](super::recently_busy), and may end without a node.
//!
//! The create and the first list are sent together. The server answers a session's requests in their order, so that
//! list shows the node like any list that is sent after the create's reply. If the create's reply is lost, the list
//! counts for nothing.
//!
//! Failure cases:
//!
//! * The reply to the create is lost: the node is looked up by the claim's id **and** this session as its owner, behind
//!   a request through the leader. A node that is not found may still [appear](super::late_creates): the claim ends, and
//!   another one follows.
//! * The claim is given up during the create: only the reply has the node's name, so the reply is awaited; then the
//!   node is deleted, repeatedly until that is answered.
//! * The predecessor vanishes between list and watch: the list is read again at once. If only its event is lost, a
//!   re-check looks for the predecessor and the claim's node by path, and the list is read again when the predecessor is
//!   gone. A list per re-check would read n^2 names in a queue of n waiters ([decision
//!   0024](../../docs/decisions/0024-zookeeper-rechecks-by-name.md)).
//! * The claim's node vanishes during the wait (an operator deletes it). So a deletion of the predecessor grants nothing;
//!   only a listing does, if it shows the claim's node and none before it. The queue was in that state once, and a claim
//!   that was first stays first.
//! * The list is old, and the server has expired the session since: then the grant's deadline has passed, because it
//!   counts from the last answer through the leader. If that answer is old, the leader is asked first.
//! * An operator deletes directory and nodes, and other claims get their names: in forms with recurring names, the node
//!   at the head is verified by its `czxid`.
//! * The directory vanishes (the server removes empty containers): it is created again. If it is missing once the claim's
//!   node was created, an operator has deleted it with all nodes in it, and the claim starts again.
//! * The server refuses to delete the node (its ACL): the node would block others for as long as the session lives. The
//!   session is abandoned, and the caller gets the error.
//! * The session is over: every pending step ends, and the server removes the nodes.

use std::ops::ControlFlow;

use lockkit_core::{
    Error, Result,
    backend::{Acquired, Claim, Evidence, Grant, RetryPauses, recheck_pause, retry_pauses},
    support::SessionOver,
};
use tracing::debug;

use super::{ZkSession, creation::ClaimEntry, existence::NodeId, granted_nodes::GrantedNode};
use crate::{
    error::{Effect, RequestError},
    keys::Form,
    sequence::{QueuePosition, queue_position},
    wire::CreatedNode,
};

/// How a claim ended, if not by an error.
pub(crate) enum ClaimOutcome {
    Granted,
    GaveUp,
    EntryGone,
}

impl ZkSession {
    pub(crate) async fn acquire_claim(&self, claim: &Claim) -> Result<Acquired> {
        let mut entry = ClaimEntry::new(self.layout.lock(claim.name())?);
        let outcome = match self.is_still_busy(claim, &entry.lock_path).await {
            Ok(true) => Ok(ClaimOutcome::GaveUp),
            Ok(false) if self.layout.form == Form::Single => self.claim_single(claim, &mut entry).await,
            Ok(false) => self.claim(claim, &mut entry).await,
            Err(error) => Err(error),
        };
        if let (Ok(ClaimOutcome::Granted), Some(node)) = (&outcome, &entry.node) {
            let granted = GrantedNode {
                session: self.server.session_id(),
                name: claim.name().clone(),
                node: node.clone(),
            };
            self.granted_nodes.insert(claim.id(), granted);
            let grant = Grant::new(claim, node.token(), self.server.liveness.armed_at());
            return Ok(Acquired::Granted(match self.layout.form.names_recur() {
                true => grant,
                false => grant.with_evidence(Evidence::node_exists(&node.path, node.czxid)),
            }));
        }
        let withdrawn = self.withdraw(claim, &mut entry).await;
        match outcome.and_then(|outcome| withdrawn.map(|()| outcome)) {
            Ok(ClaimOutcome::GaveUp) => Ok(Acquired::GaveUp),
            Err(error) if !error.may_succeed_in_another_session() || self.server.state.is_closed() => {
                Err(self.error(claim, error))
            }
            // The node ends with the session.
            _ => Ok(Acquired::EntryGone),
        }
    }

    fn error(&self, claim: &Claim, error: RequestError) -> Error {
        error.into_error("acquire").with_lock(claim.name())
    }

    async fn claim(&self, claim: &Claim, entry: &mut ClaimEntry) -> Result<ClaimOutcome, RequestError> {
        match self.create(claim, entry).await? {
            ControlFlow::Break(outcome) => Ok(outcome),
            ControlFlow::Continue(node) => {
                self.check_number(&node)?;
                let first_list = entry.first_list.take();
                self.queue(claim, &entry.lock_path, &node, first_list).await
            }
        }
    }

    /// Waits until no other node is before the claim's node.
    async fn queue(
        &self,
        claim: &Claim,
        lock: &str,
        node: &CreatedNode,
        mut first_list: Option<Vec<String>>,
    ) -> Result<ClaimOutcome, RequestError> {
        loop {
            let listed = match first_list.take() {
                Some(children) => (!claim.has_given_up()).then_some(children),
                None => match self.read(claim, || self.server.children(lock)).await {
                    // The claim's node was in it.
                    Err(error) if error.effect == Effect::Missing => return Ok(ClaimOutcome::EntryGone),
                    listed => listed?,
                },
            };
            let Some(children) = listed else { return Ok(ClaimOutcome::GaveUp) };
            let predecessor = match queue_position(&children, node.name()) {
                QueuePosition::NotQueued => return Ok(ClaimOutcome::EntryGone),
                QueuePosition::First => return self.confirm_first(claim, node).await,
                QueuePosition::Behind(predecessor) => predecessor,
            };
            claim.note_contended();
            if !claim.wait() {
                self.recently_busy.record(claim.name(), self.server.liveness.now());
                return Ok(ClaimOutcome::GaveUp);
            }
            if let Some(outcome) = self.wait(claim, node, &format!("{lock}/{predecessor}")).await? {
                return Ok(outcome);
            }
        }
    }

    /// Waits until the predecessor is gone, and the list must be read again. `Some`: the claim ended without a grant.
    async fn wait(
        &self,
        claim: &Claim,
        node: &CreatedNode,
        predecessor: &str,
    ) -> Result<Option<ClaimOutcome>, RequestError> {
        let watcher = match self.read(claim, || self.server.watch(predecessor)).await? {
            None => return Ok(Some(ClaimOutcome::GaveUp)),
            Some(None) => return Ok(None),
            Some(Some((_, watcher))) => watcher,
        };
        let changed = watcher.changed();
        tokio::pin!(changed);
        let nodes = [NodeId::of(node, self.layout.form), NodeId::by_path(predecessor)];
        loop {
            tokio::select! {
                biased;
                () = claim.give_up() => return Ok(Some(ClaimOutcome::GaveUp)),
                () = self.server.state.over() => return Err(SessionOver.into()),
                _ = &mut changed => return Ok(None),
                () = tokio::time::sleep(recheck_pause(self.ttl)) => {}
            }
            // The watch stays. While both nodes exist, no node can come between them, because numbers rise.
            match self.read(claim, || self.server.nodes_exist(&nodes)).await?.as_deref() {
                None => return Ok(Some(ClaimOutcome::GaveUp)),
                Some([true, true]) => {}
                Some([false, ..]) => return Ok(Some(ClaimOutcome::EntryGone)),
                Some(_) => return Ok(None),
            }
        }
    }

    /// Grants the claim whose node is first in a list, after verifying the node where the list is not enough.
    async fn confirm_first(&self, claim: &Claim, node: &CreatedNode) -> Result<ClaimOutcome, RequestError> {
        // Below half a ttl the client counts as suspect: the grant would end soon, and the list may be as old.
        if self.server.liveness.left() < self.ttl / 2 {
            let checked = self.read(claim, || async { self.server.check(&[&node.path]).await });
            match checked.await? {
                None => return Ok(ClaimOutcome::GaveUp),
                Some(None) => {}
                Some(Some(_)) => return Ok(ClaimOutcome::EntryGone),
            }
        }
        if !self.layout.form.names_recur() {
            return Ok(ClaimOutcome::Granted);
        }
        // The list may be of a new directory, and the name may be that of another claim.
        Ok(match self.read(claim, || self.server.stat(&node.path)).await? {
            None => ClaimOutcome::GaveUp,
            Some(stat) if stat.is_some_and(|stat| stat.czxid == node.czxid) => ClaimOutcome::Granted,
            Some(_) => ClaimOutcome::EntryGone,
        })
    }

    /// Repeats a read until it is answered; returns `None` if the claim is given up meanwhile.
    pub(crate) async fn read<T, F>(
        &self,
        claim: &Claim,
        request: impl Fn() -> F,
    ) -> Result<Option<T>, RequestError>
    where
        F: Future<Output = Result<T, RequestError>>,
    {
        let mut pauses = retry_pauses();
        loop {
            let answer = tokio::select! {
                biased;
                () = claim.give_up() => return Ok(None),
                answer = request() => answer,
            };
            match answer {
                Ok(value) => return Ok(Some(value)),
                Err(error) if error.is_transient() && claim.wait() => debug!(?error, "read failed, retrying"),
                Err(error) => return Err(error),
            }
            self.pause(claim, &mut pauses).await?;
        }
    }

    /// Pauses between two attempts; ends early if the claim is given up.
    pub(crate) async fn pause(&self, claim: &Claim, pauses: &mut RetryPauses) -> Result<(), RequestError> {
        tokio::select! {
            () = pauses.wait() => Ok(()),
            () = claim.give_up() => Ok(()),
            () = self.server.state.over() => Err(SessionOver.into()),
        }
    }

    /// Withdraws what a claim without a grant may have left at the server. Repeats that until it is answered or the
    /// session is over; after a refusal the session is abandoned, and the node ends with it.
    async fn withdraw(&self, claim: &Claim, entry: &mut ClaimEntry) -> Result<(), RequestError> {
        let state = &self.server.state;
        let withdrawn = async {
            if entry.create_in_doubt && !state.is_over() {
                self.look_up(claim, entry).await?;
            }
            let Some(node) = &entry.node else { return Ok(()) };
            let remove = || self.server.remove(&self.layout, node);
            state.repeat_withdrawal(claim.id(), RequestError::is_transient, remove).await
        };
        withdrawn.await.inspect_err(|error| self.server.abandon_if_refused(error))
    }
}
