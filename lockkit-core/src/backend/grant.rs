//! What a session answers: a grant, the answers of a beat, a loss.

use super::{Claim, ClaimId};
use crate::{BootInstant, Error, FencingToken, LockName};

/// How an acquire ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum Acquired {
    /// The claim holds the lock.
    Granted(Grant),
    /// A try met a holder, or the claim was told to give up; nothing of it is left at the server.
    GaveUp,
    /// The claim's entry vanished while it waited (an operator's delete, a lost session): the keeper makes a new
    /// claim for the same caller and deadline. Its place in the queue is lost.
    EntryGone,
}

/// A lock held by a claim.
#[derive(Clone, Debug)]
pub struct Grant {
    name: LockName,
    claim: ClaimId,
    token: FencingToken,
    armed_at: BootInstant,
}

impl Grant {
    /// The grant of `claim`.
    ///
    /// `armed_at` is a reading of the session's clock, **not later than the server's start of the lifetime** that now
    /// runs: read by the code that sends the request and before it is sent, never when its reply arrives, and with
    /// every correction of the backend already taken off.
    pub fn new(claim: &Claim, token: FencingToken, armed_at: BootInstant) -> Self {
        Self { name: claim.name().clone(), claim: claim.id(), token, armed_at }
    }

    /// The lock that is held.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// The claim that holds it.
    pub fn claim(&self) -> ClaimId {
        self.claim
    }

    /// The fencing token of this grant; rises strictly over the grants of one name.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// Start of the lifetime that runs since the grant.
    pub fn armed_at(&self) -> BootInstant {
        self.armed_at
    }
}

/// What one beat found out.
#[derive(Debug)]
#[non_exhaustive]
pub struct Beat {
    /// About the session itself.
    pub session: Renewal,
    /// About each hold that was asked for, in any order.
    pub holds: Vec<(ClaimId, Renewal)>,
}

impl Beat {
    /// The answers of one beat.
    pub fn new(session: Renewal, holds: Vec<(ClaimId, Renewal)>) -> Self {
        Self { session, holds }
    }
}

/// What became of a lifetime at a beat.
#[derive(Debug)]
#[non_exhaustive]
pub enum Renewal {
    /// The server started the lifetime anew, not before `armed_at` (see [`Grant::new`]).
    Renewed {
        /// Start of the lifetime that now runs.
        armed_at: BootInstant,
    },
    /// The server says that it is over. Final.
    Gone,
    /// No answer, or none that tells; extends nothing and ends nothing.
    Unknown(Error),
}

/// A loss that the server told ahead of the next beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The session is over, and everything held in it.
    Session,
    /// This claim's hold is over; the others are not affected.
    Grant(ClaimId),
}
