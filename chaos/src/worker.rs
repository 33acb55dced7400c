//! A client process: takes locks, reads and writes what they protect, until the coordinator asks it to finish.
//!
//! The process ends with the coordinator, however that ends: its standard input is a pipe of the coordinator. While it
//! is stopped it cannot notice that. But it leads a process group, and the kernel ends a stopped group whose parent has
//! exited (SIGHUP, then SIGCONT).

use std::{
    collections::HashMap,
    env,
    io::Read,
    process::ExitCode,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use lockkit::{Lock, LockClient, LockGuard, Status, backend::QueueKind};
use lockkit_core::support::lock;
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
    wire::{ClientId, ClientMessage, ClientSetup, CoordinatorMessage, Reading, RegisterRequest, line},
};

/// The environment variable that makes a process a client: its [`ClientSetup`].
pub(crate) const ROLE: &str = "LOCKKIT_CHAOS_WORKER";

/// Limits of memory and open files for a client.
const MEMORY_BYTES_MAX: u64 = 4 << 30;
const FILES_MAX: u64 = 512;

/// Maximum number of threads in addition to the two that run its tasks.
const BLOCKING_THREADS_MAX: usize = 24;

/// How often a client checks whether its guard is held, while it works under the lock.
const CHECK_PAUSE: Duration = Duration::from_millis(5);

/// How often a client reports that. What a killed client believed is known up to its last report.
const REPORT_PAUSE: Duration = Duration::from_millis(50);

/// Pauses before a waiter looks for its own entry in the queue.
const QUEUE_CHECK_FIRST: Duration = Duration::from_millis(20);
const QUEUE_CHECK_PAUSE: Duration = Duration::from_millis(100);

/// How often a client checks whether its process was stopped.
const STANDSTILL_CHECK: Duration = Duration::from_millis(50);

/// One of this many holds is longer than a ttl.
const LONG_HOLD_ONE_IN: u8 = 40;

/// The pause between attempts to connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(200);

/// What a client logs: what it does with its locks, and what happens to its connections.
const LOGGED: &str = "lockkit=debug,zookeeper_client=info";

/// Runs the client if this process was started as one.
pub(crate) fn run_if_client() -> Option<ExitCode> {
    let setup = env::var(ROLE).ok()?;
    Some(match serve(&setup) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("client: {error:#}");
            ExitCode::FAILURE
        }
    })
}

fn serve(setup: &str) -> Result<()> {
    let setup: ClientSetup = serde_json::from_str(setup)?;
    let log = tracing_subscriber::fmt().with_env_filter(LOGGED).with_ansi(false);
    // Standard error is the file of this client.
    log.with_writer(std::io::stderr).init();
    for (resource, most) in [(Resource::As, MEMORY_BYTES_MAX), (Resource::Nofile, FILES_MAX)] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    std::thread::spawn(|| {
        // The coordinator never writes to it; the read returns when the coordinator ends.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(3);
    });
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).max_blocking_threads(BLOCKING_THREADS_MAX).enable_all();
    runtime.build()?.block_on(work(setup))
}

/// The connection to the coordinator.
#[derive(Clone, Debug)]
struct ToCoordinator {
    outgoing: mpsc::UnboundedSender<ClientMessage>,
    pending: Arc<Mutex<HashMap<u64, oneshot::Sender<Reading>>>>,
    next: Arc<AtomicU64>,
    is_finishing: watch::Receiver<bool>,
}

impl ToCoordinator {
    async fn connect(address: &str) -> Result<(Self, tokio::task::JoinHandle<()>)> {
        let stream = TcpStream::connect(address).await.context("cannot reach the coordinator")?;
        stream.set_nodelay(true)?;
        let (reading, mut writing) = stream.into_split();
        let (outgoing, mut queue) = mpsc::unbounded_channel::<ClientMessage>();
        let writer = tokio::spawn(async move {
            while let Some(message) = queue.recv().await {
                if writing.write_all(&line(&message)).await.is_err() {
                    return;
                }
            }
            let _ = writing.shutdown().await;
        });
        let pending = Arc::<Mutex<HashMap<_, oneshot::Sender<Reading>>>>::default();
        let (finish, is_finishing) = watch::channel(false);
        let waiting = Arc::clone(&pending);
        tokio::spawn(async move {
            let mut lines = BufReader::new(reading).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                match serde_json::from_str(&line) {
                    Ok(CoordinatorMessage::Answer { number, reading }) => {
                        if let Some(waiting) = lock(&waiting).remove(&number) {
                            let _ = waiting.send(reading);
                        }
                    }
                    Ok(CoordinatorMessage::Finish) => drop(finish.send(true)),
                    Err(_) => return,
                }
            }
        });
        Ok((Self { outgoing, pending, next: Arc::default(), is_finishing }, writer))
    }

    fn send(&self, message: ClientMessage) {
        // If the connection is gone, the coordinator is too, and this process ends with it.
        let _ = self.outgoing.send(message);
    }

    async fn use_registers(&self, name: &str, token: u64, request: RegisterRequest) -> Result<Reading> {
        let (number, (sender, answer)) = (self.next.fetch_add(1, SeqCst), oneshot::channel());
        lock(&self.pending).insert(number, sender);
        self.send(ClientMessage::UseRegisters { number, lock: name.to_owned(), token, request });
        Ok(answer.await?)
    }

    fn is_finishing(&self) -> bool {
        *self.is_finishing.borrow()
    }
}

async fn work(setup: ClientSetup) -> Result<()> {
    let (connection, writer) = ToCoordinator::connect(&setup.coordinator).await?;
    connection.send(ClientMessage::Hello { client: setup.client });
    let client = connect(&setup, &connection).await?;
    let disturbances = Arc::new(Disturbances::default());
    tokio::spawn(Arc::clone(&disturbances).follow(client.clone(), connection.clone()));
    tokio::spawn(Arc::clone(&disturbances).watch_standstills(setup.ttl / 4));
    let mut users = JoinSet::new();
    for (number, name) in setup.locks.iter().enumerate() {
        let mut user = User {
            lock: client.lock(name)?,
            client: client.clone(),
            id: setup.client,
            ttl: setup.ttl,
            connection: connection.clone(),
            disturbances: Arc::clone(&disturbances),
            random: fastrand::Rng::with_seed(setup.seed.wrapping_add(number as u64)),
            has_left: true,
        };
        users.spawn(async move { user.run().await });
    }
    while let Some(user) = users.join_next().await {
        user??;
    }
    let closed = client.close().await;
    connection.send(ClientMessage::Closed { error: closed.err().map(|error| format!("{error:#}")) });
    // This drops the last sender: the writer sends what is queued, and ends.
    drop((client, connection));
    let _ = tokio::time::timeout(Duration::from_secs(5), writer).await;
    Ok(())
}

/// Connects to the store. Retries until it succeeds, since the store may be down.
async fn connect(setup: &ClientSetup, connection: &ToCoordinator) -> Result<LockClient> {
    loop {
        let builder = lockkit::builder(&setup.url)?.ttl(setup.ttl).label(setup.client.to_string());
        match builder.build().await {
            Ok(client) => return Ok(client),
            Err(error) => connection.send(ClientMessage::SessionProblem { problem: format!("{error:#}") }),
        }
        sleep(CONNECT_PAUSE).await;
    }
}

/// Counts the events that may have cost the client its queue entries: every change of its status, because a loss that is
/// followed at once by a new session may show only as the latter, and every standstill.
#[derive(Debug, Default)]
struct Disturbances {
    count: AtomicU64,
    is_disturbed: AtomicBool,
}

impl Disturbances {
    async fn follow(self: Arc<Self>, client: LockClient, connection: ToCoordinator) {
        let mut status = client.status();
        drop(client);
        loop {
            let changed = status.changed().await;
            self.count.fetch_add(1, SeqCst);
            match changed {
                Status::Connected => self.is_disturbed.store(false, SeqCst),
                Status::Closed => return,
                other => {
                    self.is_disturbed.store(true, SeqCst);
                    connection.send(ClientMessage::SessionProblem { problem: format!("{other:?}") });
                }
            }
        }
    }

    /// Counts the times at which this process was stopped for more than `longest`: it may have lost its queue entries
    /// without a notification.
    async fn watch_standstills(self: Arc<Self>, longest: Duration) {
        loop {
            let before = now();
            sleep(STANDSTILL_CHECK).await;
            if now().saturating_sub(before) > longest {
                self.count.fetch_add(1, SeqCst);
            }
        }
    }

    /// Returns the number of events so far, or `None` during one.
    fn snapshot(&self) -> Option<u64> {
        (!self.is_disturbed.load(SeqCst)).then(|| self.count.load(SeqCst))
    }
}

/// Takes one lock repeatedly.
#[derive(Debug)]
struct User {
    lock: Lock,
    client: LockClient,
    id: ClientId,
    ttl: Duration,
    connection: ToCoordinator,
    disturbances: Arc<Disturbances>,
    random: fastrand::Rng,
    /// No entry of an earlier claim can be in the queue any more.
    has_left: bool,
}

impl User {
    async fn run(&mut self) -> Result<()> {
        loop {
            let is_last = self.connection.is_finishing();
            let was_granted = self.take(is_last).await?;
            if is_last && was_granted {
                return Ok(());
            }
            let pause = Duration::from_millis(self.random.u64(1..30));
            tokio::select! {
                () = sleep(pause) => {}
                _ = self.connection.is_finishing.wait_for(|&is_finishing| is_finishing && !is_last) => {}
            }
        }
    }

    /// Acquires, uses and releases the lock once. Returns whether it was granted. The last wait is as long as it takes.
    async fn take(&mut self, is_last: bool) -> Result<bool> {
        let time_limit = match self.random.u8(0..5) {
            _ if is_last => Duration::from_secs(600),
            0 => Duration::from_millis(self.random.u64(10..500)),
            _ => self.ttl * 4,
        };
        let (asked, disturbances) = (now(), self.disturbances.snapshot());
        let mut queued = None;
        let outcome = tokio::select! {
            biased;
            outcome = self.lock.acquire_timeout(time_limit) => outcome,
            () = self.watch_queue(&mut queued) => anyhow::bail!("watch_queue has returned"),
        };
        let granted = now();
        let name = self.lock.name().to_string();
        let guard = match outcome {
            Ok(Some(guard)) => guard,
            other => {
                self.has_left = false;
                let error = other.err().map(|error| format!("{error:#}"));
                if error.is_some() {
                    sleep(CHECK_PAUSE * 4).await;
                }
                self.connection.send(ClientMessage::Missed { lock: name, error });
                return Ok(false);
            }
        };
        // A client that lost its session meanwhile has lost its entry in the queue.
        let queued =
            queued.filter(|_| disturbances.is_some() && disturbances == self.disturbances.snapshot());
        let token = guard.token().get();
        let is_held = guard.is_held();
        self.connection.send(ClientMessage::Granted {
            lock: name.clone(),
            token,
            asked,
            queued,
            granted,
            is_held,
        });
        self.use_and_release(&name, guard, granted).await?;
        Ok(true)
    }

    /// Records a time at which the claim was in the queue. Never returns.
    async fn watch_queue(&self, queued: &mut Option<Duration>) {
        if self.has_left && self.client.promises().queue == QueueKind::Fifo {
            sleep(QUEUE_CHECK_FIRST).await;
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
                sleep(QUEUE_CHECK_PAUSE).await;
            }
        }
        std::future::pending().await
    }

    /// Reads, sleeps and writes as a caller that trusts the lock: whether the guard is held is recorded and ignored.
    async fn use_and_release(&mut self, name: &str, guard: LockGuard, granted: Duration) -> Result<()> {
        let token = guard.token().get();
        let mut belief = Belief { last: granted, reported: granted };
        let read = self.connection.use_registers(name, token, RegisterRequest::Read).await?;
        self.check_guard(name, &guard, &mut belief);
        let work = match self.random.u8(0..LONG_HOLD_ONE_IN) {
            // Longer than a ttl: the hold is renewed meanwhile.
            0 => self.ttl.mul_f32(1.3),
            _ => Duration::from_millis(self.random.u64(2..40)),
        };
        let start = now();
        while let Some(left) = work.checked_sub(now().saturating_sub(start)).filter(|left| !left.is_zero()) {
            sleep(left.min(CHECK_PAUSE)).await;
            self.check_guard(name, &guard, &mut belief);
        }
        self.connection.use_registers(name, token, RegisterRequest::Write { read }).await?;
        let lost = !self.check_guard(name, &guard, &mut belief);
        let released = guard.release().await;
        self.has_left = released.is_ok();
        self.connection.send(ClientMessage::Ended {
            lock: name.to_owned(),
            token,
            believed: belief.last,
            lost,
            released: released.err().map(|error| format!("{error:#}")),
        });
        Ok(())
    }

    /// Records whether the guard reports that it is held.
    fn check_guard(&self, name: &str, guard: &LockGuard, belief: &mut Belief) -> bool {
        // Read before the check: a loss is final, so the guard was held at this time too.
        let at = now();
        let is_held = guard.is_held();
        if is_held {
            belief.last = at;
            if at.saturating_sub(belief.reported) > REPORT_PAUSE {
                belief.reported = at;
                let (lock, token) = (name.to_owned(), guard.token().get());
                self.connection.send(ClientMessage::Believed { lock, token, at });
            }
        }
        is_held
    }
}

/// When a guard last reported that it is held, and when the coordinator was last notified of that.
#[derive(Debug)]
struct Belief {
    last: Duration,
    reported: Duration,
}
