//! A client in a process of its own: takes locks, and reads and writes what they protect, until it is told to finish.
//!
//! It ends when the coordinator does, however that ends: its standard input is a pipe of the coordinator's. Stopped, it
//! cannot notice; but it leads a process group of its own, and the kernel ends a stopped group whose parent has gone
//! (SIGHUP, then SIGCONT).

use std::{
    collections::HashMap,
    env,
    io::Read,
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use lockkit::{Lock, LockClient, LockGuard, Status, backend::QueueKind};
use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::sleep,
};

use crate::{
    clock::now,
    wire::{Ask, ClientId, Orders, Reading, Said, Told, line},
};

/// Set for a process in this role, to its [`Orders`].
pub(crate) const ROLE: &str = "LOCKKIT_CHAOS_WORKER";

/// Memory and files that a client can do with.
const MEMORY_BYTES_MAX: u64 = 4 << 30;
const FILES_MAX: u64 = 512;

/// Threads beside the two that run its tasks.
const BLOCKING_THREADS_MAX: usize = 24;

/// How often the guard is asked whether it is held, while work goes on under it.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// How often the coordinator is told of that: what a killed client believed is known up to then.
const REPORT_PAUSE: Duration = Duration::from_millis(50);

/// Pauses before a waiter looks into the queue for itself.
const QUEUE_LOOK_FIRST: Duration = Duration::from_millis(20);
const QUEUE_LOOK_PAUSE: Duration = Duration::from_millis(100);

/// How often a client looks whether it stood still.
const STANDSTILL_LOOK: Duration = Duration::from_millis(50);

/// One in so many holds is longer than a ttl.
const LONG_HOLD_ONE_IN: u8 = 40;

/// Pause before another try to connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(200);

/// Plays the client when this process was started as one.
pub(crate) fn serve_if_asked() -> Option<ExitCode> {
    let orders = env::var(ROLE).ok()?;
    Some(match serve(&orders) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("client: {error:#}");
            ExitCode::FAILURE
        }
    })
}

fn serve(orders: &str) -> Result<()> {
    let orders: Orders = serde_json::from_str(orders)?;
    for (resource, most) in [(Resource::As, MEMORY_BYTES_MAX), (Resource::Nofile, FILES_MAX)] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    std::thread::spawn(|| {
        // Nothing is ever written there: it ends with the coordinator.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(3);
    });
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).max_blocking_threads(BLOCKING_THREADS_MAX).enable_all();
    runtime.build()?.block_on(work(orders))
}

/// The connection to the coordinator.
#[derive(Clone, Debug)]
struct Coordinator {
    said: mpsc::UnboundedSender<Said>,
    asked: Arc<Mutex<HashMap<u64, oneshot::Sender<Reading>>>>,
    next: Arc<AtomicU64>,
    is_finishing: watch::Receiver<bool>,
}

impl Coordinator {
    async fn connect(address: &str) -> Result<(Self, tokio::task::JoinHandle<()>)> {
        let stream = TcpStream::connect(address).await.context("no coordinator")?;
        stream.set_nodelay(true)?;
        let (reading, mut writing) = stream.into_split();
        let (said, mut queue) = mpsc::unbounded_channel::<Said>();
        let writer = tokio::spawn(async move {
            while let Some(said) = queue.recv().await {
                if writing.write_all(&line(&said)).await.is_err() {
                    return;
                }
            }
            let _ = writing.shutdown().await;
        });
        let asked = Arc::<Mutex<HashMap<_, oneshot::Sender<Reading>>>>::default();
        let (finish, is_finishing) = watch::channel(false);
        let waiting = Arc::clone(&asked);
        tokio::spawn(async move {
            let mut lines = BufReader::new(reading).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                match serde_json::from_str(&line) {
                    Ok(Told::Answer { number, reading }) => {
                        if let Some(waiting) = locked(&waiting).remove(&number) {
                            let _ = waiting.send(reading);
                        }
                    }
                    Ok(Told::Finish) => drop(finish.send(true)),
                    Err(_) => return,
                }
            }
        });
        Ok((Self { said, asked, next: Arc::default(), is_finishing }, writer))
    }

    fn say(&self, said: Said) {
        // The process ends with the coordinator.
        let _ = self.said.send(said);
    }

    async fn ask(&self, lock: &str, token: u64, what: Ask) -> Result<Reading> {
        let (number, (sender, answer)) = (self.next.fetch_add(1, SeqCst), oneshot::channel());
        locked(&self.asked).insert(number, sender);
        self.say(Said::Ask { number, lock: lock.to_owned(), token, what });
        Ok(answer.await?)
    }

    fn is_finishing(&self) -> bool {
        *self.is_finishing.borrow()
    }
}

async fn work(orders: Orders) -> Result<()> {
    let (coordinator, writer) = Coordinator::connect(&orders.coordinator).await?;
    coordinator.say(Said::Hello { client: orders.client });
    let client = connect(&orders, &coordinator).await?;
    let troubles = Arc::new(Troubles::default());
    tokio::spawn(Arc::clone(&troubles).follow(client.clone(), coordinator.clone()));
    tokio::spawn(Arc::clone(&troubles).watch_standstills(orders.ttl / 4));
    let mut users = JoinSet::new();
    for (number, name) in orders.locks.iter().enumerate() {
        let mut user = User {
            lock: client.lock(name)?,
            client: client.clone(),
            id: orders.client,
            ttl: orders.ttl,
            coordinator: coordinator.clone(),
            troubles: Arc::clone(&troubles),
            random: fastrand::Rng::with_seed(orders.seed.wrapping_add(number as u64)),
            has_left: true,
        };
        users.spawn(async move { user.use_until_the_end().await });
    }
    while let Some(user) = users.join_next().await {
        user??;
    }
    let closed = client.close().await;
    coordinator.say(Said::Closed { error: closed.err().map(|error| format!("{error:#}")) });
    // The last sender that counts: the writer sends what there is, and ends.
    drop((client, coordinator));
    let _ = tokio::time::timeout(Duration::from_secs(5), writer).await;
    Ok(())
}

/// Connects to the store, which may be down, as often as it takes.
async fn connect(orders: &Orders, coordinator: &Coordinator) -> Result<LockClient> {
    loop {
        let builder = lockkit::builder(&orders.url)?.ttl(orders.ttl).label(orders.client.to_string());
        match builder.build().await {
            Ok(client) => return Ok(client),
            Err(error) => coordinator.say(Said::Trouble { what: format!("{error:#}") }),
        }
        sleep(CONNECT_PAUSE).await;
    }
}

/// How the client's session fares.
#[derive(Debug, Default)]
struct Troubles {
    count: AtomicU64,
    is_in_one: AtomicBool,
}

impl Troubles {
    async fn follow(self: Arc<Self>, client: LockClient, coordinator: Coordinator) {
        let mut status = client.status();
        drop(client);
        loop {
            match status.changed().await {
                Status::Connected => self.is_in_one.store(false, SeqCst),
                Status::Closed => return,
                trouble => {
                    self.count.fetch_add(1, SeqCst);
                    self.is_in_one.store(true, SeqCst);
                    coordinator.say(Said::Trouble { what: format!("{trouble:?}") });
                }
            }
        }
    }

    /// Notes when this process stood still for a while: it may have lost its places in queues, and not know it.
    async fn watch_standstills(self: Arc<Self>, longest: Duration) {
        loop {
            let before = now();
            sleep(STANDSTILL_LOOK).await;
            if now().saturating_sub(before) > longest {
                self.count.fetch_add(1, SeqCst);
            }
        }
    }

    /// Changes when there is one.
    fn so_far(&self) -> Option<u64> {
        (!self.is_in_one.load(SeqCst)).then(|| self.count.load(SeqCst))
    }
}

/// Takes one lock again and again.
#[derive(Debug)]
struct User {
    lock: Lock,
    client: LockClient,
    id: ClientId,
    ttl: Duration,
    coordinator: Coordinator,
    troubles: Arc<Troubles>,
    random: fastrand::Rng,
    /// Nothing of an earlier claim can be in the queue any more.
    has_left: bool,
}

impl User {
    async fn use_until_the_end(&mut self) -> Result<()> {
        loop {
            let is_last = self.coordinator.is_finishing();
            let was_granted = self.take(is_last).await?;
            if is_last && was_granted {
                return Ok(());
            }
            let pause = Duration::from_millis(self.random.u64(1..30));
            tokio::select! {
                () = sleep(pause) => {}
                _ = self.coordinator.is_finishing.wait_for(|&is_finishing| is_finishing && !is_last) => {}
            }
        }
    }

    /// Whether it was granted. The last wait is as long as it takes.
    async fn take(&mut self, is_last: bool) -> Result<bool> {
        let patience = match self.random.u8(0..5) {
            _ if is_last => Duration::from_secs(600),
            0 => Duration::from_millis(self.random.u64(10..500)),
            _ => self.ttl * 4,
        };
        let (asked, troubles) = (now(), self.troubles.so_far());
        let mut queued = None;
        let outcome = tokio::select! {
            biased;
            outcome = self.lock.acquire_timeout(patience) => outcome,
            () = self.watch_queue(&mut queued) => anyhow::bail!("the look into the queue never ends"),
        };
        let granted = now();
        let name = self.lock.name().to_string();
        let guard = match outcome {
            Ok(Some(guard)) => guard,
            other => {
                self.has_left = false;
                let error = other.err().map(|error| format!("{error:#}"));
                if error.is_some() {
                    sleep(LOOK_PAUSE * 4).await;
                }
                self.coordinator.say(Said::Missed { lock: name, error });
                return Ok(false);
            }
        };
        // Who has lost the session on the way has lost the place in the queue.
        let queued = queued.filter(|_| troubles.is_some() && troubles == self.troubles.so_far());
        let token = guard.token().get();
        let is_held = guard.is_held();
        self.coordinator.say(Said::Granted { lock: name.clone(), token, asked, queued, granted, is_held });
        self.use_and_release(&name, guard, granted).await?;
        Ok(true)
    }

    /// Notes a time at which the claim was in the queue, and goes on without end.
    async fn watch_queue(&self, queued: &mut Option<Duration>) {
        if self.has_left && self.client.info().queue == QueueKind::Fifo {
            sleep(QUEUE_LOOK_FIRST).await;
            let label = self.id.to_string();
            loop {
                let found = self.client.inspect(self.lock.name().as_str()).await;
                let is_own = |metadata: &lockkit::Metadata| metadata.label.as_ref() == Some(&label);
                if found.is_ok_and(|found| {
                    found.waiters.iter().any(|waiter| waiter.metadata.as_ref().is_some_and(is_own))
                }) {
                    *queued = Some(now());
                    break;
                }
                sleep(QUEUE_LOOK_PAUSE).await;
            }
        }
        std::future::pending().await
    }

    /// Reads, sleeps and writes as one does who trusts the lock: whether it is still held is noted, and not looked at.
    async fn use_and_release(&mut self, name: &str, guard: LockGuard, granted: Duration) -> Result<()> {
        let token = guard.token().get();
        let mut belief = Belief { last: granted, reported: granted };
        let read = self.coordinator.ask(name, token, Ask::Read).await?;
        self.look(name, &guard, &mut belief);
        let work = match self.random.u8(0..LONG_HOLD_ONE_IN) {
            // Renewed on the way.
            0 => self.ttl.mul_f32(1.3),
            _ => Duration::from_millis(self.random.u64(2..40)),
        };
        let start = now();
        while let Some(left) = work.checked_sub(now().saturating_sub(start)).filter(|left| !left.is_zero()) {
            sleep(left.min(LOOK_PAUSE)).await;
            self.look(name, &guard, &mut belief);
        }
        self.coordinator.ask(name, token, Ask::Write { read }).await?;
        let lost = !self.look(name, &guard, &mut belief);
        let released = guard.release().await;
        self.has_left = released.is_ok();
        self.coordinator.say(Said::Ended {
            lock: name.to_owned(),
            token,
            believed: belief.last,
            lost,
            released: released.err().map(|error| format!("{error:#}")),
        });
        Ok(())
    }

    /// Notes whether the guard believes that it is held.
    fn look(&self, name: &str, guard: &LockGuard, belief: &mut Belief) -> bool {
        // Before the look: it was held at that time too, since a loss is final.
        let at = now();
        let is_held = guard.is_held();
        if is_held {
            belief.last = at;
            if at.saturating_sub(belief.reported) > REPORT_PAUSE {
                belief.reported = at;
                let (lock, token) = (name.to_owned(), guard.token().get());
                self.coordinator.say(Said::Believed { lock, token, at });
            }
        }
        is_held
    }
}

/// When a guard last said that it is held, and when the coordinator was last told.
#[derive(Debug)]
struct Belief {
    last: Duration,
    reported: Duration,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
