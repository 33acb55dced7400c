//! Looking into the store.

use std::fmt::Debug;

use async_trait::async_trait;

use crate::{FencingToken, LockName, Metadata, Result};

/// The power to look into a store without taking part in any lock.
#[async_trait]
pub trait Admin: Debug + Send + Sync {
    /// Who holds the lock and who waits for it, at one moment; a snapshot that may be old when it arrives.
    ///
    /// # Errors
    ///
    /// `Unavailable`, `Denied`; what others have written there is never an error but a [`Contender`] without metadata.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind: it only reads.
    async fn inspect(&self, name: &LockName) -> Result<Inspection>;
}

/// What [`Admin::inspect`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// Who holds the lock.
    pub holder: Option<Contender>,
    /// Who waits for it; in the order of service where the backend has one, empty where waiters leave no trace.
    pub waiters: Vec<Contender>,
}

impl Inspection {
    /// This holder and these waiters.
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
    /// Its fencing token where the store tells it: of a holder, never of a waiter.
    pub token: Option<FencingToken>,
    /// What a lockkit client stored about itself; `None` for the entries of other programs.
    pub metadata: Option<Metadata>,
}

impl Contender {
    /// The contender with this entry.
    pub fn new(entry: impl Into<String>, token: Option<FencingToken>, metadata: Option<Metadata>) -> Self {
        Self { entry: entry.into(), token, metadata }
    }
}
