//! What a session can do besides locking: [elections](elections) and [records](records). What both do is here: writes
//! that only the holder of a lock may make, a proposal or a record.
//!
//! Each node compares the lock's value and writes in one step. A write counts once a majority of the nodes has accepted
//! it, so a later grant, which has another majority, shares a node with it: there the write came before that grant.
//!
//! * The grant was lost meanwhile: too few nodes accept. What the others have accepted stays there.
//! * A reply is lost: the node counts as unknown, and the caller repeats the write.
//! * The client was suspended between two replies: the write does not count, because the first node may have lost its
//!   data and may count again by now. A node stays out for longer than any ttl.

mod elections;
mod records;

use lockkit_core::{backend::Grant, lease};

use crate::{
    error::RequestError,
    redlock::{
        node_call::NodeCall,
        session::{RedlockSession, granted_attempt::WonAttempt, votes::Votes},
        wire::{ClaimReply, claim_reply},
    },
};

impl RedlockSession {
    /// Sends a write to all nodes. Returns whether a majority accepted it; `false` if none can any more.
    pub(super) async fn write_held(&self, request: NodeCall) -> Result<bool, RequestError> {
        let context = &self.context;
        let (nodes, rejoiner, started_at) = (&context.nodes, context.rejoiner.clone(), context.clock.now());
        let mut votes = Votes::new(nodes.count());
        let mut round = nodes.ask(request, move |number, answer| {
            let reply = claim_reply(answer)?;
            if reply == ClaimReply::Empty {
                rejoiner.start_rejoin(number);
            }
            Ok(reply)
        });
        while !votes.is_owned_by_majority() && !votes.is_lost() {
            let Some((node, vote)) = round.next(false).await else { break };
            votes.record(node, vote);
        }
        if votes.is_lost() {
            return Ok(false);
        }
        if !votes.is_owned_by_majority() {
            return Err(nodes.no_majority(&votes.faults()));
        }
        if context.clock.now() >= lease::deadline(started_at, context.ttl) {
            return Err(nodes.too_slow());
        }
        Ok(true)
    }

    /// Returns the hold of a grant, unless it has ended.
    pub(super) fn held(&self, grant: &Grant) -> Result<Option<WonAttempt>, RequestError> {
        if self.closed.is_cancelled() {
            return Err(RequestError::session_closed());
        }
        Ok(self.active_hold(grant.claim()))
    }
}
