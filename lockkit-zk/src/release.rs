//! The end of a hold: its node goes.
//!
//! Failure cases:
//!
//! * The reply is lost: the deletion is repeated; a node that is not there is a release that was done. No other claim will
//!   ever have a node of this name, but for [`Form::Single`], where it is looked at first.
//! * The server is away: the keeper asks again, until the session is over and takes the node along.

use lockkit_core::backend::Grant;

use crate::{
    call::{Created, bounded},
    error::{Effect, Fault},
    keys::Form,
    session::ZkSession,
};

impl ZkSession {
    pub(crate) async fn release_grant(&self, grant: &Grant) -> Result<(), Fault> {
        let Some(held) = self.claims.get(grant.claim()) else { return Ok(()) };
        bounded(self.request_timeout, self.remove(&held.own)).await?;
        self.claims.forget(grant.claim());
        Ok(())
    }

    /// Deletes this node, and no other that has taken its place.
    pub(crate) async fn remove(&self, own: &Created) -> Result<(), Fault> {
        if self.layout.form == Form::Single {
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
