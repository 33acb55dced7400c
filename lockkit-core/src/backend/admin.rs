//! What an operator asks of a store, without a session.

use std::{fmt::Debug, time::Duration};

use async_trait::async_trait;
use serde::{Serialize, Serializer};

use crate::{Error, ErrorKind, FencingToken, LockName, Metadata, Result};

/// Optional: what an operator asks of a store, without a session.
///
/// # Cancel safety
///
/// `inspect` and `list` only read. [`break_lock`](Self::break_lock) is driven to completion by the client.
#[async_trait]
pub trait Admin: Debug + Send + Sync {
    /// Returns who holds the lock and who waits for it; the snapshot may be outdated when it arrives.
    ///
    /// # Errors
    ///
    /// `Unavailable`, `Denied`. Entries of other programs are not errors: each is a [`Contender`] without metadata.
    async fn inspect(&self, name: &LockName) -> Result<Inspection>;

    /// Returns a page of the locks that are held or waited for and whose names begin with `prefix`, which may be empty.
    ///
    /// `after` is [`Page::next`] of the page before, `limit` the number of locks that a page should have (a store that
    /// reads in batches of its own may return some more or fewer, even none). A lock that exists through the whole
    /// listing is on at least one page, and may be on two.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect); `Unsupported` if the store cannot tell locks from other data in this layout;
    /// `InvalidConfig` for an `after` that this store did not return.
    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        let _ = (prefix, after, limit);
        Err(Error::new(ErrorKind::Unsupported, "list locks"))
    }

    /// Ends the hold of this contender and nothing else: in one atomic step, the store compares the entry and the token
    /// with those of the contender. The next waiter is notified as after a release, and the broken holder at once
    /// where the store can notify; otherwise its next heartbeat finds the loss.
    ///
    /// Returns `false`, and changes nothing, if the contender does not hold the lock any more. Idempotent.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect); `Unsupported` if a hold cannot be ended from outside. After `Unavailable` the
    /// effect is unknown.
    async fn break_lock(&self, name: &LockName, holder: &Contender) -> Result<bool> {
        let _ = holder;
        Err(Error::new(ErrorKind::Unsupported, "break").with_lock(name))
    }
}

/// The result of [`Admin::inspect`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Contender {
    /// The entry's name in the store: a key, a node, a file.
    pub entry: String,
    /// The fencing token of a holder, if the store records it.
    pub token: Option<FencingToken>,
    /// The metadata that a lockkit client stored; `None` for entries of other programs.
    pub metadata: Option<Metadata>,
    /// The lease or the session that keeps the entry, as the store's own tools print it.
    pub session: Option<String>,
    /// How long the store keeps the entry if nothing renews it. As JSON: `remaining_ms`.
    #[serde(rename = "remaining_ms", serialize_with = "as_millis")]
    pub remaining: Option<Duration>,
    /// What another program stored in its entry, as text; never a secret.
    pub data: Option<String>,
}

impl Contender {
    /// Creates a contender.
    pub fn new(entry: impl Into<String>, token: Option<FencingToken>, metadata: Option<Metadata>) -> Self {
        Self { entry: entry.into(), token, metadata, session: None, remaining: None, data: None }
    }

    /// Adds the lease or the session that keeps the entry.
    #[must_use]
    pub fn with_session(mut self, session: impl Into<String>) -> Self {
        self.session = Some(session.into());
        self
    }

    /// Adds how long the store keeps the entry if nothing renews it.
    #[must_use]
    pub fn with_remaining(mut self, remaining: Duration) -> Self {
        self.remaining = Some(remaining);
        self
    }

    /// Adds what another program stored in its entry, which must not be a secret.
    #[must_use]
    pub fn with_data(mut self, data: impl Into<String>) -> Self {
        self.data = Some(data.into());
        self
    }
}

fn as_millis<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).serialize(serializer)
}

/// One page of [`Admin::list`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// The locks of this page.
    pub locks: Vec<ListedLock>,
    /// Where the next page begins, in the store's own terms; `None` after the last page.
    pub next: Option<String>,
}

impl Page {
    /// Creates a page.
    pub fn new(locks: Vec<ListedLock>, next: Option<String>) -> Self {
        Self { locks, next }
    }
}

/// A lock that is held or waited for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct ListedLock {
    /// Its name; `None` if the store has only the digest of a long name, or a name that this library never writes.
    pub name: Option<LockName>,
    /// The part of its keys, nodes or files in the store that all of them share.
    pub entry: String,
}

impl ListedLock {
    /// Creates a listed lock.
    pub fn new(name: Option<LockName>, entry: impl Into<String>) -> Self {
        Self { name, entry: entry.into() }
    }
}
