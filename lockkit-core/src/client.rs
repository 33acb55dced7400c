//! A client of a lock store, its builder and its options.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    Clock, Election, Error, ErrorKind, Listing, Lock, LockAll, LockName, OncePer, Result, StatusWatch,
    backend::{Backend, BackendInfo, BackendUrl, Contender, Inspection},
    keeper::{Keeper, Patience, Runtime, Setup},
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
            connect_timeout: Duration::ZERO,
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
    /// The option `connect_timeout`; see [`ClientBuilder::connect_timeout`].
    pub connect_timeout: Option<Duration>,
}

impl ClientOptions {
    /// Removes the options `ttl`, `label` and `connect_timeout` from a URL; the others belong to the backend.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if the ttl or the timeout is not a duration.
    pub fn take_from(url: &mut BackendUrl) -> Result<Self> {
        Ok(Self {
            ttl: url.take_duration("ttl")?,
            label: url.take("label"),
            connect_timeout: url.take_duration("connect_timeout")?,
        })
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
    connect_timeout: Duration,
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
        self.connect_timeout = options.connect_timeout.unwrap_or(self.connect_timeout);
        self
    }

    /// Sets how long [`build`](Self::build) goes on connecting to a store that does not answer, as a service that may
    /// start before its store. Default zero: one attempt, within the request timeout of the backend.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
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
    /// `Unsupported` outside a tokio runtime without [`own_thread`](Self::own_thread); `Unavailable` from the store, the
    /// last error within the [`connect_timeout`](Self::connect_timeout); `Denied` from the store, at once; `Closed` if the
    /// keeper cannot run, as on a runtime without timers and I/O (`enable_all`).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a session that is being opened is closed again.
    pub async fn build(self) -> Result<LockClient> {
        let patience = match self.connect_timeout {
            Duration::ZERO => Patience::OneAttempt,
            // Beyond the range of the clock is never.
            limit => Instant::now().checked_add(limit).map_or(Patience::Unlimited, Patience::Until),
        };
        self.start(patience).await
    }

    /// Returns a client at once; its session is opened in the background, as long as it takes. Meanwhile its
    /// [`status`](LockClient::status) is [`Status::Lost`](crate::Status::Lost), `acquire` waits, and calls with a time
    /// limit return `Unavailable` at its end.
    ///
    /// An error that no retry can mend, such as a wrong password, ends the client: its calls return this error.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build), without those of the store.
    ///
    /// # Cancel safety
    ///
    /// As [`build`](Self::build).
    pub async fn build_lazy(self) -> Result<LockClient> {
        self.start(Patience::Lazy).await
    }

    async fn start(self, patience: Patience) -> Result<LockClient> {
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
        let setup = Setup { backend, ttl: self.ttl.max(info.ttl_min), label, clock, runtime, patience };
        Keeper::start(setup).await.map(|keeper| LockClient(Arc::new(Handle(keeper))))
    }
}
