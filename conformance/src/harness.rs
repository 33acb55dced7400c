//! What a backend hands to the suite.

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
    backend::{Admin, Backend, BackendInfo, Session},
};

use crate::{
    Access, Case,
    fault::{Fault, Hook, LinkFault},
};

/// A backend of whichever type; cheap to clone.
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

    async fn open_session(&self, ttl: Duration, clock: Clock) -> lockkit_core::Result<Arc<dyn Session>> {
        self.0.open_session(ttl, clock).await
    }

    fn admin(&self) -> Option<&dyn Admin> {
        self.0.admin()
    }
}

/// What the suite needs of a backend: stores to lock in, and hooks to harm them.
pub trait Harness: Debug + Send + Sync + 'static {
    /// The name in reports and in `LOCKKIT_BACKENDS`.
    fn name(&self) -> String;

    /// Backends of others whose test programs run beside this one: their names are known in `LOCKKIT_BACKENDS`, as those
    /// of this project are, and nothing else is.
    fn siblings(&self) -> Vec<String> {
        Vec::new()
    }

    /// What the backend claims. No I/O.
    fn info(&self) -> BackendInfo;

    /// Which clock drives the store.
    fn time(&self) -> Time;

    /// How often cases repeat what chance decides.
    fn rounds(&self) -> Rounds;

    /// The hooks that [`Store::inflict`], [`Store::link`] and the other methods of the store have.
    fn hooks(&self) -> Vec<Hook>;

    /// Why a hook is not among them here, where it could be: told with the cases that are ignored for it.
    fn why_not(&self, hook: Hook) -> Option<String> {
        let _ = hook;
        None
    }

    /// Cases that may run side by side; most of them wait for a ttl and not for the processor.
    fn parallel(&self) -> usize;

    /// A store: the one that all cases share, made at the first call, or one of its own for a case that harms it. The
    /// other kinds are asked for with their hooks only.
    ///
    /// # Errors
    ///
    /// When it cannot be started; a missing server program is named together with how to install it.
    fn store(&self, sharing: Sharing) -> Result<Arc<dyn Store>>;

    /// The store at an [address](Store::address), from another process than the one that made it.
    ///
    /// # Errors
    ///
    /// When the address makes no sense.
    fn connect(&self, address: &str) -> Result<AnyBackend>;

    /// A wall clock for other processes; asked for with [`Hook::WallClock`] only.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    fn wall_clock(&self) -> Result<Box<dyn WallClock>> {
        bail!("the harness declares {:?}, but has none", Hook::WallClock)
    }

    /// Why clients may leave this [entry](Entry::place) in a store for good; `None` for what they must not.
    fn may_stay(&self, place: &str) -> Option<&'static str> {
        let _ = place;
        None
    }

    /// Cases that only this backend has, to be run and counted with those of the suite.
    fn own_cases(&self) -> Vec<Case> {
        Vec::new()
    }
}

/// A wall clock that goes with the machine's until it is stepped, and for those processes only that live by it.
pub trait WallClock: Debug + Send + Sync {
    /// What a process must find in its environment to live by it, as names and values.
    fn environment(&self) -> Vec<(String, String)>;

    /// Puts it forward.
    ///
    /// # Errors
    ///
    /// When it cannot be done.
    fn step_forward(&self, by: Duration) -> Result<()>;

    /// Puts it back.
    ///
    /// # Errors
    ///
    /// When it cannot be done.
    fn step_back(&self, by: Duration) -> Result<()>;
}

/// Which clock drives a store and its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// Tokio's, paused: a store within the process, whose expiry costs no real time.
    Paused,
    /// The machine's.
    Real,
}

/// Asks for so many rounds on every store.
const ROUNDS: &str = "LOCKKIT_ROUNDS";

/// How often cases repeat what chance decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounds {
    /// Up to thousands of times: a round costs nothing.
    Many,
    /// Some dozens of times: each round is a few requests to a real store.
    Few,
}

impl Rounds {
    /// What the environment asks of every harness, as a nightly run does; own cases ask too.
    ///
    /// # Errors
    ///
    /// A word that is not understood.
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

/// Which store a case needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharing {
    /// Many cases lock in it, each under names of its own.
    Shared,
    /// For one case.
    Own,
    /// For one case: a store of several members, of which it can do without one; [links](Store::link) lead to one.
    Cluster,
    /// For one case: a store whose clients log in.
    Login,
}

/// Something that clients have put into a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it lies, for people and for [`Harness::may_stay`].
    pub place: String,
    /// Whether the store takes it away by itself some time: with a lifetime, a lease or a session.
    pub is_bounded: bool,
}

/// A place that locks live in.
///
/// # Cancel safety
///
/// The suite drives every future of this trait to its end.
#[async_trait]
pub trait Store: Debug + Send + Sync {
    /// A backend for a fresh client, independent of all others as if it ran in another process.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    fn backend(&self) -> Result<AnyBackend>;

    /// Where [`Harness::connect`] finds this store; asked for with [`Hook::Processes`] only.
    fn address(&self) -> Option<String>;

    /// Harms or mends the store; asked for only when its [hook](Fault::hook) is among the harness's.
    ///
    /// # Errors
    ///
    /// When it cannot be done.
    async fn inflict(&self, fault: Fault) -> Result<()>;

    /// A backend for a client with this access; asked for only when its [hook](Access::hook) is among the harness's.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    async fn backend_for(&self, access: Access) -> Result<AnyBackend> {
        access.unsupported()
    }

    /// A client's way to the store that can be disturbed; asked for only with a hook that a [`LinkFault`] needs.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    async fn link(&self) -> Result<Arc<dyn Link>>;

    /// Everything that clients have left in the store for this lock, each as a line for people; asked for with
    /// [`Hook::Entries`] only. Counters that are meant to stay are left out.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    async fn entries(&self, name: &LockName) -> Result<Vec<String>>;

    /// Requests that the store has carried out so far; asked for with [`Hook::Requests`] only.
    ///
    /// # Errors
    ///
    /// When the store does not say.
    async fn requests(&self) -> Result<u64>;

    /// How long a notification takes without any lock: from one client's write to the moment when another one, which
    /// waited for it, is told. Asked for with [`Hook::BareNotification`] only.
    ///
    /// # Errors
    ///
    /// When nothing is told.
    async fn bare_notification(&self) -> Result<Duration> {
        bail!("the harness declares {:?}, but cannot measure one", Hook::BareNotification)
    }

    /// Everything that clients have put into the store and that is still there; what the server keeps for itself is left
    /// out. Asked for with [`Hook::Contents`] only.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    async fn contents(&self) -> Result<Vec<Entry>> {
        bail!("the harness declares {:?}, but its store does not list what it holds", Hook::Contents)
    }

    /// What the store counts of its clients, each count by its name: connections, sessions, subscriptions, watches. All are
    /// zero while it has none. Asked for with [`Hook::Counts`] only.
    ///
    /// # Errors
    ///
    /// When the store does not say.
    async fn counts(&self) -> Result<BTreeMap<&'static str, u64>> {
        bail!("the harness declares {:?}, but its store does not count", Hook::Counts)
    }

    /// When the store will have freed this lock if nothing is renewed, counted from its answer: rounded up where it says
    /// it roughly. `None` when nobody holds the lock; asked for with [`Hook::Lifetimes`] only.
    ///
    /// # Errors
    ///
    /// When the store does not say.
    async fn frees_within(&self, name: &LockName) -> Result<Option<Duration>> {
        bail!("the harness declares {:?}, but its store does not say when it frees {name:?}", Hook::Lifetimes)
    }
}

/// One client's way to the store.
///
/// # Cancel safety
///
/// The suite drives every future of this trait to its end.
#[async_trait]
pub trait Link: Debug + Send + Sync {
    /// A backend whose requests and replies go this way.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    fn backend(&self) -> Result<AnyBackend>;

    /// Disturbs the way from now on. Clients of other links are not disturbed, unless each case has a store of its own:
    /// then a case uses no other client while this one is not answered.
    ///
    /// # Errors
    ///
    /// When it cannot be done.
    async fn inflict(&self, fault: LinkFault) -> Result<()>;

    /// Ends every disturbance. What was held back is passed on.
    ///
    /// # Errors
    ///
    /// When it cannot be done.
    async fn heal(&self) -> Result<()>;
}
