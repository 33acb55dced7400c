//! Ends a hold: deletes its node.
//!
//! Failure cases:
//!
//! * The reply is lost: the deletion is repeated; if the node is missing, the release has succeeded. Where [names
//!   recur](crate::keys::Form::names_recur), the node is read first, and [nothing deletes late](super::late_deletions).
//! * The server refuses the deletion (its ACL): the session is abandoned, and the node ends with it.
//! * The server is unavailable: the keeper repeats the release until the session is over, and the node ends with it.

use lockkit_core::{backend::Grant, support::bounded};
use tracing::warn;

use super::ZkSession;
use crate::{
    error::{Effect, RequestError},
    keys::Layout,
    wire::{CreatedNode, Server},
};

impl ZkSession {
    pub(crate) async fn release_grant(&self, grant: &Grant) -> Result<(), RequestError> {
        let Some(granted) = self.granted_nodes.get(grant.claim()) else { return Ok(()) };
        let removed = bounded(self.request_timeout, self.server.remove(&self.layout, &granted.node)).await;
        removed.inspect_err(|error| self.server.abandon_if_refused(error))?;
        self.granted_nodes.remove(grant.claim());
        Ok(())
    }
}

impl Server {
    /// Abandons the session if a deletion was refused: the node would block others for as long as the session lives.
    pub(crate) fn abandon_if_refused(&self, error: &RequestError) {
        if error.effect == Effect::Refused {
            warn!(?error, "session abandoned: the server refuses what deletes a node");
            self.state.mark_lost();
        }
    }

    /// Deletes this node, but no other node that has taken its name.
    pub(crate) async fn remove(&self, layout: &Layout, node: &CreatedNode) -> Result<(), RequestError> {
        match layout.form.names_recur() {
            true => self.delete_recurring(layout, node).await,
            false => self.delete(&node.path).await,
        }
    }
}
