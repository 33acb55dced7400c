//! What a caller asks for, and how long it waits.

use std::time::Duration;

use tokio::time::Instant;

use super::reentry::ReentryKey;
use crate::{Error, ErrorKind, LockName, Owner, Proposal, Result, limits::TRY_ANSWER_MAX};

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
    Until(Instant),
    /// Not at all: one request, answered before this time limit.
    Try(Instant),
}

impl WaitPolicy {
    /// Returns the policy of a try that begins now.
    pub(crate) fn one_try() -> Self {
        Self::Try(Instant::now() + TRY_ANSWER_MAX)
    }

    /// Returns the policy of a caller that waits for at most `timeout` from now; a zero `timeout` is a try.
    pub(crate) fn within(timeout: Duration) -> Self {
        if timeout.is_zero() {
            return Self::one_try();
        }
        Instant::now().checked_add(timeout).map_or(Self::Unlimited, Self::Until)
    }

    /// Returns what an unlimited wait was granted.
    ///
    /// # Errors
    ///
    /// `Unexpected` for `None`, which only a try or a wait with a time limit returns.
    pub(crate) fn never_busy<T>(answer: Option<T>, operation: &'static str) -> Result<T> {
        answer.ok_or_else(|| Error::new(ErrorKind::Unexpected, operation))
    }
}
