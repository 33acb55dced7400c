//! Creates a claim's node; looks it up if the reply to its create is lost.

use std::ops::ControlFlow;

use lockkit_core::{
    ErrorKind,
    backend::{Claim, retry_pauses},
};
use tracing::{debug, warn};

use super::{ZkSession, acquire::ClaimOutcome};
use crate::{
    error::{Effect, RequestError},
    keys::{self, Form},
    sequence::sequence,
    wire::CreatedNode,
};

/// Half of the sequence numbers of one directory: a warning here leaves time to let it get empty and be deleted.
const NUMBERS_WARNING: i32 = 1 << 30;

/// Sequence numbers from here on are refused. At its last number the server (3.8) stops counting, so two nodes may get
/// the same one; older servers continue with negative numbers, which other programs order wrongly. The distance leaves
/// room for many clients that get there at once.
const NUMBERS_MAX: i32 = i32::MAX - (1 << 16) + 1;

/// A claim's node, as far as it is known.
pub(crate) struct ClaimEntry {
    /// The path of the lock: the directory of the queue, or the lock node itself.
    pub(crate) lock_path: String,
    pub(crate) node: Option<CreatedNode>,
    /// The children of the directory, as listed right behind the create.
    pub(crate) first_list: Option<Vec<String>>,
    /// A create was not answered, so the node may exist.
    pub(crate) create_in_doubt: bool,
}

impl ClaimEntry {
    pub(crate) fn new(lock_path: String) -> Self {
        Self { lock_path, node: None, first_list: None, create_in_doubt: false }
    }
}

impl ZkSession {
    /// Creates the claim's node.
    pub(crate) async fn create(
        &self,
        claim: &Claim,
        entry: &mut ClaimEntry,
    ) -> Result<ControlFlow<ClaimOutcome, CreatedNode>, RequestError> {
        let data = self.layout.proposals().of_claim(claim);
        let mut pauses = retry_pauses();
        loop {
            if claim.has_given_up() {
                return Ok(ControlFlow::Break(ClaimOutcome::GaveUp));
            }
            let error = match self.create_once(claim, entry, &data).await {
                Ok(node) => return Ok(ControlFlow::Continue(node)),
                // Its node may still appear, so this claim creates no other one.
                Err(error) if error.effect == Effect::Unknown && claim.wait() => {
                    let gave_up = claim.has_given_up();
                    let outcome = if gave_up { ClaimOutcome::GaveUp } else { ClaimOutcome::EntryGone };
                    return Ok(ControlFlow::Break(outcome));
                }
                Err(error) if error.effect == Effect::Missing => {
                    match self.server.make_directory(self.directory(entry)).await {
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
        data: &str,
    ) -> Result<CreatedNode, RequestError> {
        if !claim.wait() {
            // A request sent without a connection waits for the next one, for an unbounded time.
            self.server.connected(self.request_timeout).await?;
        }
        entry.create_in_doubt = true;
        let mut created = match self.layout.form {
            Form::Single => self.server.create(&entry.lock_path, data).await,
            form @ (Form::Curator | Form::Bare) => {
                let prefix = keys::node_prefix(form, claim.id());
                let created = self.server.create_and_list(&entry.lock_path, &prefix, data).await;
                created.map(|(node, list)| {
                    entry.first_list = list;
                    node
                })
            }
        };
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

    /// Returns the directory in which a claim's node is created.
    fn directory<'a>(&self, entry: &'a ClaimEntry) -> &'a str {
        match self.layout.form {
            Form::Single => parent(&entry.lock_path),
            Form::Curator | Form::Bare => &entry.lock_path,
        }
    }

    /// Looks the node of an unanswered create up, until the answer is known.
    pub(crate) async fn look_up(&self, claim: &Claim, entry: &mut ClaimEntry) -> Result<(), RequestError> {
        let mut pauses = retry_pauses();
        loop {
            match self.find(claim, &entry.lock_path).await {
                Ok(found) => {
                    debug!(claim = ?claim.id(), ?found, "unanswered create looked up");
                    if found.is_none() {
                        self.late_creates.insert(claim.id());
                    }
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

    /// Refuses a sequence number that another node may have, too.
    pub(crate) fn check_number(&self, node: &CreatedNode) -> Result<(), RequestError> {
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

/// Returns the directory of a node.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}
