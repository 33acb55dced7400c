//! What a session can do besides locking; each power is optional.

use std::{fmt::Debug, time::Duration};

use async_trait::async_trait;

use super::Grant;
use crate::{FencingToken, LockName, Metadata, Proposal, Result};

/// The powers that a backend claims. [`Session`](super::Session) provides them; the conformance suite checks them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Powers {
    /// [`Elections`].
    pub elections: bool,
    /// [`Elections::watch`] notifies; otherwise observers poll.
    pub leader_watch: bool,
    /// [`Records`].
    pub records: bool,
    /// [`Pins`].
    pub pins: bool,
    /// Every [`Grant`] has an [`Evidence`](super::Evidence).
    pub evidence: bool,
    /// [`Admin::list`](super::Admin::list).
    pub list: bool,
    /// [`Admin::break_lock`](super::Admin::break_lock).
    pub break_lock: bool,
}

/// Reads, watches and changes what the holder of a lock proposes. Elections are built on it.
///
/// A claim whose metadata have a [`Proposal`] stores it with its entry from the first request on.
///
/// # Cancel safety
///
/// Not required: the keeper drives every future of this trait to completion.
#[async_trait]
pub trait Elections: Debug + Send + Sync {
    /// Returns the holder of this lock as its leader, or `None` if nobody holds it.
    ///
    /// The answer is not older than the latest grant or proposal that the store had acknowledged to anybody when this
    /// was called. A holder without a proposal (an ordinary lock, another program) has an empty one with number 0; a
    /// holder without a token is no leader.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the store did not answer (the keeper retries), `Denied`, `Unexpected`.
    async fn leader(&self, name: &LockName) -> Result<Option<LeaderEntry>>;

    /// Starts to watch the leader of this lock: every change after this has returned wakes the watch, as far as the
    /// store can notify.
    ///
    /// # Errors
    ///
    /// As [`leader`](Self::leader).
    async fn watch(&self, name: &LockName) -> Result<Box<dyn LeaderWatch>>;

    /// Replaces the metadata of the entry that holds this grant, idempotently and without any other effect: the entry
    /// keeps its place, its token and its lifetime. Returns `false`, and writes nothing, if the grant is not held any
    /// more.
    ///
    /// A copy of an earlier request that arrives late must not undo a later one: the keeper sends them one after
    /// another with rising [`Proposal::number`].
    ///
    /// # Errors
    ///
    /// As [`leader`](Self::leader). After `Unavailable` the effect is unknown; the keeper repeats the same request.
    async fn proclaim(&self, grant: &Grant, metadata: &Metadata) -> Result<bool>;
}

/// A watch on the leader of one lock. Dropping it ends it at the store.
#[async_trait]
pub trait LeaderWatch: Debug + Send {
    /// Waits until the leader or its proposal may have changed since the last call returned. A hint: it may come
    /// without a change, and the keeper re-checks without it. Pending forever where the store does not notify.
    ///
    /// # Cancel safety
    ///
    /// Required: a dropped future loses no change.
    async fn changed(&mut self);
}

/// A [`LeaderWatch`] that never notifies; the keeper's re-check finds the changes.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::exhaustive_structs, reason = "it has no contents")]
pub struct Polling;

#[async_trait]
impl LeaderWatch for Polling {
    async fn changed(&mut self) {
        std::future::pending().await
    }
}

/// The holder of a lock, as observers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaderEntry {
    /// The token of its grant.
    pub token: FencingToken,
    /// What it proposes.
    pub proposal: Proposal,
    /// Its metadata, if a lockkit client stored them.
    pub metadata: Option<Metadata>,
}

impl LeaderEntry {
    /// Creates the entry of a leader.
    pub fn new(token: FencingToken, proposal: Proposal, metadata: Option<Metadata>) -> Self {
        Self { token, proposal, metadata }
    }

    /// Creates the entry of a holder with these metadata, which contain its proposal if it has one.
    pub fn of_metadata(token: FencingToken, metadata: Option<Metadata>) -> Self {
        let proposal = metadata.as_ref().and_then(|metadata| metadata.proposal.clone()).unwrap_or_default();
        Self { token, proposal, metadata }
    }
}

/// One small text per lock name that outlives holds and sessions, and that only the holder can write.
///
/// # Cancel safety
///
/// Not required: the keeper drives every future of this trait to completion.
#[async_trait]
pub trait Records: Debug + Send + Sync {
    /// Returns the record of this name, or `None` if there is none. Not older than the latest acknowledged write.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the store did not answer (the keeper retries), `Denied`, `Unexpected`.
    async fn read(&self, name: &LockName) -> Result<Option<String>>;

    /// Writes the record of the grant's name, which the store keeps for at least `keep`. Returns `false`, and writes
    /// nothing, if the grant is not held any more. Idempotent.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read). After `Unavailable` the effect is unknown.
    async fn write(&self, grant: &Grant, record: &str, keep: Duration) -> Result<bool>;
}

/// Pins: keeps the entry of a hold in the store for a minimum time, even if the holder dies.
///
/// # Cancel safety
///
/// Not required: the keeper drives every future of this trait to completion.
#[async_trait]
pub trait Pins: Debug + Send + Sync {
    /// Makes the entry of this grant stay for `at_least` from now, by the store's own lifetime: also if the session or
    /// the process ends. Returns `false` if the grant is not held any more. Idempotent.
    ///
    /// Heartbeats keep the entry beyond that time while the grant is held, and never shorten it. A hold is
    /// never relied on for longer than its entry lives.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the store did not confirm it; the keeper then releases the grant.
    async fn pin(&self, grant: &Grant, at_least: Duration) -> Result<bool>;

    /// Ends the hold, and leaves its entry until the end of the pin: nobody is granted the lock before. Called instead
    /// of [`release`](super::Session::release), which removes a pinned entry like any other.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the store did not confirm it; the keeper retries.
    async fn leave(&self, grant: &Grant) -> Result<()>;
}
