//! A client: one session at a store, and the locks taken in its name.

use std::{sync::Arc, time::Duration};

use crate::{
    Clock, Error, ErrorKind, Lock, LockName, Result, StatusWatch,
    backend::{Backend, BackendInfo, BackendUrl, Inspection},
    keeper::{Keeper, Runtime, Setup},
    limits::{LABEL_BYTES_MAX, TTL_DEFAULT},
};

/// A client of a lock store. Cheap to clone; all clones share one session.
///
/// The session lives until [`close`](Self::close) or [`drain`](Self::drain), or until the last clone and the last lock
/// and guard made from it are dropped. A lost session is replaced in the background; guards of the old one are lost.
///
/// A client that is merely dropped closes its session in the background, which takes a runtime that goes on running. At
/// the end of `main` none does: nothing is sent, and others wait for its locks until the ttl is over. So close the client
/// before the end of the program.
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

/// What clients, locks and guards share; dropping the last one closes the client in the background.
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
    /// Starts the making of a client of this backend.
    pub fn builder(backend: impl Backend) -> ClientBuilder {
        ClientBuilder {
            backend: Arc::new(backend),
            ttl: TTL_DEFAULT,
            label: None,
            clock: Clock::boot(),
            own_thread: false,
        }
    }

    /// The lock of this name: a value that holds nothing. No I/O.
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
    /// `InvalidName` when the name is empty or too long.
    pub fn lock(&self, name: impl AsRef<str>) -> Result<Lock> {
        Ok(Lock::new(Arc::clone(&self.0), LockName::new(name)?))
    }

    /// What the backend is and promises.
    pub fn info(&self) -> &BackendInfo {
        self.0.keeper().info()
    }

    /// The lifetime of a hold that is not renewed, as the server granted it: not shorter than asked for, longer where
    /// the server has a minimum; `Duration::MAX` where holds end only by release or with the process.
    pub fn ttl(&self) -> Duration {
        self.0.keeper().granted_ttl()
    }

    /// Follows whether the session is alive.
    pub fn status(&self) -> StatusWatch {
        StatusWatch::new(self.0.keeper().status())
    }

    /// Who holds the lock of this name and who waits for it: a snapshot for people, never a base for decisions.
    ///
    /// # Errors
    ///
    /// `InvalidName`; `Unsupported` where the backend cannot look; `Unavailable` and `Denied` from the store; `Closed`
    /// when the runtime has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<Inspection> {
        self.0.keeper().inspect(LockName::new(name)?).await
    }

    /// Lets the client's work end, and [closes](Self::close) it: for an orderly shutdown.
    ///
    /// From now on nothing new is acquired: calls that wait return `Closed`, as do later ones, but for an owner's
    /// re-entry into a lock that it holds. Held locks are renewed until their guards are dropped and their releases
    /// confirmed, for at most `limit`; what is held then is lost.
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
    /// `Lost` when locks were still held after `limit`; as [`close`](Self::close).
    ///
    /// # Cancel safety
    ///
    /// Once polled nothing new is acquired, also when the future is dropped; the session then stays open until the client
    /// is closed or dropped.
    pub async fn drain(&self, limit: Duration) -> Result<()> {
        self.0.keeper().drain(limit).await
    }

    /// Ends the session: guards are lost, waiting calls answer `Closed`, as do all later ones. Bounded by the ttl,
    /// and by [`CLOSE_ANSWER_MAX`](crate::limits::CLOSE_ANSWER_MAX). Closing again answers the same.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the store did not confirm the end in time (the ttl ends everything then); `Closed` when the
    /// runtime has ended before.
    ///
    /// # Cancel safety
    ///
    /// Once polled, closing goes on in the background when the future is dropped.
    pub async fn close(&self) -> Result<()> {
        self.0.keeper().close().await
    }
}

/// What every URL may say of the client, whichever its backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientOptions {
    /// As [`ClientBuilder::ttl`]; the option `ttl`.
    pub ttl: Option<Duration>,
    /// As [`ClientBuilder::label`]; the option `label`.
    pub label: Option<String>,
}

impl ClientOptions {
    /// Takes the options `ttl` and `label` out of a URL; the others belong to the backend.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for a ttl that is no duration.
    pub fn take_from(url: &mut BackendUrl) -> Result<Self> {
        Ok(Self { ttl: url.take_duration("ttl")?, label: url.take("label") })
    }
}

/// Makes a [`LockClient`].
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
    /// How long a hold outlives its last renewal, that is: how long others wait for a dead holder. Default
    /// [`TTL_DEFAULT`]; raised to the backend's minimum. It belongs to the client: two ttls take two clients.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// What these options say; what they do not say stays.
    pub fn options(mut self, options: ClientOptions) -> Self {
        self.ttl = options.ttl.unwrap_or(self.ttl);
        self.label = options.label.or(self.label);
        self
    }

    /// A text that others see beside this client's locks, at most [`LABEL_BYTES_MAX`] bytes.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// The clock that deadlines are read from; tests give [`Clock::tokio`]. Default [`Clock::boot`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Runs the client on a thread of its own, so that renewals go on while the caller's executor is blocked, and
    /// callers need no tokio runtime. Default: tasks on the calling tokio runtime. (A caller that runs on tokio uses the
    /// timers of its own runtime; one that was built without them does not delay anything, but each call makes tokio
    /// print a panic, which is caught.)
    pub fn own_thread(mut self) -> Self {
        self.own_thread = true;
        self
    }

    /// Opens the session.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for a ttl of zero or above the backend's maximum and for a label that is too long;
    /// `Unsupported` outside a tokio runtime without [`own_thread`](Self::own_thread); `Unavailable` and `Denied` from
    /// the store; `Closed` when the keeper cannot run, as on a runtime without timers and I/O (`enable_all`).
    ///
    /// # Cancel safety
    ///
    /// A session that is just being opened is closed again.
    pub async fn build(self) -> Result<LockClient> {
        let info = self.backend.info();
        let invalid = |what: String| Err(Error::new(ErrorKind::InvalidConfig, "connect").with_message(what));
        if self.ttl.is_zero() {
            return invalid("a ttl of zero would be lost at once".into());
        }
        if self.ttl > info.ttl_max {
            let (asked, longest) = (self.ttl, info.ttl_max);
            return invalid(format!(
                "a ttl of {asked:?} is longer than {longest:?}: a dead holder would lock that long"
            ));
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
