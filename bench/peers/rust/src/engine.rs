//! Runs a job with any lock.

use std::{
    future::Future,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use futures_util::future::try_join_all;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader, stdin},
    runtime::Handle,
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    Job, Names,
    record::{Report, Shared, Tally, own_cpu},
};

/// How long the tasks may take to end: after the time of the run, or in all if each acquires once.
const END: Duration = Duration::from_secs(15);
const ONCE_END: Duration = Duration::from_secs(60);

/// Until this, all tasks must have been seen in the queue.
const QUEUED: Duration = Duration::from_secs(30);

/// How long a client may take to close.
const CLOSE: Duration = Duration::from_secs(10);

/// A client of a peer, with a connection of its own.
pub(crate) trait Client: Sized + Send + Sync + 'static {
    /// A lock, as one task uses it.
    type Contender: Contender;

    /// The peer, and its client library.
    const VERSION: &str;

    /// Whether its calls block the thread.
    const BLOCKS: bool = false;

    fn connect(job: &Job) -> impl Future<Output = Result<Self>> + Send;

    fn contender(&self, name: &str) -> impl Future<Output = Result<Self::Contender>> + Send;

    /// Returns the number of tasks that hold the lock or wait for it, if the store knows.
    fn queued(&self, _name: &str) -> impl Future<Output = Result<Option<usize>>> + Send {
        async { Ok(None) }
    }

    fn close(self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Acquires and releases one lock.
pub(crate) trait Contender: Send + 'static {
    fn acquire(&mut self) -> impl Future<Output = Result<()>> + Send;

    fn release(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// What the tasks share.
#[derive(Debug)]
struct Run {
    job: Job,
    shared: Shared,
    started: OnceLock<Instant>,
    /// Tasks that have called acquire.
    called: AtomicUsize,
}

/// Runs the job, and prints its result.
pub(crate) async fn run<C: Client>(job: Job) -> Result<()> {
    let clients = connect::<C>(&job, job.clients + usize::from(job.once)).await?;
    let run = Arc::new(Run {
        job,
        shared: Shared::default(),
        started: OnceLock::new(),
        called: AtomicUsize::new(0),
    });
    let job = &run.job;
    let mut holder = None;
    if job.once {
        let first = clients.last().context("no client")?.contender(&job.name).await?;
        holder.insert(first).acquire().await?;
        run.shared.entered(usize::MAX, Instant::now(), &mut Tally::default());
    }
    let (go, gone) = watch::channel(());
    let mut tasks = Vec::new();
    for (number, client) in (0..job.clients * job.tasks).zip(clients.iter().cycle()) {
        let name = match job.names {
            Names::Shared => job.name.clone(),
            Names::Own => format!("{}-{number}", job.name),
        };
        let contender = client.contender(&name).await?;
        tasks.push(spawn::<C>(task(number, contender, Arc::clone(&run), gone.clone())));
    }
    if job.once {
        all_wait(&clients[0], &run, tasks.len()).await?;
    }
    println!("ready");
    wait_for_go().await?;
    let (cpu, started) = (own_cpu(), Instant::now());
    run.started.get_or_init(|| started);
    go.send_replace(());
    if let Some(holder) = &mut holder {
        run.shared.leaves(usize::MAX, Instant::now());
        holder.release().await?;
    }
    let tallies = join(tasks, job).await?;
    let (elapsed, cpu) = (started.elapsed(), own_cpu() - cpu);
    drop(holder);
    println!("{}", serde_json::to_string(&Report::new(&tallies, &run.shared, elapsed, cpu, C::VERSION))?);
    // The benchmark reads the servers' counters before it ends the input.
    stdin().read_to_end(&mut Vec::new()).await?;
    for client in clients {
        timeout(CLOSE, client.close()).await.context("a client does not close")?;
    }
    Ok(())
}

/// Connects clients, and makes each acquire and release a lock, so that connections and scripts are there.
async fn connect<C: Client>(job: &Job, count: usize) -> Result<Vec<C>> {
    try_join_all((0..count).map(async |number| {
        let client = C::connect(job).await?;
        let mut contender = client.contender(&format!("{}-warm-{number}", job.name)).await?;
        contender.acquire().await?;
        contender.release().await?;
        Ok(client)
    }))
    .await
}

fn spawn<C: Client>(task: impl Future<Output = Result<Tally>> + Send + 'static) -> JoinHandle<Result<Tally>> {
    if C::BLOCKS {
        let handle = Handle::current();
        tokio::task::spawn_blocking(move || handle.block_on(task))
    } else {
        tokio::spawn(task)
    }
}

async fn task(
    number: usize,
    mut contender: impl Contender,
    run: Arc<Run>,
    mut gone: watch::Receiver<()>,
) -> Result<Tally> {
    let (job, mut tally) = (&run.job, Tally::default());
    if !job.once {
        gone.changed().await?;
    }
    let end = run.started.get().map(|started| *started + Duration::from_millis(job.millis.unwrap_or(0)));
    while job.once || end.is_some_and(|end| Instant::now() < end) {
        pair(number, &mut contender, &run, &mut tally).await?;
        if job.once {
            break;
        }
        let [from, to] = job.pause_us;
        pause(fastrand::u64(from..=to)).await;
    }
    Ok(tally)
}

/// Acquires the lock, holds it and releases it.
async fn pair(number: usize, contender: &mut impl Contender, run: &Run, tally: &mut Tally) -> Result<()> {
    let is_shared = run.job.names == Names::Shared;
    let called = Instant::now();
    run.called.fetch_add(1, Ordering::Relaxed);
    contender.acquire().await?;
    let granted = Instant::now();
    // With `once`, the time before the start is not the peer's.
    let called = run.started.get().map_or(called, |started| called.max(*started));
    let acquire = granted.saturating_duration_since(called);
    if is_shared {
        run.shared.entered(number, granted, tally);
    }
    pause(run.job.hold_us).await;
    let releases = Instant::now();
    if is_shared {
        run.shared.leaves(number, releases);
    }
    contender.release().await?;
    tally.acquire.add(acquire);
    tally.pair.add(acquire + releases.elapsed());
    tally.grants += 1;
    Ok(())
}

async fn pause(micros: u64) {
    if micros > 0 {
        sleep(Duration::from_micros(micros)).await;
    }
}

/// Waits until all tasks wait for the lock: until the store knows it, or some time after their calls.
async fn all_wait<C: Client>(client: &C, run: &Run, tasks: usize) -> Result<()> {
    let begin = Instant::now();
    while run.called.load(Ordering::Relaxed) < tasks {
        sleep(Duration::from_millis(10)).await;
    }
    loop {
        match client.queued(&run.job.name).await? {
            None => break sleep(Duration::from_millis(run.job.settle_ms)).await,
            Some(queued) if queued == tasks + 1 => break,
            Some(queued) if begin.elapsed() > QUEUED => bail!("{queued} of {} are in the queue", tasks + 1),
            Some(_) => sleep(Duration::from_millis(20)).await,
        }
    }
    Ok(())
}

async fn wait_for_go() -> Result<()> {
    let mut line = String::new();
    BufReader::new(stdin()).read_line(&mut line).await?;
    if line.trim() != "go" {
        bail!("expected `go`");
    }
    Ok(())
}

async fn join(tasks: Vec<JoinHandle<Result<Tally>>>, job: &Job) -> Result<Vec<Tally>> {
    let bound = job.millis.map_or(ONCE_END, |millis| Duration::from_millis(millis) + END);
    let end = tokio::time::Instant::now() + bound;
    let (mut tallies, mut late) = (Vec::new(), 0);
    for task in tasks {
        match timeout(end.saturating_duration_since(tokio::time::Instant::now()), task).await {
            Ok(tally) => tallies.push(tally??),
            Err(_) => late += 1,
        }
    }
    if late > 0 {
        eprintln!("{late} tasks still wait for the lock {} s after the start", bound.as_secs());
        // Not by return: the tasks may block their threads.
        std::process::exit(1);
    }
    Ok(tallies)
}
