//! Runs a job with any row of this crate.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use lockkit_core::support::lock;
use tokio::{sync::watch, task::JoinSet, time::sleep};

use super::{Client, Contender, connect, version};
use crate::{
    child,
    job::{Job, Names, RowResult, counted, histogram},
    usage::own_cpu,
};

/// What the tasks of one run share.
struct Shared {
    job: Job,
    started: std::sync::OnceLock<Instant>,
    /// Tasks that have called acquire.
    called: AtomicU64,
    is_held: AtomicBool,
    /// The last task that released, and when it called the release.
    released: Mutex<Option<(usize, Instant)>>,
    to_self: AtomicU64,
    violations: AtomicU64,
}

/// The times that one task measured.
struct Tally {
    acquire: Histogram<u64>,
    pair: Histogram<u64>,
    handoff: Histogram<u64>,
}

impl Tally {
    fn new() -> Result<Self> {
        Ok(Self { acquire: histogram()?, pair: histogram()?, handoff: histogram()? })
    }
}

/// Does what [`crate::job`] describes.
pub(crate) async fn run(job: Job) -> Result<()> {
    let mut clients = try_join_all((0..job.clients).map(|number| warm_client(&job, number))).await?;
    let shared = Arc::new(Shared {
        job,
        started: std::sync::OnceLock::new(),
        called: AtomicU64::new(0),
        is_held: AtomicBool::new(false),
        released: Mutex::default(),
        to_self: AtomicU64::new(0),
        violations: AtomicU64::new(0),
    });
    let job = &shared.job;
    let mut holder = None;
    if job.once {
        clients.push(warm_client(job, job.clients).await?);
        let mut first = clients[job.clients].contender(&job.name).await?;
        first.acquire().await?;
        shared.is_held.store(true, SeqCst);
        holder = Some(first);
    }
    let go = watch::Sender::new(());
    let mut tasks = JoinSet::new();
    for number in 0..job.clients * job.tasks {
        let name = match job.names {
            Names::Shared => job.name.clone(),
            Names::Own => format!("{}-{number}", job.name),
        };
        let contender = clients[number % job.clients].contender(&name).await?;
        tasks.spawn(task(Arc::clone(&shared), number, contender, go.subscribe()));
    }
    if job.once {
        while (shared.called.load(Relaxed) as usize) < tasks.len() {
            if let Some(ended) = tasks.try_join_next() {
                ended??;
                bail!("granted to a second task while the first one held the lock");
            }
            sleep(Duration::from_millis(1)).await;
        }
        sleep(Duration::from_millis(job.settle_ms)).await;
    }
    child::ready().await?;
    let (cpu, started) = (own_cpu(), Instant::now());
    shared.started.get_or_init(|| started);
    go.send_replace(());
    if let Some(mut holder) = holder {
        shared.leaves(usize::MAX, Instant::now());
        holder.release().await?;
    }
    let mut tallies = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        tallies.push(ended??);
    }
    let (elapsed, cpu) = (started.elapsed(), own_cpu().saturating_sub(cpu));
    child::report(&result(&shared, &tallies, elapsed, cpu)?).await?;
    for client in clients {
        client.close().await?;
    }
    Ok(())
}

/// Connects a client, and makes it acquire and release a lock, so that connections and scripts are there.
async fn warm_client(job: &Job, number: usize) -> Result<Box<dyn Client>> {
    let client = connect(job).await?;
    let mut contender = client.contender(&format!("{}-warm-{number}", job.name)).await?;
    contender.acquire().await?;
    contender.release().await?;
    Ok(client)
}

async fn task(
    shared: Arc<Shared>,
    number: usize,
    mut contender: Box<dyn Contender>,
    mut go: watch::Receiver<()>,
) -> Result<(usize, Tally)> {
    let (job, mut tally) = (&shared.job, Tally::new()?);
    if job.once {
        pair(&shared, number, &mut *contender, &mut tally).await?;
        return Ok((number, tally));
    }
    go.changed().await?;
    let length = Duration::from_millis(job.millis.context("a job has `millis` or `once`")?);
    let end = *shared.started.get().context("not started")? + length;
    // At least once: a busy machine may start a task after the end of a short run.
    loop {
        pair(&shared, number, &mut *contender, &mut tally).await?;
        pause(fastrand::u64(job.pause_us[0]..=job.pause_us[1])).await;
        if Instant::now() >= end {
            return Ok((number, tally));
        }
    }
}

/// Acquires the lock, holds it and releases it.
async fn pair(
    shared: &Shared,
    number: usize,
    contender: &mut dyn Contender,
    tally: &mut Tally,
) -> Result<()> {
    let is_shared = shared.job.names == Names::Shared;
    let called = Instant::now();
    shared.called.fetch_add(1, Relaxed);
    contender.acquire().await?;
    let granted = Instant::now();
    // With `once`, the time before the start is not the row's.
    let called = shared.started.get().map_or(called, |started| called.max(*started));
    if is_shared {
        shared.entered(number, granted, tally)?;
    }
    pause(shared.job.hold_us).await;
    let releases = Instant::now();
    if is_shared {
        shared.leaves(number, releases);
    }
    contender.release().await?;
    let acquire = granted.saturating_duration_since(called);
    tally.acquire.record(micros(acquire))?;
    Ok(tally.pair.record(micros(acquire + releases.elapsed()))?)
}

async fn pause(micros: u64) {
    if micros > 0 {
        sleep(Duration::from_micros(micros)).await;
    }
}

impl Shared {
    fn entered(&self, number: usize, granted: Instant, tally: &mut Tally) -> Result<()> {
        if self.is_held.swap(true, SeqCst) {
            self.violations.fetch_add(1, Relaxed);
        }
        match self.released().take() {
            Some((other, _)) if other == number => drop(self.to_self.fetch_add(1, Relaxed)),
            Some((_, at)) => tally.handoff.record(micros(granted.saturating_duration_since(at)))?,
            None => {}
        }
        Ok(())
    }

    fn leaves(&self, number: usize, releases: Instant) {
        *self.released() = Some((number, releases));
        self.is_held.store(false, SeqCst);
    }

    fn released(&self) -> std::sync::MutexGuard<'_, Option<(usize, Instant)>> {
        lock(&self.released)
    }
}

fn result(
    shared: &Shared,
    tallies: &[(usize, Tally)],
    elapsed: Duration,
    cpu: Duration,
) -> Result<RowResult> {
    let mut all = Tally::new()?;
    let mut shares = vec![0; tallies.len()];
    for (number, tally) in tallies {
        all.acquire.add(&tally.acquire)?;
        all.pair.add(&tally.pair)?;
        all.handoff.add(&tally.handoff)?;
        shares[*number] = tally.pair.len();
    }
    if all.pair.is_empty() {
        bail!("nothing was granted");
    }
    Ok(RowResult {
        operations: all.pair.len(),
        elapsed_us: micros(elapsed),
        cpu_us: micros(cpu),
        acquire_us: counted(&all.acquire),
        pair_us: counted(&all.pair),
        handoff_us: counted(&all.handoff),
        shares,
        to_self: shared.to_self.load(Relaxed),
        violations: shared.violations.load(Relaxed),
        version: version(&shared.job),
    })
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
