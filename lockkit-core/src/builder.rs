//! The builder of a client, and the options that a URL of any backend may contain.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    Clock, Error, ErrorKind, LockClient, Result,
    backend::{Backend, BackendUrl},
    keeper::{ConnectPolicy, Keeper, Runtime, Setup},
    limits::{LABEL_BYTES_MAX, TTL_DEFAULT},
};

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
    pub(crate) fn new(backend: impl Backend) -> Self {
        Self {
            backend: Arc::new(backend),
            ttl: TTL_DEFAULT,
            label: None,
            clock: Clock::boot(),
            own_thread: false,
            connect_timeout: Duration::ZERO,
        }
    }

    /// Sets how long a hold outlives its last renewal, which is how long others wait for a dead holder.
    ///
    /// Default [`TTL_DEFAULT`]; raised to the backend's minimum; [`LockClient::ttl`] returns what the server granted. All
    /// locks of a client share it: two ttls need two clients.
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

    /// Sets how long [`build`](Self::build) keeps trying to connect to a store that does not answer, for a service that
    /// may start before its store. Default zero: one attempt, within the request timeout of the backend.
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
    /// * `InvalidConfig`: the ttl is zero or above the backend's maximum, the label is too long, or the backend cannot use
    ///   its configuration.
    /// * `Unsupported`: called outside a tokio runtime without [`own_thread`](Self::own_thread); or the backend needs what
    ///   the server does not have.
    /// * `Unavailable`: the store did not answer; the last error within the [`connect_timeout`](Self::connect_timeout).
    /// * `Denied`: the store refused. Returned at once.
    /// * `Unexpected`: the server's answer makes no sense, or the backend panicked.
    /// * `Closed`: the keeper cannot run, as on a runtime without timers and I/O (`enable_all`).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a session that is being opened is closed again.
    pub async fn build(self) -> Result<LockClient> {
        let connect_policy = match self.connect_timeout {
            Duration::ZERO => ConnectPolicy::OneAttempt,
            // Beyond the range of the clock is never.
            limit => Instant::now().checked_add(limit).map_or(ConnectPolicy::Unlimited, ConnectPolicy::Until),
        };
        self.start(connect_policy).await
    }

    /// Returns a client at once; its session is opened in the background, as long as it takes. Meanwhile its
    /// [`status`](LockClient::status) is [`Status::Lost`](crate::Status::Lost), `acquire` waits, and calls with a time
    /// limit return `Unavailable` at its end.
    ///
    /// An error that no retry can fix, such as a wrong password, ends the client: its calls return this error.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build), without those of the store.
    ///
    /// # Cancel safety
    ///
    /// As [`build`](Self::build).
    pub async fn build_lazy(self) -> Result<LockClient> {
        self.start(ConnectPolicy::Lazy).await
    }

    async fn start(self, connect_policy: ConnectPolicy) -> Result<LockClient> {
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
        let setup = Setup { backend, ttl: self.ttl.max(info.ttl_min), label, clock, runtime, connect_policy };
        Keeper::start(setup).await.map(LockClient::of_keeper)
    }
}
