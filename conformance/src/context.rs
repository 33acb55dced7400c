//! What a case has at hand.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use lockkit_core::{
    Clock, ErrorKind, Lock, LockClient, LockGuard, LockName,
    backend::{Backend, BackendInfo, QueueKind, Session},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{
    Access, AnyBackend, Bounds, Case, Fault, Harness, Hook, Link, Rounds, Sharing, Store, Time, WallClock,
    observed::{Log, Observed},
    report::Figures,
    worker::Worker,
};

/// Generous bound against a notification that never comes.
const NOTIFICATION_MAX: Duration = Duration::from_secs(60);

/// Pauses between two looks at something that comes about by itself; they grow.
const LOOK_PAUSE_MIN: Duration = Duration::from_millis(2);
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(200);

pub(crate) type Cx = Arc<Context>;

/// What a case has at hand: a store, clients of it, unique names, bounds, chance.
#[derive(Debug)]
pub(crate) struct Context {
    case: Case,
    harness: Arc<dyn Harness>,
    store: Arc<dyn Store>,
    log: Arc<Log>,
    random: Mutex<fastrand::Rng>,
    clients: Mutex<Vec<LockClient>>,
    links: Mutex<Vec<Arc<dyn Link>>>,
    names: Mutex<Vec<LockName>>,
    figures: Mutex<Figures>,
    rounds: Rounds,
}

impl Context {
    pub(crate) fn new(harness: &Arc<dyn Harness>, case: Case, seed: u64) -> Result<Cx> {
        let store = harness.store(case.sharing()).context("no store to test in")?;
        // Another one for each case, the same whatever runs before it.
        let of_case = case.name.bytes().fold(seed, |hash, byte| hash.rotate_left(5) ^ u64::from(byte));
        Ok(Arc::new(Self {
            case,
            harness: Arc::clone(harness),
            store,
            log: Arc::default(),
            random: Mutex::new(fastrand::Rng::with_seed(of_case)),
            clients: Mutex::default(),
            links: Mutex::default(),
            names: Mutex::default(),
            figures: Mutex::default(),
            rounds: Rounds::asked_for()?.unwrap_or_else(|| harness.rounds()),
        }))
    }

    /// Adds a figure to the report; its name says its unit.
    pub(crate) fn publish(&self, name: &'static str, value: f64) {
        held(&self.figures).insert(name, value);
    }

    pub(crate) fn figures(&self) -> Figures {
        held(&self.figures).clone()
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

    /// The names of the case so far.
    pub(crate) fn names(&self) -> Vec<LockName> {
        held(&self.names).clone()
    }

    /// The links of the case so far.
    pub(crate) fn links(&self) -> Vec<Arc<dyn Link>> {
        held(&self.links).clone()
    }

    /// The clients of the case so far, which it has no more.
    pub(crate) fn take_clients(&self) -> Vec<LockClient> {
        std::mem::take(&mut *held(&self.clients))
    }

    pub(crate) fn info(&self) -> BackendInfo {
        self.harness.info()
    }

    /// How often to do something: what the environment asks for, or what the harness says of the price.
    pub(crate) fn times(&self, many: usize, few: usize) -> usize {
        self.rounds.times(many, few)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.harness.time() == Time::Paused
    }

    /// A ttl that no case outlives by waiting for something else.
    pub(crate) fn long_ttl(&self) -> Duration {
        Duration::from_secs(60).max(self.info().ttl_min)
    }

    /// A ttl for cases that wait until it is over.
    pub(crate) fn short_ttl(&self) -> Duration {
        Duration::from_secs(3).max(self.info().ttl_min)
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

    /// A lock name that no other case and no other run uses.
    pub(crate) fn name(&self) -> LockName {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (run, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        self.named(&format!("{}/{run}.{number}", self.case.name))
    }

    /// A lock name of the case's own choice; it must be unique.
    #[allow(clippy::expect_used, reason = "the suite's own names are short and not empty")]
    pub(crate) fn named(&self, text: &str) -> LockName {
        let name = LockName::new(text).expect("a valid name");
        held(&self.names).push(name.clone());
        name
    }

    /// A backend for a fresh client, under observation.
    pub(crate) fn backend(&self) -> Result<AnyBackend> {
        Ok(self.observe(self.store.backend()?))
    }

    pub(crate) fn observe(&self, inner: AnyBackend) -> AnyBackend {
        AnyBackend::new(Observed { inner, log: Arc::clone(&self.log) })
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// A fresh client with a ttl that does not matter.
    pub(crate) async fn client(&self) -> Result<LockClient> {
        self.client_with_ttl(self.long_ttl()).await
    }

    /// A fresh client with the shortest ttl that cases use.
    pub(crate) async fn short_client(&self) -> Result<LockClient> {
        self.client_with_ttl(self.short_ttl()).await
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
        let client = LockClient::builder(backend).ttl(ttl).clock(clock).label("conformance").build().await?;
        held(&self.clients).push(client.clone());
        Ok(client)
    }

    /// This lock at a fresh client of its own.
    pub(crate) async fn lock(&self, name: &LockName) -> Result<Lock> {
        Ok(self.client().await?.lock(name.as_str())?)
    }

    /// A session without a client: nobody renews it.
    pub(crate) async fn session(&self, ttl: Duration) -> Result<Arc<dyn Session>> {
        self.session_with_clock(ttl, self.clock()).await
    }

    pub(crate) async fn session_with_clock(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        Ok(self.backend()?.open_session(ttl, clock).await?)
    }

    /// A process of its own with a client of this ttl.
    pub(crate) async fn worker(&self, ttl: Duration) -> Result<Worker> {
        self.worker_with(ttl, &[]).await
    }

    /// The same with this in its environment.
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

    pub(crate) async fn link(&self) -> Result<Arc<dyn Link>> {
        let link = self.store.link().await?;
        held(&self.links).push(Arc::clone(&link));
        Ok(link)
    }

    pub(crate) async fn inflict(&self, fault: Fault) -> Result<()> {
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

    /// How long a notification takes without any lock, where the harness can measure that.
    pub(crate) async fn bare_notification(&self) -> Result<Option<Duration>> {
        if !self.harness.hooks().contains(&Hook::BareNotification) {
            return Ok(None);
        }
        let told = timeout(NOTIFICATION_MAX, self.store.bare_notification());
        Ok(Some(told.await.context("a bare notification did not come")??))
    }

    /// A number below `end`.
    pub(crate) fn random(&self, end: u64) -> u64 {
        held(&self.random).u64(0..end.max(1))
    }

    /// Part of a time, from nothing to all of it.
    pub(crate) fn part_of(&self, whole: Duration) -> Duration {
        whole.mul_f64(held(&self.random).f64())
    }

    /// Lets time pass without any task running: a process that was stopped, or an executor that was blocked. For
    /// paused clocks only.
    pub(crate) async fn stand_still(&self, for_time: Duration) {
        tokio::time::advance(for_time).await;
    }

    /// Waits for this lock in a task, and returns once the claim is known to wait behind `ahead` others.
    pub(crate) async fn enqueue(
        &self,
        lock: &Lock,
        ahead: usize,
    ) -> Result<JoinHandle<lockkit_core::Result<LockGuard>>> {
        let waiting = lock.clone();
        let task = tokio::spawn(async move { waiting.acquire().await });
        self.waits_behind(lock.name(), ahead).await?;
        Ok(task)
    }

    /// Waits until `ahead` claims and one more wait for this lock.
    pub(crate) async fn waits_behind(&self, name: &LockName, ahead: usize) -> Result<()> {
        let backend = self.store.backend()?;
        let look = async || match (self.info().queue, backend.admin()) {
            (QueueKind::Fifo, Some(admin)) => {
                Ok(admin.inspect(name).await.is_ok_and(|found| found.waiters.len() > ahead))
            }
            // Waiters that are in no order need not be seen in one; it is enough that each has begun.
            _ => Ok(self.log.claiming(name) > ahead),
        };
        self.eventually(Duration::from_secs(30), "the claim waits", look).await.map(drop)
    }

    /// Waits until nobody waits for this lock any more, where the backend can look; otherwise as long as it may take.
    pub(crate) async fn nobody_waits(&self, name: &LockName, bound: Duration) -> Result<()> {
        let backend = self.store.backend()?;
        let Some(admin) = backend.admin() else {
            sleep(bound).await;
            return Ok(());
        };
        let empty = async || Ok(admin.inspect(name).await?.waiters.is_empty());
        self.eventually(bound, "the last waiter's entry goes", empty).await.map(drop)
    }

    /// Waits until each of these holds was renewed by a beat that began after this call.
    pub(crate) async fn renewed(&self, guards: &[LockGuard], bounds: Bounds) -> Result<()> {
        let counts = || guards.iter().map(|guard| self.log.renewed(guard.name())).collect::<Vec<_>>();
        let before = counts();
        // One beat may be on its way.
        let twice = async || Ok(counts().iter().zip(&before).all(|(now, before)| now - before >= 2));
        self.eventually(bounds.beat * 3 + bounds.slack, "all are renewed", twice).await.map(drop)
    }

    /// Looks again and again until it is so; how long that took. Fails after `within`.
    pub(crate) async fn eventually(
        &self,
        within: Duration,
        what: &str,
        so: impl AsyncFn() -> Result<bool>,
    ) -> Result<Duration> {
        let (start, mut pause) = (Instant::now(), LOOK_PAUSE_MIN);
        loop {
            settle().await;
            if so().await? {
                return Ok(start.elapsed());
            }
            ensure!(start.elapsed() <= within, "it did not come about within {within:?} that {what}");
            sleep(pause).await;
            pause = (pause * 3 / 2).min(LOOK_PAUSE_MAX);
        }
    }
}

/// Lets every task that can run run, without moving a paused clock.
pub(crate) async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

/// Fails instead of hanging.
pub(crate) async fn within<T>(bound: Duration, what: &str, work: impl Future<Output = T>) -> Result<T> {
    timeout(bound, work).await.map_err(|_| anyhow!("not within {bound:?}: {what}"))
}

/// An attempt at a lock that is held, by a client whose patience may be less than a round trip to a busy server: busy, or
/// an honest `Unavailable`, but never a grant.
pub(crate) fn busy_or_silent(answer: lockkit_core::Result<Option<LockGuard>>) -> Result<()> {
    match answer {
        Ok(guard) => ensure!(guard.is_none(), "a held lock was granted"),
        Err(error) => ensure!(error.kind() == ErrorKind::Unavailable, "{error}"),
    }
    Ok(())
}

/// The kind of an error that must be one.
pub(crate) fn kind<T: Debug>(outcome: lockkit_core::Result<T>) -> Result<ErrorKind> {
    match outcome {
        Ok(value) => bail!("an error was due, not {value:?}"),
        Err(error) => Ok(error.kind()),
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
