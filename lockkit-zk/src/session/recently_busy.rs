//! Tries at locks that were busy a moment ago: they read before they create a node.
//!
//! A try that finds the lock busy creates a node, lists and deletes the node: two transactions, which every server of
//! the ensemble logs, for the answer "busy". A client that polls a held lock pays them each time. So the client
//! remembers the locks that its tries have found busy. A try at one of them first reads, behind a sync, which costs no
//! transaction. If the read shows a contender, the try ends. Otherwise it creates a node like any other try: only a node
//! of its own can be granted.
//!
//! The read shows everything that the leader had committed when the sync arrived there, which was after the try began.
//! So a lock that any client released before the try began is not reported busy. There is one exception: a leader that
//! is cut off from its quorum, and has not noticed yet (for at most `syncLimit` ticks), does not know later commits.
//! Then a try may report a holder that has released since. A read grants nothing and ends no hold, so this is safe.
//!
//! Failure cases:
//!
//! * The answer is lost: the try fails as `Unavailable`, and leaves nothing behind.
//! * The claim is given up: it ends at once, because the read has no effect.
//! * A node looks like a contender and is none (its name and number were made up): a claim's node may be before it and
//!   be granted, but a read cannot see that. So a read never extends how long a lock counts as recently busy.
//!   [`BUSY_FOR`] after the last node of a try was behind another one, the next try creates a node.

use std::time::Duration;

use lockkit_core::backend::Claim;
use tracing::trace;

use super::ZkSession;
use crate::{
    error::{Effect, RequestError},
    keys::Form,
    sequence::sequence,
};

/// How long a lock counts as recently busy after a node of a try was behind another one.
pub(super) const BUSY_FOR: Duration = Duration::from_secs(60);

impl ZkSession {
    /// Returns whether a read shows that a lock is still busy; false without a read if the claim waits, or if the lock
    /// was not recently busy.
    pub(crate) async fn is_still_busy(&self, claim: &Claim, path: &str) -> Result<bool, RequestError> {
        if claim.wait() || !self.recently_busy.contains(claim.name(), self.server.liveness.now()) {
            return Ok(false);
        }
        // A request sent without a connection waits for the next one, for an unbounded time.
        self.server.connected(self.request_timeout).await?;
        let Some(is_busy) = self.read(claim, || self.has_contenders(path)).await? else {
            // Given up: the claim ends before it creates a node.
            return Ok(false);
        };
        match is_busy {
            true => {
                trace!(lock = ?claim.name(), "still busy");
                claim.note_contended();
            }
            false => self.recently_busy.remove(claim.name()),
        }
        Ok(is_busy)
    }

    async fn has_contenders(&self, path: &str) -> Result<bool, RequestError> {
        if self.layout.form == Form::Single {
            // A persistent node is no lock; the create reports it.
            let found = self.server.current_stat(path).await?;
            return Ok(found.is_some_and(|stat| stat.ephemeral_owner != 0));
        }
        match self.server.current_children(path).await {
            Ok(children) => Ok(children.iter().any(|child| sequence(child).is_some())),
            Err(error) if error.effect == Effect::Missing => Ok(false),
            Err(error) => Err(error),
        }
    }
}
