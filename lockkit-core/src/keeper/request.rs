//! What a caller asks for, and how long it waits.

use std::time::Duration;

use super::reentry::ReentryKey;
use crate::{LockName, Owner, Proposal};

/// The request of a caller.
#[derive(Clone, Debug)]
pub(crate) struct LockRequest {
    pub(crate) name: LockName,
    pub(crate) owner: Option<Owner>,
    pub(crate) max_hold: Option<Duration>,
    /// How long the entry stays at least, once granted.
    pub(crate) at_least: Option<Duration>,
    /// What the claim proposes in an election.
    pub(crate) proposal: Option<Proposal>,
}

impl LockRequest {
    pub(crate) fn new(name: LockName) -> Self {
        Self { name, owner: None, max_hold: None, at_least: None, proposal: None }
    }

    pub(super) fn key(&self) -> Option<ReentryKey> {
        self.owner.clone().map(|owner| (self.name.clone(), owner))
    }
}

/// How long a caller waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitPolicy {
    /// Without a time limit.
    Unlimited,
    /// In the queue, until this time limit.
    Until(tokio::time::Instant),
    /// Not at all: one request, answered before this time limit.
    Try(tokio::time::Instant),
}
