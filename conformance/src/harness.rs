//! What a backend provides to the suite.

use std::{
    collections::BTreeMap,
    env,
    fmt::{self, Debug},
    sync::Arc,
    time::Duration,
};

use anyhow::{Result, bail};
use async_trait::async_trait;
use lockkit_core::{
    Clock, LockName,
    backend::{Admin, Backend, BackendInfo, Evidence, Promises, Session},
};

use crate::{
    Access, Case, ClientLink,
    fault::{Hook, StoreFault},
};

/// A backend of any type; cheap to clone.
#[derive(Clone)]
pub struct AnyBackend(Arc<dyn Backend>);

impl AnyBackend {
    /// Wraps a backend.
    pub fn new(backend: impl Backend) -> Self {
        Self(Arc::new(backend))
    }
}

impl Debug for AnyBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(&self.0, f)
    }
}

#[async_trait]
impl Backend for AnyBackend {
    fn info(&self) -> BackendInfo {
        self.0.info()
    }

    fn promises(&self) -> Promises {
        self.0.promises()
    }

    async fn open_session(&self, ttl: Duration, clock: Clock) -> lockkit_core::Result<Arc<dyn Session>> {
        self.0.open_session(ttl, clock).await
    }

    fn admin(&self) -> Option<&dyn Admin> {
        self.0.admin()
    }
}

/// What the suite needs of a backend: stores to lock in, and hooks that inject faults.
pub trait Harness: Debug + Send + Sync + 'static {
    /// Returns the name in reports and in `LOCKKIT_BACKENDS`.
    fn name(&self) -> String;

    /// Returns the names of third-party backends that are tested together with this one. `LOCKKIT_BACKENDS` accepts
    /// them, as it accepts those of this project; any other name is an error.
    fn siblings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the properties of the backend. No I/O.
    fn info(&self) -> BackendInfo;

    /// Returns what the backend promises. No I/O.
    fn promises(&self) -> Promises;

    /// Returns which clock drives the store.
    fn time(&self) -> Time {
        Time::Real
    }

    /// Returns how often cases repeat randomized steps.
    fn rounds(&self) -> Rounds {
        Rounds::Few
    }

    /// Returns the documented maximum wait for the lock of a dead client: from the end of its lease, or of its process
    /// where holds end with that. `None` if only the re-checks of waiters bound it.
    fn expiry_delay(&self) -> Option<Duration> {
        None
    }

    /// Returns the hooks that [`Store::inflict`], [`Store::link`] and the other methods of the store support.
    fn hooks(&self) -> Vec<Hook>;

    /// Returns why a hook is missing on this machine; shown with the cases that are ignored for it.
    fn why_not(&self, hook: Hook) -> Option<String> {
        let _ = hook;
        None
    }

    /// Returns why a case that could run is left to another test program, which runs it on the same code; `None`, the
    /// default, for every case that is to run here. The case is ignored with this reason.
    fn left_out(&self, case: &Case) -> Option<String> {
        let _ = case;
        None
    }

    /// Returns how many cases may run in parallel; most of them wait for a ttl and not for the processor.
    fn parallel(&self) -> usize;

    /// Returns the store that all cases share, made at the first call, or a new one for a case that injects faults. The
    /// other kinds are requested with their hooks only.
    ///
    /// # Errors
    ///
    /// When it cannot be started. The error for a missing server program says how to install it.
    fn store(&self, sharing: Sharing) -> Result<Arc<dyn Store>>;

    /// Returns a backend for the store at an [address](Store::address) that another process has made.
    ///
    /// # Errors
    ///
    /// When the address is invalid.
    fn connect(&self, address: &str) -> Result<AnyBackend>;

    /// Returns a wall clock for other processes; requested with [`Hook::WallClock`] only.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    fn wall_clock(&self) -> Result<Box<dyn WallClock>> {
        bail!("the harness declares {:?}, but has no clock", Hook::WallClock)
    }

    /// Returns why clients may leave this entry in a store; `None` when they must not. An entry that may stay for a time
    /// only must [be bounded](Entry::is_bounded).
    fn may_stay(&self, entry: &Entry) -> Option<&'static str> {
        let _ = entry;
        None
    }

    /// Returns how many entries a case may leave for each of its locks, including those that the store removes by itself.
    /// As many may belong to no lock. Unlimited by default.
    fn left_per_lock(&self) -> usize {
        usize::MAX
    }

    /// Returns the cases that only this backend has; they run and count like those of the suite.
    fn own_cases(&self) -> Vec<Case> {
        Vec::new()
    }
}

/// A wall clock that follows the machine's until it is stepped; only processes with its environment see it.
pub trait WallClock: Debug + Send + Sync {
    /// Returns the environment variables that make a process use this clock.
    fn environment(&self) -> Vec<(String, String)>;

    /// Steps the clock forward.
    ///
    /// # Errors
    ///
    /// When it cannot be done.
    fn step_forward(&self, by: Duration) -> Result<()>;

    /// Steps the clock back.
    ///
    /// # Errors
    ///
    /// When it cannot be done.
    fn step_back(&self, by: Duration) -> Result<()>;
}

/// Which clock drives a store and its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Time {
    /// Tokio's paused clock, for a store within the process: its expiry takes no real time.
    Paused,
    /// The machine's clock.
    Real,
}

/// Overrides [`Harness::rounds`] of every harness.
const ROUNDS: &str = "LOCKKIT_ROUNDS";

/// How often cases repeat randomized steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rounds {
    /// Up to thousands of rounds: they cost nothing.
    Many,
    /// Some dozens of rounds: each is a few requests to a real store.
    Few,
}

impl Rounds {
    /// Returns what `LOCKKIT_ROUNDS` requests, as a nightly run does; own cases use it too.
    ///
    /// # Errors
    ///
    /// When its value is unknown.
    pub fn asked_for() -> Result<Option<Self>> {
        match env::var(ROUNDS).as_deref() {
            Ok("many") => Ok(Some(Self::Many)),
            Ok("few") => Ok(Some(Self::Few)),
            Ok(other) => bail!("{ROUNDS}: {other:?} is neither \"many\" nor \"few\""),
            Err(_) => Ok(None),
        }
    }

    /// Chooses between two counts.
    pub fn times<N>(self, many: N, few: N) -> N {
        match self {
            Self::Many => many,
            Self::Few => few,
        }
    }
}

/// The kind of store that a case needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Sharing {
    /// Shared by many cases, each with its own lock names.
    Shared,
    /// For one case.
    Own,
    /// For one case: a store that survives the loss of one of its members; [links](Store::link) lead to one member.
    Cluster,
    /// For one case: a store whose clients log in.
    Login,
}

/// An entry that clients have written to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Its place in the store, for people and for [`Harness::may_stay`].
    pub place: String,
    /// Whether the store removes it by itself: with a lifetime, a lease or a session.
    pub is_bounded: bool,
}

impl Entry {
    /// Makes an entry at this place. `is_bounded`: whether the store removes it by itself.
    pub fn new(place: impl Into<String>, is_bounded: bool) -> Self {
        Self { place: place.into(), is_bounded }
    }
}

/// A store that locks live in.
///
/// # Cancel safety
///
/// The suite drives every future of this trait to its end.
#[async_trait]
pub trait Store: Debug + Send + Sync {
    /// Returns a backend for a new client, as independent of all others as if it ran in another process.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    fn backend(&self) -> Result<AnyBackend>;

    /// Returns the address for [`Harness::connect`]; requested with [`Hook::Processes`] only.
    fn address(&self) -> Option<String>;

    /// Injects or ends a fault of the store; called only when the harness has its [hook](StoreFault::hook).
    ///
    /// # Errors
    ///
    /// When it cannot be done.
    async fn inflict(&self, fault: StoreFault) -> Result<()>;

    /// Returns a backend for a client with this access; called only when the harness has its [hook](Access::hook).
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    async fn backend_for(&self, access: Access) -> Result<AnyBackend> {
        access.unsupported()
    }

    /// Returns a client's connection to the store that can be disturbed; called only with the hook of a
    /// [`LinkFault`](crate::LinkFault).
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    async fn link(&self) -> Result<Arc<dyn ClientLink>>;

    /// Returns all entries of this lock in the store, one line for people each, without the counters that are meant to
    /// stay. Called with [`Hook::Entries`] only.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    async fn entries(&self, name: &LockName) -> Result<Vec<String>>;

    /// Returns how many requests the store has carried out so far. Called with [`Hook::Requests`] only.
    ///
    /// # Errors
    ///
    /// When the store does not report it.
    async fn requests(&self) -> Result<u64>;

    /// Measures a notification without any lock: the time from one client's write until another client is notified.
    /// Called with [`Hook::BareNotification`] only.
    ///
    /// # Errors
    ///
    /// When the notification does not arrive.
    async fn bare_notification(&self) -> Result<Duration> {
        bail!("the harness declares {:?}, but cannot measure one", Hook::BareNotification)
    }

    /// Returns whether a change would now be reported to every waiter at once. Not so with etcd's Lock RPC, for up to 100 ms
    /// after a claim has begun to wait: it watches from a revision that exists already, and etcd serves such watches from
    /// time to time.
    ///
    /// # Errors
    ///
    /// When the store does not report it.
    async fn reports_at_once(&self) -> Result<bool> {
        Ok(true)
    }

    /// Returns whether a write that compares this evidence would be applied now, by a client of the store's own. Called
    /// with [`Hook::Evidence`] only.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    async fn proves(&self, evidence: &Evidence) -> Result<bool> {
        bail!("the harness declares {:?}, but cannot compare {evidence:?}", Hook::Evidence)
    }

    /// Returns all entries of clients in the store, without what the server keeps for itself. Called with
    /// [`Hook::Contents`] only.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    async fn contents(&self) -> Result<Vec<Entry>> {
        bail!("the harness declares {:?}, but its store does not list what it holds", Hook::Contents)
    }

    /// Returns what the store counts of its clients, by name: connections, sessions, subscriptions, watches. All are
    /// zero without clients. Called with [`Hook::Counts`] only.
    ///
    /// # Errors
    ///
    /// When the store does not report it.
    async fn counts(&self) -> Result<BTreeMap<&'static str, u64>> {
        bail!("the harness declares {:?}, but its store does not count", Hook::Counts)
    }

    /// Returns the places of which clients are notified now: keys, nodes or channels that they watch, files that they have
    /// open. Those of a lock contain its name. Called with [`Hook::Watched`] only, and not for a cluster.
    ///
    /// # Errors
    ///
    /// When the store does not report them.
    async fn watched(&self) -> Result<Vec<String>> {
        bail!("the harness declares {:?}, but its store does not list what is watched", Hook::Watched)
    }

    /// Returns within what time of its answer the store frees this lock unless it is renewed, rounded up; `None` when
    /// the lock is free. Called with [`Hook::Lifetimes`] only.
    ///
    /// # Errors
    ///
    /// When the store does not report it.
    async fn frees_within(&self, name: &LockName) -> Result<Option<Duration>> {
        bail!(
            "the harness declares {:?}, but its store does not report when it frees {name:?}",
            Hook::Lifetimes
        )
    }
}
