//! What a row's process gets, and what it prints.
//!
//! Every row (raw, lockkit, a peer in any language) is a process that gets one [`Job`] and prints one [`RowResult`], so that
//! the CPU time of clients is what the kernel counted for that process, and every row is measured in the same way.
//!
//! The job is the process's first argument after its command. The process prints `ready` when all clients are connected
//! (with [`Job::once`]: when all tasks wait), waits for the line `go` on its standard input, runs, and prints its result
//! on one line. It exits with [`MISSING`] if it cannot run at all, such as without a library.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The process is ready to run.
pub(crate) const READY: &str = "ready";

/// The process must run now.
pub(crate) const GO: &str = "go";

/// The exit status of a row that is not installed; the reason is on its standard error.
pub(crate) const MISSING: i32 = 3;

/// Significant digits of the histograms.
pub(crate) const DIGITS: u8 = 3;

/// What to run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Job {
    pub(crate) row: String,
    /// Address and port of each server; a folder for files.
    pub(crate) servers: Vec<String>,
    /// Clients with a connection of their own.
    pub(crate) clients: usize,
    /// Tasks per client that lock at the same time.
    pub(crate) tasks: usize,
    pub(crate) names: Names,
    /// Unique per run.
    pub(crate) name: String,
    /// The critical section.
    pub(crate) hold_us: u64,
    /// The pause after a release, uniformly from the first to the second.
    pub(crate) pause_us: [u64; 2],
    pub(crate) ttl_ms: u64,
    /// How long the tasks go on; absent if each acquires once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) millis: Option<u64>,
    /// A client of its own holds the lock until all tasks wait. Then each task acquires and releases once.
    pub(crate) once: bool,
    /// With `once`: when all tasks are taken to wait, after their calls.
    pub(crate) settle_ms: u64,
}

/// Which names the tasks lock.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Names {
    /// All the same.
    Shared,
    /// Each its own.
    Own,
}

/// Values in microseconds, each with how often it was seen.
pub(crate) type Counted = Vec<(u64, u64)>;

/// What a row has measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct RowResult {
    /// Pairs of acquire and release.
    pub(crate) operations: u64,
    pub(crate) elapsed_us: u64,
    /// User and system time of the process between go and the end.
    pub(crate) cpu_us: u64,
    /// From the call of an acquire to its grant.
    pub(crate) acquire_us: Counted,
    /// From the call of an acquire to the end of the release, without hold and pause.
    pub(crate) pair_us: Counted,
    /// From the call of a release to the grant of another task.
    pub(crate) handoff_us: Counted,
    /// Grants of each task.
    pub(crate) shares: Vec<u64>,
    /// Grants to the task that released last.
    pub(crate) to_self: u64,
    /// How often two tasks were inside at the same time.
    pub(crate) violations: u64,
    /// Of the row and its client library.
    pub(crate) version: String,
}

/// Returns an empty histogram of microseconds.
pub(crate) fn histogram() -> anyhow::Result<Histogram<u64>> {
    Ok(Histogram::new(DIGITS)?)
}

/// Returns a histogram of these values.
pub(crate) fn histogram_of(values: &Counted) -> anyhow::Result<Histogram<u64>> {
    let mut histogram = histogram()?;
    for (value, count) in values {
        histogram.record_n(*value, *count)?;
    }
    Ok(histogram)
}

/// Returns the values of a histogram.
pub(crate) fn counted(histogram: &Histogram<u64>) -> Counted {
    histogram.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
}
