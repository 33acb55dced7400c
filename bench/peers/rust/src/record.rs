//! What is measured.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Counts of microseconds, rounded to three digits.
#[derive(Debug, Default)]
pub(crate) struct Histogram(BTreeMap<u64, u64>);

impl Histogram {
    pub(crate) fn add(&mut self, time: Duration) {
        let value = time.as_micros() as u64;
        let mut unit = 1;
        while value / unit >= 1000 {
            unit *= 10;
        }
        *self.0.entry((value + unit / 2) / unit * unit).or_default() += 1;
    }

    fn merge(&mut self, other: &Self) {
        for (value, count) in &other.0 {
            *self.0.entry(*value).or_default() += count;
        }
    }

    fn pairs(self) -> Vec<(u64, u64)> {
        self.0.into_iter().collect()
    }
}

/// What one task has measured.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) acquire: Histogram,
    pub(crate) pair: Histogram,
    pub(crate) handoff: Histogram,
    pub(crate) grants: u64,
    pub(crate) to_self: u64,
}

/// The lock that all tasks want, as this process sees it.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    inside: AtomicU64,
    violations: AtomicU64,
    /// The task that released last, and when it called.
    released: Mutex<Option<(usize, Instant)>>,
}

impl Shared {
    /// Call it with the lock, as soon as it is granted.
    pub(crate) fn entered(&self, task: usize, now: Instant, tally: &mut Tally) {
        if self.inside.fetch_add(1, Ordering::SeqCst) > 0 {
            self.violations.fetch_add(1, Ordering::SeqCst);
        }
        match *self.released.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((last, _)) if last == task => tally.to_self += 1,
            Some((_, when)) => tally.handoff.add(now.saturating_duration_since(when)),
            None => {}
        }
    }

    /// Call it with the lock, just before it is released.
    pub(crate) fn leaves(&self, task: usize, now: Instant) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
        *self.released.lock().unwrap_or_else(PoisonError::into_inner) = Some((task, now));
    }
}

/// The result.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    operations: u64,
    elapsed_us: u64,
    cpu_us: u64,
    acquire_us: Vec<(u64, u64)>,
    pair_us: Vec<(u64, u64)>,
    handoff_us: Vec<(u64, u64)>,
    shares: Vec<u64>,
    to_self: u64,
    violations: u64,
    version: &'static str,
}

impl Report {
    pub(crate) fn new(
        tallies: &[Tally],
        shared: &Shared,
        elapsed: Duration,
        cpu: Duration,
        version: &'static str,
    ) -> Self {
        let merged = |part: fn(&Tally) -> &Histogram| {
            let mut all = Histogram::default();
            tallies.iter().for_each(|tally| all.merge(part(tally)));
            all.pairs()
        };
        Self {
            operations: tallies.iter().map(|tally| tally.grants).sum(),
            elapsed_us: elapsed.as_micros() as u64,
            cpu_us: cpu.as_micros() as u64,
            acquire_us: merged(|tally| &tally.acquire),
            pair_us: merged(|tally| &tally.pair),
            handoff_us: merged(|tally| &tally.handoff),
            shares: tallies.iter().map(|tally| tally.grants).collect(),
            to_self: tallies.iter().map(|tally| tally.to_self).sum(),
            violations: shared.violations.load(Ordering::SeqCst),
            version,
        }
    }
}

/// Returns the CPU time of this process.
pub(crate) fn own_cpu() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec.unsigned_abs() as u32)
}
