//! One run of one row.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::{task::JoinSet, time::sleep};

use crate::{
    store::{Contender, Row, Store},
    usage::own_cpu,
    workload::Workload,
};

/// Significant digits of the histograms.
const DIGITS: u8 = 3;

/// The result of one run of one row; times in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// How often the lock was granted.
    pub grants: u64,
    /// Grants per second.
    pub per_second: f64,
    /// From the call of a release to the next grant, if that is another client's.
    pub handoff: Percentiles,
    /// From the call of an acquire to its grant.
    pub acquire: Percentiles,
    /// Share of grants to the client that has just released.
    pub to_self: f64,
    /// The smallest and the largest share of a client; 1 is fair.
    pub shares: (f64, f64),
    /// Requests (or what the server counts) that the server received, per grant.
    pub received: f64,
    /// What the server sent, per grant.
    pub sent: f64,
    /// CPU time of all clients, per grant.
    pub client_cpu: f64,
    /// CPU time of the server, per grant.
    pub server_cpu: f64,
}

/// Percentiles of times, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Percentiles {
    /// Half are shorter.
    pub p50: u64,
    /// One of a hundred is longer.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

/// What the contenders of one run share.
struct SharedRun {
    workload: Workload,
    is_over: AtomicBool,
    is_held: AtomicBool,
    /// The last contender that released, and when it called the release.
    released: Mutex<Option<(usize, Instant)>>,
    to_self: AtomicU64,
}

/// The times that one contender measured.
struct Times {
    handoff: Histogram<u64>,
    acquire: Histogram<u64>,
}

/// Runs all contenders of a row for some time.
pub(crate) async fn measure(
    store: &dyn Store,
    row: &dyn Row,
    workload: Workload,
    for_time: Duration,
) -> Result<Measured> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let lock = format!("bench-{}", NEXT.fetch_add(1, SeqCst));
    let mut contenders = Vec::new();
    for _ in 0..Workload::CONTENDERS {
        contenders.push(row.contender(&lock).await.with_context(|| row.name())?);
    }
    let shared = Arc::new(SharedRun {
        workload,
        is_over: AtomicBool::new(false),
        is_held: AtomicBool::new(false),
        released: Mutex::default(),
        to_self: AtomicU64::new(0),
    });
    let (used, cpu, start) = (store.usage()?, own_cpu(), Instant::now());
    let mut running = JoinSet::new();
    for (number, contender) in contenders.into_iter().enumerate() {
        running.spawn(run(Arc::clone(&shared), number, contender));
    }
    sleep(for_time).await;
    shared.is_over.store(true, SeqCst);
    let (mut times, mut contenders) = (Vec::new(), Vec::new());
    while let Some(ended) = running.join_next().await {
        let (contender, measured) = ended?.with_context(|| row.name())?;
        contenders.push(contender);
        times.push(measured);
    }
    let (took, cpu, now) = (start.elapsed(), own_cpu().saturating_sub(cpu), store.usage()?);
    for contender in contenders {
        contender.close().await?;
    }
    let grants: u64 = times.iter().map(|times| times.acquire.len()).sum();
    ensure!(grants > 0, "{} has granted nothing", row.name());
    let each = |total: f64| total / grants as f64;
    let share = |times: &Times| each(times.acquire.len() as f64) * Workload::CONTENDERS as f64;
    let shares = times.iter().map(share);
    Ok(Measured {
        grants,
        per_second: grants as f64 / took.as_secs_f64(),
        handoff: percentiles(times.iter().map(|times| &times.handoff))?,
        acquire: percentiles(times.iter().map(|times| &times.acquire))?,
        to_self: each(shared.to_self.load(SeqCst) as f64),
        shares: (shares.clone().fold(f64::MAX, f64::min), shares.fold(0.0, f64::max)),
        received: each((now.received - used.received) as f64),
        sent: each((now.sent - used.sent) as f64),
        client_cpu: each(cpu.as_secs_f64() * 1e6),
        server_cpu: each(now.cpu.saturating_sub(used.cpu).as_secs_f64() * 1e6),
    })
}

async fn run(
    shared: Arc<SharedRun>,
    number: usize,
    mut contender: Box<dyn Contender>,
) -> Result<(Box<dyn Contender>, Times)> {
    let mut times = Times { handoff: Histogram::new(DIGITS)?, acquire: Histogram::new(DIGITS)? };
    while !shared.is_over.load(SeqCst) {
        let called = Instant::now();
        contender.acquire().await?;
        let granted = Instant::now();
        ensure!(!shared.is_held.swap(true, SeqCst), "two hold the lock");
        times.acquire.record(micros(granted - called))?;
        match shared.released().take() {
            Some((other, at)) if other != number => times.handoff.record(micros(granted - at))?,
            Some(_) => drop(shared.to_self.fetch_add(1, SeqCst)),
            None => {}
        }
        if !shared.workload.holds().is_zero() {
            sleep(shared.workload.holds()).await;
        }
        *shared.released() = Some((number, Instant::now()));
        shared.is_held.store(false, SeqCst);
        contender.release().await?;
        let pause = fastrand::u64(shared.workload.pauses());
        if pause > 0 {
            sleep(Duration::from_millis(pause)).await;
        }
    }
    Ok((contender, times))
}

impl SharedRun {
    fn released(&self) -> std::sync::MutexGuard<'_, Option<(usize, Instant)>> {
        self.released.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn percentiles<'a>(parts: impl Iterator<Item = &'a Histogram<u64>>) -> Result<Percentiles> {
    let mut all = Histogram::<u64>::new(DIGITS)?;
    for part in parts {
        all.add(part)?;
    }
    Ok(Percentiles { p50: all.value_at_quantile(0.5), p99: all.value_at_quantile(0.99), max: all.max() })
}
