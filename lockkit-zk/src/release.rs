//! The end of a hold: its node goes.
//!
//! Failure cases:
//!
//! * The reply is lost: the deletion is repeated; a node that is not there is a release that was done. Where
//!   [names recur](crate::keys::Form::names_recur) it is looked at first, behind a request through the leader.
//! * The server refuses it (its ACL): the session is given up, and takes the node along.
//! * The server is away: the keeper asks again, until the session is over and takes the node along.

use lockkit_core::backend::Grant;
use tracing::warn;

use crate::{
    call::{Created, bounded},
    error::{Effect, Fault},
    session::ZkSession,
};

impl ZkSession {
    pub(crate) async fn release_grant(&self, grant: &Grant) -> Result<(), Fault> {
        let Some(held) = self.claims.get(grant.claim()) else { return Ok(()) };
        let removed = bounded(self.request_timeout, self.remove(&held.own)).await;
        removed.inspect_err(|fault| self.give_up_for(fault))?;
        self.claims.forget(grant.claim());
        Ok(())
    }

    /// Gives the session up where a deletion is refused: the node would hold up others as long as it lives.
    pub(crate) fn give_up_for(&self, fault: &Fault) {
        if fault.effect == Effect::Refused {
            warn!(?fault, "a node cannot be deleted; the session is given up");
            self.server.life.lose();
        }
    }

    /// Deletes this node, and no other that has taken its place.
    pub(crate) async fn remove(&self, own: &Created) -> Result<(), Fault> {
        if self.layout.form.names_recur() {
            // An earlier deletion whose reply was lost may be done, and this server not know it yet: behind a request
            // that went through the leader it does.
            self.server.check(&[&self.node]).await?;
            match self.server.data(&own.path).await {
                Ok((_, stat)) if stat.czxid == own.czxid => {}
                Ok(_) => return Ok(()),
                Err(fault) if fault.effect == Effect::Missing => return Ok(()),
                Err(fault) => return Err(fault),
            }
        }
        self.server.delete(&own.path).await
    }
}
