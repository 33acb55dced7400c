//! The context of a case: its store, clients, names, bounds and random numbers.

mod waiting;

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use lockkit_core::{
    Clock, ErrorKind, FencingToken, Lock, LockClient, LockGuard, LockName,
    backend::{Backend, BackendInfo, Promises, Session},
    support::lock,
};
use tokio::time::{Instant, timeout};

pub(crate) use self::waiting::{settle, within};
use crate::{
    Access, AnyBackend, Bounds, Case, ClientLink, Harness, Hook, Rounds, Sharing, Store, StoreFault, Time,
    WallClock,
    observed::{Log, Observed},
    report::Figures,
    worker::Worker,
};

/// Generous bound against a notification that never arrives.
const NOTIFICATION_MAX: Duration = Duration::from_secs(60);

/// How long a watch takes at most to catch up. Etcd serves those that lag behind ten times a second.
const CATCH_UP_MAX: Duration = Duration::from_secs(1);

pub(crate) type Cx = Arc<Context>;

/// The context of a case: a store, its clients, unique names, bounds, random numbers.
#[derive(Debug)]
pub(crate) struct Context {
    case: Case,
    /// In all of its lock names, and in those of no other context. Forms of a backend may run the same case in one store.
    id: String,
    harness: Arc<dyn Harness>,
    store: Arc<dyn Store>,
    log: Arc<Log>,
    random: Mutex<fastrand::Rng>,
    clients: Mutex<Vec<LockClient>>,
    sessions: Mutex<Vec<Arc<dyn Session>>>,
    links: Mutex<Vec<Arc<dyn ClientLink>>>,
    names: Mutex<Vec<LockName>>,
    figures: Mutex<Figures>,
    rounds: Rounds,
}

impl Context {
    pub(crate) fn new(harness: &Arc<dyn Harness>, case: Case, seed: u64) -> Result<Cx> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (run, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let store = harness.store(case.sharing()).context("no store to test in")?;
        // Different for each case, and independent of the order of the cases.
        let of_case = case.name.bytes().fold(seed, |hash, byte| hash.rotate_left(5) ^ u64::from(byte));
        Ok(Arc::new(Self {
            case,
            id: format!("{run}.{number}."),
            harness: Arc::clone(harness),
            store,
            log: Arc::default(),
            random: Mutex::new(fastrand::Rng::with_seed(of_case)),
            clients: Mutex::default(),
            sessions: Mutex::default(),
            links: Mutex::default(),
            names: Mutex::default(),
            figures: Mutex::default(),
            rounds: Rounds::asked_for()?.unwrap_or_else(|| harness.rounds()),
        }))
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Adds a figure to the report; its name contains its unit.
    pub(crate) fn publish(&self, name: &'static str, value: f64) {
        lock(&self.figures).insert(name, value);
    }

    pub(crate) fn figures(&self) -> Figures {
        lock(&self.figures).clone()
    }

    pub(crate) fn sharing(&self) -> Sharing {
        self.case.sharing()
    }

    pub(crate) fn harness(&self) -> &dyn Harness {
        &*self.harness
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Returns the lock names of the case so far.
    pub(crate) fn names(&self) -> Vec<LockName> {
        lock(&self.names).clone()
    }

    /// Returns the links of the case so far.
    pub(crate) fn links(&self) -> Vec<Arc<dyn ClientLink>> {
        lock(&self.links).clone()
    }

    /// Takes the clients of the case so far.
    pub(crate) fn take_clients(&self) -> Vec<LockClient> {
        std::mem::take(&mut *lock(&self.clients))
    }

    /// Takes the sessions of the case so far that have no client.
    pub(crate) fn take_sessions(&self) -> Vec<Arc<dyn Session>> {
        std::mem::take(&mut *lock(&self.sessions))
    }

    pub(crate) fn info(&self) -> BackendInfo {
        self.harness.info()
    }

    pub(crate) fn promises(&self) -> Promises {
        self.harness.promises()
    }

    /// Returns the number of rounds that the environment requests, or else the harness.
    pub(crate) fn times(&self, many: usize, few: usize) -> usize {
        self.rounds.times(many, few)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.harness.time() == Time::Paused
    }

    /// Returns a ttl that is longer than any case waits for something else.
    pub(crate) fn long_ttl(&self) -> Duration {
        Duration::from_secs(60).max(self.info().ttl_min)
    }

    /// Returns a ttl for cases that wait until it has passed.
    pub(crate) fn short_ttl(&self) -> Duration {
        Duration::from_secs(3).max(self.info().ttl_min)
    }

    /// Returns a ttl for cases that wait for heartbeats, but not until it has passed. A few seconds without an answer,
    /// as on a loaded machine, end no hold then, and a hold lasts longer than a heartbeat and the slack.
    pub(crate) fn steady_ttl(&self) -> Duration {
        self.short_ttl() * 3
    }

    pub(crate) fn bounds(&self, ttl: Duration) -> Bounds {
        Bounds::new(&self.info(), ttl, self.harness.time())
    }

    pub(crate) fn bounds_of(&self, client: &LockClient) -> Bounds {
        self.bounds(client.ttl())
    }

    pub(crate) fn clock(&self) -> Clock {
        if self.is_paused() { Clock::tokio() } else { Clock::boot() }
    }

    /// Returns a lock name that no other case and no other run uses.
    pub(crate) fn name(&self) -> LockName {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        self.named(&format!("{}/{}{}", self.case.name, self.id, NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// Registers a lock name that the case chooses; it must be unique.
    #[allow(clippy::expect_used, reason = "the suite's own names are short and not empty")]
    pub(crate) fn named(&self, text: &str) -> LockName {
        let name = LockName::new(text).expect("a valid name");
        lock(&self.names).push(name.clone());
        name
    }

    /// Returns an observed backend for a new client.
    pub(crate) fn backend(&self) -> Result<AnyBackend> {
        Ok(self.observe(self.store.backend()?))
    }

    pub(crate) fn observe(&self, inner: AnyBackend) -> AnyBackend {
        AnyBackend::new(Observed { inner, log: Arc::clone(&self.log) })
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Returns a new client with a long ttl.
    pub(crate) async fn client(&self) -> Result<LockClient> {
        self.client_with_ttl(self.long_ttl()).await
    }

    /// Returns a new client with the shortest ttl that cases use.
    pub(crate) async fn short_client(&self) -> Result<LockClient> {
        self.client_with_ttl(self.short_ttl()).await
    }

    /// Returns a new client with the [ttl](Self::steady_ttl) of cases that wait for heartbeats.
    pub(crate) async fn steady_client(&self) -> Result<LockClient> {
        self.client_with_ttl(self.steady_ttl()).await
    }

    pub(crate) async fn client_with_ttl(&self, ttl: Duration) -> Result<LockClient> {
        self.client_of(self.backend()?, ttl).await
    }

    pub(crate) async fn client_of(&self, backend: AnyBackend, ttl: Duration) -> Result<LockClient> {
        self.client_with_clock(backend, ttl, self.clock()).await
    }

    pub(crate) async fn client_with_clock(
        &self,
        backend: AnyBackend,
        ttl: Duration,
        clock: Clock,
    ) -> Result<LockClient> {
        let build = || {
            let builder = LockClient::builder(backend.clone());
            builder.ttl(ttl).clock(clock.clone()).label("conformance").build()
        };
        let client = match build().await {
            // On a loaded machine, opening a session may take most of a short ttl, which `build` reports at once. The
            // report of the case shows it, and it may happen only once.
            Err(error) if error.kind() == ErrorKind::Unavailable && self.may_open_again() => build().await?,
            built => built?,
        };
        lock(&self.clients).push(client.clone());
        Ok(client)
    }

    /// Returns true once per case, on real time.
    fn may_open_again(&self) -> bool {
        !self.is_paused() && lock(&self.figures).insert("clients opened twice", 1.0).is_none()
    }

    /// Returns this lock of a new client.
    pub(crate) async fn lock(&self, name: &LockName) -> Result<Lock> {
        Ok(self.client().await?.lock(name.as_str())?)
    }

    /// Opens a session without a client: nothing renews it.
    pub(crate) async fn session(&self, ttl: Duration) -> Result<Arc<dyn Session>> {
        self.session_with_clock(ttl, self.clock()).await
    }

    pub(crate) async fn session_with_clock(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        let session = self.backend()?.open_session(ttl, clock).await?;
        lock(&self.sessions).push(Arc::clone(&session));
        Ok(session)
    }

    /// Starts a process with a client of this ttl.
    pub(crate) async fn worker(&self, ttl: Duration) -> Result<Worker> {
        self.worker_with(ttl, &[]).await
    }

    /// The same with these environment variables.
    pub(crate) async fn worker_with(
        &self,
        ttl: Duration,
        environment: &[(String, String)],
    ) -> Result<Worker> {
        let address = self.store.address().context("the harness has no address for other processes")?;
        Worker::start(&address, ttl, environment).await
    }

    pub(crate) fn wall_clock(&self) -> Result<Box<dyn WallClock>> {
        self.harness.wall_clock()
    }

    pub(crate) async fn link(&self) -> Result<Arc<dyn ClientLink>> {
        let link = self.store.link().await?;
        lock(&self.links).push(Arc::clone(&link));
        Ok(link)
    }

    pub(crate) async fn inflict(&self, fault: StoreFault) -> Result<()> {
        ensure!(self.case.declares(fault.hook()), "the case does not declare {:?}", fault.hook());
        self.store.inflict(fault).await
    }

    pub(crate) async fn backend_for(&self, access: Access) -> Result<AnyBackend> {
        ensure!(self.case.declares(access.hook()), "the case does not declare {:?}", access.hook());
        Ok(self.observe(self.store.backend_for(access).await?))
    }

    pub(crate) async fn entries(&self, name: &LockName) -> Result<Vec<String>> {
        self.store.entries(name).await
    }

    pub(crate) async fn counts(&self) -> Result<BTreeMap<&'static str, u64>> {
        self.store.counts().await
    }

    pub(crate) async fn frees_within(&self, name: &LockName) -> Result<Option<Duration>> {
        self.store.frees_within(name).await
    }

    pub(crate) async fn requests(&self) -> Result<u64> {
        self.store.requests().await
    }

    /// Returns how long a notification takes without any lock, where the harness can measure it.
    pub(crate) async fn bare_notification(&self) -> Result<Option<Duration>> {
        if !self.harness.hooks().contains(&Hook::BareNotification) {
            return Ok(None);
        }
        let measured = timeout(NOTIFICATION_MAX, self.store.bare_notification());
        Ok(Some(measured.await.context("a bare notification did not arrive")??))
    }

    /// Waits until the store reports changes to every waiter at once, or until those of this case must be among them: in
    /// a shared store, those of others may lag behind all the time.
    pub(crate) async fn reports_at_once(&self) -> Result<()> {
        let start = Instant::now();
        let look = async || Ok(self.store.reports_at_once().await? || start.elapsed() > CATCH_UP_MAX);
        self.eventually(NOTIFICATION_MAX, "changes are reported at once", look).await.map(drop)
    }

    /// Returns a random number below `end`.
    pub(crate) fn random(&self, end: u64) -> u64 {
        lock(&self.random).u64(0..end.max(1))
    }

    /// Returns a random part of a time, from nothing to all of it.
    pub(crate) fn part_of(&self, whole: Duration) -> Duration {
        whole.mul_f64(lock(&self.random).f64())
    }

    /// Lets time pass while no task runs, like a stopped process or a blocked executor. For paused clocks only.
    pub(crate) async fn stand_still(&self, for_time: Duration) {
        tokio::time::advance(for_time).await;
    }
}

/// Checks the result of an attempt at a held lock: busy, or `Unavailable` where the time limit may be shorter than a
/// round trip to a loaded server, but never a grant.
pub(crate) fn busy_or_unavailable(answer: lockkit_core::Result<Option<LockGuard>>) -> Result<()> {
    match answer {
        Ok(guard) => ensure!(guard.is_none(), "a held lock was granted"),
        Err(error) => ensure!(error.kind() == ErrorKind::Unavailable, "{error}"),
    }
    Ok(())
}

/// Checks that the token of a grant is larger than that of an earlier one.
pub(crate) fn rises(earlier: impl Into<Option<FencingToken>>, token: FencingToken) -> Result<()> {
    let earlier = earlier.into();
    ensure!(Some(token) > earlier, "the token does not rise: {token} after {earlier:?}");
    Ok(())
}

/// Returns the kind of a result that must be an error.
pub(crate) fn kind<T: Debug>(outcome: lockkit_core::Result<T>) -> Result<ErrorKind> {
    match outcome {
        Ok(value) => bail!("expected an error, got {value:?}"),
        Err(error) => Ok(error.kind()),
    }
}
