//! The same locks for callers without async code: every call blocks its thread until the result is there.
//!
//! The client runs on a thread of its own ([`ClientBuilder::own_thread`]), which renews the locks while the callers
//! work. Callers need no runtime. A [`Client`] and a [`Lock`] can be shared and cloned between threads.
//!
//! ```
//! use lockkit_core::{LockClient, memory::MemoryServer};
//!
//! # fn main() -> lockkit_core::Result<()> {
//! let client = LockClient::builder(MemoryServer::new().backend()).build_blocking()?;
//! let guard = client.lock("orders/42")?.acquire()?;
//! println!("writing with token {}", guard.token());
//! guard.release()?;
//! client.close()
//! # }
//! ```
//!
//! # Inside a tokio runtime
//!
//! A blocking call on a thread of a runtime would stop the other tasks of that thread, among them possibly the one that
//! holds the lock. Every call that blocks therefore returns `Unsupported` there, at once, and sends nothing. Use
//! [`Client::as_async`], or a thread outside the runtime (`std::thread`). The threads of `spawn_blocking` count as
//! inside, because tokio does not show the difference; there, `Handle::block_on` can wait for the async client.
//! Executors other than tokio are not recognized.
//!
//! Calls that do not block (`token`, `check`, dropping a guard or a client) work everywhere.
//!
//! # The end of the program
//!
//! **Close the client before `main` returns.** Dropping guards and the last client releases and closes in the
//! background, on the client's thread, and the end of the process does not wait for it: others then wait for the ttl.
//! [`Guard::release`] returns after the confirmation.

mod lock;
mod set;
mod thread;

use std::{future::Future, time::Duration};

use tokio::runtime::Handle;

pub use self::{
    lock::{Guard, Lock},
    set::{LockAll, SetGuard},
};
use crate::{
    ClientBuilder, Error, ErrorKind, LockClient, LockName, Result, Status,
    backend::{BackendInfo, Contender, Inspection, ListedLock, Promises},
};

/// A client of a lock store for blocking callers. Cheap to clone; all clones share one session and its thread.
///
/// [`ClientBuilder::build_blocking`] creates it. What [`LockClient`] says about sessions holds here too.
#[derive(Clone, Debug)]
pub struct Client(LockClient);

impl ClientBuilder {
    /// Opens the session on a thread of the client's own, for callers that block; see [`blocking`](crate::blocking).
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build); `Unsupported` inside a tokio runtime.
    pub fn build_blocking(self) -> Result<Client> {
        wait("connect", None, self.own_thread().build()).map(Client)
    }
}

impl Client {
    /// Returns the lock of this name without I/O; the value holds nothing yet.
    ///
    /// # Errors
    ///
    /// As [`LockClient::lock`].
    pub fn lock(&self, name: impl AsRef<str>) -> Result<Lock> {
        self.0.lock(name).map(Lock)
    }

    /// Returns these locks as a set that is acquired all or nothing, without I/O.
    ///
    /// # Errors
    ///
    /// As [`LockClient::lock_all`].
    pub fn lock_all(&self, names: impl IntoIterator<Item: AsRef<str>>) -> Result<LockAll> {
        self.0.lock_all(names).map(LockAll)
    }

    /// Returns the same client for async callers; the session is the same, and so are its locks.
    pub fn as_async(&self) -> &LockClient {
        &self.0
    }

    /// Returns the properties of the backend.
    pub fn info(&self) -> &BackendInfo {
        self.0.info()
    }

    /// Returns what the backend promises about its store.
    pub fn promises(&self) -> Promises {
        self.0.promises()
    }

    /// Returns the lifetime of a hold that is not renewed; see [`LockClient::ttl`].
    pub fn ttl(&self) -> Duration {
        self.0.ttl()
    }

    /// Returns the current status of the session.
    pub fn status(&self) -> Status {
        self.0.status().current()
    }

    /// Returns who holds the lock of this name and who waits for it; for people.
    ///
    /// # Errors
    ///
    /// As [`LockClient::inspect`]; `Unsupported` inside a tokio runtime.
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<Inspection> {
        wait("inspect", None, self.0.inspect(name))
    }

    /// Returns the locks that are held or waited for and whose names begin with `prefix` (all for an empty one), page by
    /// page and without I/O yet; for people.
    ///
    /// ```
    /// # use lockkit_core::{LockClient, memory::MemoryServer};
    /// # fn main() -> lockkit_core::Result<()> {
    /// # let client = LockClient::builder(MemoryServer::new().backend()).build_blocking()?;
    /// let mut listing = client.list("orders/");
    /// while let Some(page) = listing.next_page()? {
    ///     for lock in page {
    ///         println!("{:?}", lock.name);
    ///     }
    /// }
    /// # client.close() }
    /// ```
    pub fn list(&self, prefix: impl AsRef<str>) -> Listing {
        Listing(self.0.list(prefix))
    }

    /// Ends the hold of `holder`, which an [`inspect`](Self::inspect) has shown, and of nobody else; returns `false` if it
    /// does not hold the lock any more. For operators; see [`LockClient::break_lock`] for what the holder may still do.
    ///
    /// # Errors
    ///
    /// As [`LockClient::break_lock`]; `Unsupported` inside a tokio runtime, where nothing is broken.
    pub fn break_lock(&self, name: impl AsRef<str>, holder: &Contender) -> Result<bool> {
        wait("break", None, self.0.break_lock(name, holder))
    }

    /// Blocks until all held locks are released, at most for `limit`, then closes the client; see
    /// [`LockClient::drain`].
    ///
    /// # Errors
    ///
    /// As [`LockClient::drain`]; `Unsupported` inside a tokio runtime, where nothing is drained.
    pub fn drain(&self, limit: Duration) -> Result<()> {
        wait("drain", None, self.0.drain(limit))
    }

    /// Ends the session, and blocks until the store has confirmed it: guards are lost, waiting and later calls return
    /// `Closed`. See [`LockClient::close`] for the bound.
    ///
    /// # Errors
    ///
    /// As [`LockClient::close`]; `Unsupported` inside a tokio runtime, where nothing is closed.
    pub fn close(&self) -> Result<()> {
        wait("close", None, self.0.close())
    }
}

/// The locks that are held or waited for, page by page; made by [`Client::list`].
#[derive(Debug)]
pub struct Listing(crate::Listing);

impl Listing {
    /// Blocks for the next page, of about [`LISTED_PER_PAGE`](crate::limits::LISTED_PER_PAGE) locks and perhaps none;
    /// returns `None` after the last one. See [`crate::Listing::next_page`].
    ///
    /// # Errors
    ///
    /// As [`crate::Listing::next_page`]; `Unsupported` inside a tokio runtime. After an error the same page is asked for
    /// again.
    pub fn next_page(&mut self) -> Result<Option<Vec<ListedLock>>> {
        wait("list locks", None, self.0.next_page())
    }
}

/// Blocks the calling thread until the future is ready; refuses to block a thread of a tokio runtime.
///
/// A future that is refused is dropped before its first poll, so it has no effects.
fn wait<T>(
    operation: &'static str,
    lock: Option<&LockName>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    match may_block() {
        Ok(()) => thread::block_on(work),
        Err(why) => {
            let error = Error::new(ErrorKind::Unsupported, operation).with_message(why);
            Err(lock.into_iter().fold(error, Error::with_lock))
        }
    }
}

/// Returns why the calling thread must not block, if so.
fn may_block() -> std::result::Result<(), &'static str> {
    match Handle::try_current() {
        Ok(_) => Err("a blocking call inside a tokio runtime would stop its tasks; use the async client \
            (Client::as_async), or a thread outside the runtime"),
        // The parking of a thread needs its thread-local data.
        Err(error) if error.is_thread_local_destroyed() => Err("the calling thread is ending"),
        Err(_) => Ok(()),
    }
}
