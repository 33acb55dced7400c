//! A client of a lock store.

use std::{sync::Arc, time::Duration};

use crate::{
    ClientBuilder, Election, Listing, Lock, LockAll, LockName, OncePer, Result, StatusWatch,
    backend::{Backend, BackendInfo, Contender, Inspection, Promises},
    keeper::Keeper,
};

/// A client of a lock store. Cheap to clone; all clones share one session.
///
/// The session lives until [`close`](Self::close) or [`drain`](Self::drain), or until the last clone and the last lock
/// and guard made from it are dropped. A lost session is replaced in the background; guards of the old one are lost.
///
/// Dropping a client closes its session in the background, which needs a runtime that keeps running. At the end of
/// `main` no runtime does: nothing is sent, and other clients wait for the locks until the ttl expires. Close the
/// client before the program ends.
///
/// ```
/// use lockkit_core::{LockClient, memory::MemoryServer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkit_core::Result<()> {
/// let client = LockClient::builder(MemoryServer::new().backend()).build().await?;
/// let lock = client.lock("orders/42")?;
/// let guard = lock.acquire().await?;
/// println!("writing with token {}", guard.token());
/// guard.release().await?;
/// client.close().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LockClient(Arc<Handle>);

/// The handle that clients, locks and guards share; dropping the last one closes the client in the background.
#[derive(Debug)]
pub(crate) struct Handle(Arc<Keeper>);

impl Handle {
    pub(crate) fn keeper(&self) -> &Arc<Keeper> {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.begin_close();
    }
}

impl LockClient {
    /// Returns a builder for a client of this backend.
    pub fn builder(backend: impl Backend) -> ClientBuilder {
        ClientBuilder::new(backend)
    }

    pub(crate) fn of_keeper(keeper: Arc<Keeper>) -> Self {
        Self(Arc::new(Handle(keeper)))
    }

    /// Returns the lock of this name without I/O; the value holds nothing yet.
    ///
    /// ```
    /// # use lockkit_core::{LockClient, memory::MemoryServer};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkit_core::Result<()> {
    /// # let client = LockClient::builder(MemoryServer::new().backend()).build().await?;
    /// let guard = client.lock("orders/42")?.acquire().await?;
    /// let same = client.lock(guard.name())?;
    /// assert_eq!(same.name(), guard.name());
    /// # drop(guard);
    /// # client.close().await }
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidName` if the name is empty or too long.
    pub fn lock(&self, name: impl AsRef<str>) -> Result<Lock> {
        Ok(Lock::new(Arc::clone(&self.0), LockName::new(name)?))
    }

    /// Returns the election of this name without I/O.
    ///
    /// # Errors
    ///
    /// `InvalidName`; `Unsupported` if the backend cannot show who leads.
    pub fn election(&self, name: impl AsRef<str>) -> Result<Election> {
        Election::new(Arc::clone(&self.0), LockName::new(name)?)
    }

    /// Returns work that runs once in each `period`, over all processes that use this name; without I/O.
    ///
    /// # Errors
    ///
    /// `InvalidName`; `InvalidConfig` if the period is shorter than [`ONCE_PERIOD_MIN`](crate::limits::ONCE_PERIOD_MIN)
    /// or longer than [`ONCE_PERIOD_MAX`](crate::limits::ONCE_PERIOD_MAX); `Unsupported` if the backend has no records.
    pub fn once_per(&self, name: impl AsRef<str>, period: Duration) -> Result<OncePer> {
        OncePer::new(Arc::clone(&self.0), LockName::new(name)?, period)
    }

    /// Returns these locks as a set that is acquired all or nothing, without I/O. A name that occurs twice counts once.
    ///
    /// ```
    /// # use lockkit_core::{LockClient, memory::MemoryServer};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkit_core::Result<()> {
    /// # let client = LockClient::builder(MemoryServer::new().backend()).build().await?;
    /// let guard = client.lock_all(["accounts/7", "accounts/3"])?.acquire().await?;
    /// for (name, token) in guard.tokens() {
    ///     println!("{name} with token {token}");
    /// }
    /// guard.release().await?;
    /// # client.close().await }
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidName` if a name is empty or too long, if there is no name, or if there are more than
    /// [`LOCKS_PER_SET_MAX`](crate::limits::LOCKS_PER_SET_MAX).
    pub fn lock_all(&self, names: impl IntoIterator<Item: AsRef<str>>) -> Result<LockAll> {
        LockAll::new(&self.0, names)
    }

    /// Returns the properties of the backend.
    pub fn info(&self) -> &BackendInfo {
        self.0.keeper().info()
    }

    /// Returns what the backend promises about its store.
    pub fn promises(&self) -> Promises {
        self.0.keeper().promises()
    }

    /// Returns the lifetime of a hold that is not renewed, as the server granted it.
    ///
    /// It differs from the requested ttl where the server has bounds: it may be longer, and on ZooKeeper also shorter.
    /// It is `Duration::MAX` where holds end only by release or with the process.
    pub fn ttl(&self) -> Duration {
        self.0.keeper().granted_ttl()
    }

    /// Returns a watch on the status of the session.
    pub fn status(&self) -> StatusWatch {
        self.0.keeper().status()
    }

    /// Returns who holds the lock of this name and who waits for it.
    ///
    /// The snapshot is meant for people; programs must not base decisions on it.
    ///
    /// # Errors
    ///
    /// `InvalidName`; `Unsupported` if the backend cannot inspect; `Unavailable` and `Denied` from the store; `Closed`
    /// if the runtime has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<Inspection> {
        self.0.keeper().inspect(LockName::new(name)?).await
    }

    /// Returns the locks that are held or waited for and whose names begin with `prefix` (all for an empty one), page by
    /// page and without I/O yet. For people, as [`inspect`](Self::inspect).
    ///
    /// ```
    /// # use lockkit_core::{LockClient, memory::MemoryServer};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkit_core::Result<()> {
    /// # let client = LockClient::builder(MemoryServer::new().backend()).build().await?;
    /// let guard = client.lock("orders/42")?.acquire().await?;
    /// let mut listing = client.list("orders/");
    /// while let Some(page) = listing.next_page().await? {
    ///     for lock in page {
    ///         println!("{:?}", lock.name);
    ///     }
    /// }
    /// # guard.release().await?;
    /// # client.close().await }
    /// ```
    pub fn list(&self, prefix: impl AsRef<str>) -> Listing {
        Listing::new(Arc::clone(&self.0), prefix.as_ref())
    }

    /// Ends the hold of `holder`, which an [`inspect`](Self::inspect) has shown, and of nobody else; returns `false` if it
    /// does not hold the lock any more.
    ///
    /// For operators: the holder may still be working. It learns of the loss at once where the store can notify it, and
    /// otherwise from its next heartbeat; until then two callers believe that they hold the lock. The next grant has a
    /// higher fencing token, so a resource that checks tokens refuses late writes of the broken holder. Each break is
    /// logged as a warning of the target `lockkit::audit`.
    ///
    /// ```
    /// # use lockkit_core::{LockClient, memory::MemoryServer};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkit_core::Result<()> {
    /// # let server = MemoryServer::new();
    /// # let client = LockClient::builder(server.backend()).build().await?;
    /// # let operator = LockClient::builder(server.backend()).build().await?;
    /// let guard = client.lock("orders/42")?.acquire().await?;
    /// if let Some(holder) = operator.inspect("orders/42").await?.holder {
    ///     assert!(operator.break_lock("orders/42", &holder).await?);
    /// }
    /// guard.lost().await;
    /// # operator.close().await?;
    /// # client.close().await }
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidName`; `Unsupported` if the store has no way to do it (`info().powers.break_lock`); `Unavailable` if it did
    /// not answer: inspect again; `Denied` from the store; `Closed` if the runtime has ended.
    ///
    /// # Cancel safety
    ///
    /// Once polled, the break is carried out even if the future is dropped.
    pub async fn break_lock(&self, name: impl AsRef<str>, holder: &Contender) -> Result<bool> {
        self.0.keeper().break_lock(LockName::new(name)?, holder.clone()).await
    }

    /// Waits until all held locks are released, then [closes](Self::close) the client: an orderly shutdown.
    ///
    /// From now on nothing new is acquired: waiting and later calls return `Closed`, except an owner's re-entry into a
    /// lock that it holds. Held locks are renewed until their guards are dropped and their releases confirmed, for at
    /// most `limit`. Locks that are still held then are lost.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lockkit_core::{LockClient, memory::MemoryServer};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkit_core::Result<()> {
    /// # let client = LockClient::builder(MemoryServer::new().backend()).build().await?;
    /// let guard = client.lock("orders/42")?.acquire().await?;
    /// let work = tokio::spawn(async move { guard.release().await });
    /// client.drain(Duration::from_secs(10)).await?;
    /// # work.await.unwrap() }
    /// ```
    ///
    /// # Errors
    ///
    /// `Lost` if locks were still held after `limit`, with an error of [`close`](Self::close) as its source; otherwise as
    /// [`close`](Self::close).
    ///
    /// # Cancel safety
    ///
    /// Once polled, nothing new is acquired even if the future is dropped. The session then stays open until the client
    /// is closed or dropped.
    pub async fn drain(&self, limit: Duration) -> Result<()> {
        self.0.keeper().drain(limit).await
    }

    /// Ends the session: guards are lost; waiting and later calls return `Closed`.
    ///
    /// Returns within the ttl and within [`CLOSE_ANSWER_MAX`](crate::limits::CLOSE_ANSWER_MAX). Closing again returns
    /// the same result. If the client's runtime is blocked, it returns `Unavailable` after twice that time, and the session
    /// is closed when the runtime continues.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the store did not confirm the end in time (everything then expires with its ttl), or that of a
    /// session that was lost before and is still being closed; `Closed` if the runtime ended before.
    ///
    /// # Cancel safety
    ///
    /// Once polled, closing continues in the background even if the future is dropped.
    pub async fn close(&self) -> Result<()> {
        self.0.keeper().close().await
    }
}
