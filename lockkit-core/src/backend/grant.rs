//! The results of a session: a grant, the results of a heartbeat, a loss.

use super::{Claim, ClaimId, Evidence};
use crate::{BootInstant, Error, FencingToken, LockName, Metadata, metadata::ClaimMetadata};

/// The result of an acquire.
#[derive(Debug)]
#[non_exhaustive]
pub enum Acquired {
    /// The claim holds the lock.
    Granted(Grant),
    /// A try found a holder, or the claim gave up; nothing of it is left at the server.
    GaveUp,
    /// The claim's entry vanished while it waited (deleted by an operator, or its session was lost), or a lost request may
    /// still create it, and the backend sees that it is removed then. The keeper creates a new claim for the same caller
    /// and time limit, at the end of the queue.
    EntryGone,
}

/// A lock held by a claim.
#[derive(Clone, Debug)]
pub struct Grant {
    name: LockName,
    claim: ClaimId,
    token: FencingToken,
    armed_at: BootInstant,
    evidence: Option<Evidence>,
    metadata: ClaimMetadata,
}

impl Grant {
    /// Creates the grant of `claim`.
    ///
    /// `armed_at` is a reading of the session's clock that is **not later than the server's start of the current
    /// lifetime**. Read it in the code that sends the request, before the sending and never when the reply arrives.
    /// Corrections of the backend are already subtracted.
    pub fn new(claim: &Claim, token: FencingToken, armed_at: BootInstant) -> Self {
        Self {
            name: claim.name().clone(),
            claim: claim.id(),
            token,
            armed_at,
            evidence: None,
            metadata: claim.shared_metadata().clone(),
        }
    }

    /// Adds what proves this grant inside the store.
    #[must_use]
    pub fn with_evidence(mut self, evidence: Evidence) -> Self {
        self.evidence = Some(evidence);
        self
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Returns the claim that holds it.
    pub fn claim(&self) -> ClaimId {
        self.claim
    }

    /// Returns the fencing token, which rises strictly over the grants of one name.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// Returns the start of the first lifetime of the hold.
    pub fn armed_at(&self) -> BootInstant {
        self.armed_at
    }

    /// Returns the metadata that the claim stored with its entry.
    pub fn metadata(&self) -> &Metadata {
        self.metadata.record()
    }

    /// Returns what proves this grant inside the store, if the store can compare it.
    pub fn evidence(&self) -> Option<&Evidence> {
        self.evidence.as_ref()
    }
}

/// The results of one heartbeat.
#[derive(Debug)]
#[non_exhaustive]
pub struct Renewals {
    /// The result for the session itself.
    pub session: Renewal,
    /// The result for each requested hold, in any order.
    pub holds: Vec<(ClaimId, Renewal)>,
}

impl Renewals {
    /// Creates the results of one heartbeat.
    pub fn new(session: Renewal, holds: Vec<(ClaimId, Renewal)>) -> Self {
        Self { session, holds }
    }
}

/// The result of a heartbeat for one lifetime.
#[derive(Debug)]
#[non_exhaustive]
pub enum Renewal {
    /// The server restarted the lifetime, not before `armed_at` (see [`Grant::new`]).
    Renewed {
        /// Start of the current lifetime.
        armed_at: BootInstant,
    },
    /// The server reported that the lifetime is over. This is final.
    Gone,
    /// No conclusive answer; neither extends nor ends the lifetime.
    Unknown(Error),
}

/// A loss that the server reports before the next heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The session is over, and all its holds.
    Session,
    /// The hold of this claim is over; others are not affected.
    Grant(ClaimId),
}
