//! Inspection of the store without a session.

use std::fmt::Debug;

use async_trait::async_trait;

use crate::{FencingToken, LockName, Metadata, Result};

/// Optional: inspection of a store without a session.
#[async_trait]
pub trait Admin: Debug + Send + Sync {
    /// Returns who holds the lock and who waits for it; the snapshot may be outdated when it arrives.
    ///
    /// # Errors
    ///
    /// `Unavailable`, `Denied`. Entries of other programs are not errors: each is a [`Contender`] without metadata.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: it only reads.
    async fn inspect(&self, name: &LockName) -> Result<Inspection>;
}

/// The result of [`Admin::inspect`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The holder of the lock.
    pub holder: Option<Contender>,
    /// The waiters, in queue order if the backend has a queue. Empty if the store does not record waiters.
    pub waiters: Vec<Contender>,
}

impl Inspection {
    /// Creates an inspection.
    pub fn new(holder: Option<Contender>, waiters: Vec<Contender>) -> Self {
        Self { holder, waiters }
    }
}

/// A holder or a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contender {
    /// The entry's name in the store: a key, a node, a file.
    pub entry: String,
    /// The fencing token of a holder, if the store records it.
    pub token: Option<FencingToken>,
    /// The metadata that a lockkit client stored; `None` for entries of other programs.
    pub metadata: Option<Metadata>,
}

impl Contender {
    /// Creates a contender.
    pub fn new(entry: impl Into<String>, token: Option<FencingToken>, metadata: Option<Metadata>) -> Self {
        Self { entry: entry.into(), token, metadata }
    }
}
