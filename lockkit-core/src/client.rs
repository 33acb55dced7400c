//! A client of a lock store, its builder and its options.

use std::{sync::Arc, time::Duration};

use crate::{
    Clock, Election, Error, ErrorKind, Lock, LockAll, LockName, OncePer, Result, StatusWatch,
    backend::{Backend, BackendInfo, BackendUrl, Inspection},
    keeper::{Keeper, Runtime, Setup},
    limits::{LABEL_BYTES_MAX, TTL_DEFAULT},
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
        ClientBuilder {
            backend: Arc::new(backend),
            ttl: TTL_DEFAULT,
            label: None,
            clock: Clock::boot(),
            own_thread: false,
        }
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

    /// Returns work that runs once in each `period`, over all nodes that use this name; without I/O.
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

    /// Returns the lifetime of a hold that is not renewed, as the server granted it.
    ///
    /// It is never shorter than requested, and longer if the server has a minimum. It is `Duration::MAX` where holds
    /// end only by release or with the process.
    pub fn ttl(&self) -> Duration {
        self.0.keeper().granted_ttl()
    }

    /// Returns a watch on the status of the session.
    pub fn status(&self) -> StatusWatch {
        StatusWatch::new(self.0.keeper().status())
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
    /// `Lost` if locks were still held after `limit`; otherwise as [`close`](Self::close).
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
    /// the same result.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the store did not confirm the end in time (everything then expires with its ttl); `Closed` if
    /// the runtime ended before.
    ///
    /// # Cancel safety
    ///
    /// Once polled, closing continues in the background even if the future is dropped.
    pub async fn close(&self) -> Result<()> {
        self.0.keeper().close().await
    }
}

/// The client options that a URL of any backend may contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientOptions {
    /// The option `ttl`; see [`ClientBuilder::ttl`].
    pub ttl: Option<Duration>,
    /// The option `label`; see [`ClientBuilder::label`].
    pub label: Option<String>,
}

impl ClientOptions {
    /// Removes the options `ttl` and `label` from a URL; the others belong to the backend.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if the ttl is not a duration.
    pub fn take_from(url: &mut BackendUrl) -> Result<Self> {
        Ok(Self { ttl: url.take_duration("ttl")?, label: url.take("label") })
    }
}

/// Builds a [`LockClient`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct ClientBuilder {
    backend: Arc<dyn Backend>,
    ttl: Duration,
    label: Option<String>,
    clock: Clock,
    own_thread: bool,
}

impl ClientBuilder {
    /// Sets how long a hold outlives its last renewal, which is how long others wait for a dead holder.
    ///
    /// Default [`TTL_DEFAULT`]; raised to the backend's minimum. All locks of a client share it: two ttls need two
    /// clients.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Applies these options; settings that they leave out keep their values.
    pub fn options(mut self, options: ClientOptions) -> Self {
        self.ttl = options.ttl.unwrap_or(self.ttl);
        self.label = options.label.or(self.label);
        self
    }

    /// Sets a text that [`inspect`](LockClient::inspect) shows with this client's locks, at most [`LABEL_BYTES_MAX`]
    /// bytes.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Sets the clock for deadlines; tests use [`Clock::tokio`]. Default [`Clock::boot`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Runs the client on its own thread: renewals continue while the caller's executor is blocked, and callers need no
    /// tokio runtime. Default: tasks on the calling tokio runtime.
    ///
    /// A caller on tokio uses the timers of its own runtime. If that runtime was built without timers, nothing is
    /// delayed, but each call makes tokio print a panic, which is caught.
    pub fn own_thread(mut self) -> Self {
        self.own_thread = true;
        self
    }

    /// Opens the session.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for a ttl of zero or above the backend's maximum, and for a label that is too long;
    /// `Unsupported` outside a tokio runtime without [`own_thread`](Self::own_thread); `Unavailable` and `Denied` from
    /// the store; `Closed` if the keeper cannot run, as on a runtime without timers and I/O (`enable_all`).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a session that is being opened is closed again.
    pub async fn build(self) -> Result<LockClient> {
        let info = self.backend.info();
        let invalid = |what: String| Err(Error::new(ErrorKind::InvalidConfig, "connect").with_message(what));
        if self.ttl.is_zero() {
            return invalid("a ttl of zero would be lost at once".into());
        }
        if self.ttl > info.ttl_max {
            let (asked, longest) = (self.ttl, info.ttl_max);
            return invalid(format!("a ttl of {asked:?} exceeds the maximum of {longest:?}"));
        }
        if self.label.as_ref().is_some_and(|label| label.len() > LABEL_BYTES_MAX) {
            return invalid(format!("a label has at most {LABEL_BYTES_MAX} bytes"));
        }
        let runtime = if self.own_thread { Runtime::on_own_thread().await? } else { Runtime::of_caller()? };
        let Self { backend, label, clock, .. } = self;
        let setup = Setup { backend, ttl: self.ttl.max(info.ttl_min), label, clock, runtime };
        Keeper::start(setup).await.map(|keeper| LockClient(Arc::new(Handle(keeper))))
    }
}
