//! A claim up to its grant: create a node, wait for those before it, and withdraw it if the claim ends without a grant.
//!
//! Failure cases:
//!
//! * The reply to the create is lost: the node is looked up by the claim's id **and** this session as its owner, behind
//!   a request through the leader. What that does not find cannot appear later; only then the create is repeated.
//! * The claim is given up during the create: only the reply has the node's name, so the reply is awaited; then the
//!   node is deleted, repeatedly until that is answered.
//! * The predecessor vanishes between list and watch: the list is read again at once. If only its event is lost, a
//!   re-check looks for the predecessor and the own node by path, and the list is read again when the predecessor is
//!   gone. A list per re-check would read n^2 names in a queue of n waiters ([decision
//!   0024](../../docs/decisions/0024-zookeeper-rechecks-by-name.md)).
//! * The own node vanishes during the wait (an operator deletes it): so the deletion of the predecessor grants nothing;
//!   only a listing does, if it shows the own node and none before it. The queue was in that state once, and a claim
//!   that was first stays first.
//! * The list is old, and the server has expired the session since: then the grant's deadline has passed, because it
//!   counts from the last answer through the leader. If that answer is old, the leader is asked first.
//! * An operator deletes directory and nodes, and other claims get their names: in forms with recurring names, the node
//!   at the head is verified by its `czxid`.
//! * The directory vanishes (the server removes empty containers): it is created again.
//! * The server refuses to delete the node (its ACL): the node would block others for as long as the session lives. The
//!   session is abandoned, and the caller gets the error.
//! * The session is over: every pending step ends, and the server removes the nodes.

use std::ops::ControlFlow;

use lockkit_core::{
    Error, ErrorKind, Result,
    backend::{Acquired, Claim, Evidence, Grant, RetryPauses, recheck_pause, retry_pauses},
    support::SessionOver,
};
use tracing::{debug, warn};

use crate::{
    error::{Effect, RequestError},
    existence::NodeId,
    granted_nodes::GrantedNode,
    keys::{self, Form},
    sequence::{QueuePosition, queue_position, sequence},
    session::ZkSession,
    wire::CreatedNode,
};

/// Half of the sequence numbers of one directory: a warning here leaves time to let it get empty and be deleted.
const NUMBERS_WARNING: i32 = 1 << 30;

/// Sequence numbers from here on are refused. At its last number the server (3.8) stops counting, so two nodes may get
/// the same one; older servers continue with negative numbers, which other programs order wrongly. The distance leaves
/// room for many clients that get there at once.
const NUMBERS_MAX: i32 = i32::MAX - (1 << 16) + 1;

/// How a claim ended, if not by an error.
pub(crate) enum ClaimOutcome {
    Granted,
    GaveUp,
    EntryGone,
}

/// A claim's node, as far as it is known.
pub(crate) struct ClaimEntry {
    /// The path of the lock: the directory of the queue, or the lock node itself.
    pub(crate) lock_path: String,
    pub(crate) node: Option<CreatedNode>,
    /// A create was not answered, so the node may exist.
    pub(crate) create_in_doubt: bool,
}

impl ZkSession {
    pub(crate) async fn acquire_claim(&self, claim: &Claim) -> Result<Acquired> {
        let mut entry =
            ClaimEntry { lock_path: self.layout.lock(claim.name())?, node: None, create_in_doubt: false };
        let outcome = match self.layout.form {
            Form::Single => self.claim_single(claim, &mut entry).await,
            Form::Curator | Form::Bare => self.claim(claim, &mut entry).await,
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
        let prefix = format!("{}/{}", entry.lock_path, keys::node_prefix(self.layout.form, claim.id()));
        match self.create(claim, entry, &prefix).await? {
            ControlFlow::Break(outcome) => Ok(outcome),
            ControlFlow::Continue(node) => {
                self.check_number(&node)?;
                self.queue(claim, &entry.lock_path, &node).await
            }
        }
    }

    /// Creates the claim's node.
    pub(crate) async fn create(
        &self,
        claim: &Claim,
        entry: &mut ClaimEntry,
        path: &str,
    ) -> Result<ControlFlow<ClaimOutcome, CreatedNode>, RequestError> {
        let data = self.layout.proposals().write(claim.id(), claim.metadata());
        let mut pauses = retry_pauses();
        loop {
            if claim.has_given_up() {
                return Ok(ControlFlow::Break(ClaimOutcome::GaveUp));
            }
            let error = match self.create_once(claim, entry, path, &data).await {
                Ok(node) => return Ok(ControlFlow::Continue(node)),
                Err(error) if error.effect == Effect::Missing => {
                    match self.server.make_directory(parent(path)).await {
                        Ok(()) => continue,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            // A try does not wait for an unavailable server.
            if !error.is_transient() || !claim.wait() {
                return Err(error);
            }
            debug!(?error, claim = ?claim.id(), "create failed, retrying");
            self.pause(claim, &mut pauses).await?;
        }
    }

    /// Sends one create; looks the node up if the reply is lost.
    async fn create_once(
        &self,
        claim: &Claim,
        entry: &mut ClaimEntry,
        path: &str,
        data: &str,
    ) -> Result<CreatedNode, RequestError> {
        if !claim.wait() {
            // A request sent without a connection waits for the next one, for an unbounded time.
            self.server.connected(self.request_timeout).await?;
        }
        entry.create_in_doubt = true;
        let mut created = self.server.create(path, data, self.layout.form != Form::Single).await;
        if created.as_ref().is_err_and(|error| error.effect == Effect::Unknown) {
            self.look_up(claim, entry).await?;
            if let Some(node) = &entry.node {
                created = Ok(node.clone());
            }
        }
        entry.create_in_doubt = created.as_ref().is_err_and(|error| error.effect == Effect::SessionOver);
        entry.node = created.as_ref().ok().cloned();
        created
    }

    /// Looks the node of an unanswered create up, until the answer is known.
    async fn look_up(&self, claim: &Claim, entry: &mut ClaimEntry) -> Result<(), RequestError> {
        let mut pauses = retry_pauses();
        loop {
            match self.find(claim, &entry.lock_path).await {
                Ok(found) => {
                    debug!(claim = ?claim.id(), ?found, "unanswered create looked up");
                    (entry.node, entry.create_in_doubt) = (found, false);
                    return Ok(());
                }
                Err(error) if error.is_transient() => debug!(?error, "read failed, retrying"),
                Err(error) => return Err(error),
            }
            pauses.wait().await;
        }
    }

    /// Returns this claim's node, if it exists.
    async fn find(&self, claim: &Claim, lock: &str) -> Result<Option<CreatedNode>, RequestError> {
        // The answer does not matter, only that the request goes through the leader.
        self.server.check(&[&self.client_node]).await?;
        let form = self.layout.form;
        let prefix = keys::node_prefix(form, claim.id());
        let candidates: Vec<String> = match form {
            Form::Single => vec![lock.to_owned()],
            Form::Curator | Form::Bare => match self.server.children(lock).await {
                Ok(children) => children
                    .iter()
                    .filter(|child| child.starts_with(&prefix))
                    .map(|child| format!("{lock}/{child}"))
                    .collect(),
                Err(error) if error.effect == Effect::Missing => Vec::new(),
                Err(error) => return Err(error),
            },
        };
        for path in candidates {
            let (data, stat) = match self.server.data(&path).await {
                Err(error) if error.effect == Effect::Missing || error.is_denied() => continue,
                answer => answer?,
            };
            // In forms whose node names do not identify the claim, the data does.
            let is_claims =
                form == Form::Curator || data.starts_with(keys::data_prefix(claim.id()).as_bytes());
            if is_claims && stat.ephemeral_owner == self.server.session_id() {
                return Ok(Some(CreatedNode { path, czxid: stat.czxid }));
            }
        }
        Ok(None)
    }

    /// Waits until no other node is before the claim's node.
    async fn queue(
        &self,
        claim: &Claim,
        lock: &str,
        node: &CreatedNode,
    ) -> Result<ClaimOutcome, RequestError> {
        loop {
            let Some(children) = self.read(claim, || self.server.children(lock)).await? else {
                return Ok(ClaimOutcome::GaveUp);
            };
            let predecessor = match queue_position(&children, node.name()) {
                QueuePosition::NotQueued => return Ok(ClaimOutcome::EntryGone),
                QueuePosition::First => return self.confirm_first(claim, node).await,
                QueuePosition::Behind(predecessor) => predecessor,
            };
            claim.note_contended();
            if !claim.wait() {
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
    async fn pause(&self, claim: &Claim, pauses: &mut RetryPauses) -> Result<(), RequestError> {
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
        let mut pauses = retry_pauses();
        while !state.is_over() {
            match self.withdraw_once(claim, entry).await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_transient() => {
                    debug!(?error, claim = ?claim.id(), "withdrawal failed, retrying")
                }
                Err(error) => {
                    self.abandon_if_refused(&error);
                    return Err(error);
                }
            }
            tokio::select! {
                () = pauses.wait() => {}
                () = state.over() => {}
            }
        }
        Ok(())
    }

    async fn withdraw_once(&self, claim: &Claim, entry: &mut ClaimEntry) -> Result<(), RequestError> {
        if entry.create_in_doubt {
            self.look_up(claim, entry).await?;
        }
        if let Some(node) = &entry.node {
            self.remove(node).await?;
            debug!(claim = ?claim.id(), "withdrawn");
        }
        Ok(())
    }

    /// Refuses a sequence number that another node may have, too.
    fn check_number(&self, node: &CreatedNode) -> Result<(), RequestError> {
        match sequence(node.name()) {
            Some(0..NUMBERS_WARNING) => {}
            Some(NUMBERS_WARNING..NUMBERS_MAX) => {
                let what =
                    "half of this directory's sequence numbers are used; let it get empty and delete it";
                self.numbers_warning.call_once(|| warn!(node = node.path, what));
            }
            _ => {
                let directory = parent(&node.path);
                let what =
                    format!("{directory} has no sequence numbers left; let it get empty and delete it");
                return Err(RequestError::new(Effect::Refused, ErrorKind::Unavailable, what));
            }
        }
        Ok(())
    }
}

/// The directory of a node.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}
