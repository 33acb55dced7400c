//! What one run of one row has measured, per pair of acquire and release.

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::{
    job::{Counted, RowResult, histogram_of},
    usage::Usage,
    workload::ComparedBy,
};

/// One run of one row; times in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Pairs of acquire and release.
    pub pairs: u64,
    /// Pairs per second.
    pub per_second: f64,
    /// From the start of the run to its end.
    pub elapsed_us: u64,
    /// From the call of an acquire to its grant.
    pub acquire: Percentiles,
    /// From the call of an acquire to the end of its release, without hold and pause.
    pub pair: Percentiles,
    /// From the call of a release to the grant of another task.
    pub handoff: Option<Percentiles>,
    /// Part of the grants that went to the task that had just released.
    pub to_self: f64,
    /// The smallest and the largest share of a task; 1 is fair.
    pub shares: (f64, f64),
    /// How often two were inside at the same time.
    pub violations: u64,
    /// CPU time of the clients, per pair.
    pub client_cpu: f64,
    /// What the servers have used, per pair.
    pub server: Option<PerPair>,
    /// The row and its client library.
    pub version: String,
    #[serde(skip)]
    pub(crate) pairs_us: Counted,
    #[serde(skip)]
    pub(crate) handoffs_us: Counted,
}

/// What the servers have used, per pair; see [`Usage`].
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PerPair {
    /// CPU time in microseconds.
    pub cpu: f64,
    /// Requests.
    pub requests: Option<f64>,
    /// What they cause inside.
    pub commands: Option<f64>,
    /// Bytes from clients.
    pub bytes_in: Option<f64>,
    /// Bytes to clients.
    pub bytes_out: Option<f64>,
}

/// Percentiles of times in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Percentiles {
    /// Half are shorter.
    pub p50: u64,
    /// One of a hundred is longer.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

impl Percentiles {
    fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile);
        Self { p50: at(0.5), p99: at(0.99), max: histogram.max() }
    }
}

impl Measured {
    pub(crate) fn new(result: RowResult, server: Option<Usage>) -> Result<Self> {
        let pairs = result.operations.max(1) as f64;
        let fair = pairs / result.shares.len().max(1) as f64;
        let shares = result.shares.iter().map(|share| *share as f64 / fair);
        let handoff = histogram_of(&result.handoff_us)?;
        Ok(Self {
            pairs: result.operations,
            per_second: pairs / (result.elapsed_us.max(1) as f64 / 1e6),
            elapsed_us: result.elapsed_us,
            acquire: Percentiles::of(&histogram_of(&result.acquire_us)?),
            pair: Percentiles::of(&histogram_of(&result.pair_us)?),
            handoff: (!handoff.is_empty()).then(|| Percentiles::of(&handoff)),
            to_self: result.to_self as f64 / pairs,
            shares: (shares.clone().fold(f64::MAX, f64::min), shares.fold(0.0, f64::max)),
            violations: result.violations,
            client_cpu: result.cpu_us as f64 / pairs,
            server: server.map(|used| PerPair::new(used, pairs)),
            version: result.version,
            pairs_us: result.pair_us,
            handoffs_us: result.handoff_us,
        })
    }

    /// Returns the value that rows are compared by.
    pub(crate) fn compared(&self, by: ComparedBy) -> Option<f64> {
        match by {
            ComparedBy::Rate => Some(self.per_second),
            ComparedBy::Handoff => self.handoff.map(|handoff| handoff.p50 as f64),
            ComparedBy::Elapsed => Some(self.elapsed_us as f64 / 1e3),
        }
    }
}

impl PerPair {
    fn new(used: Usage, pairs: f64) -> Self {
        let each = |count: Option<u64>| count.map(|count| count as f64 / pairs);
        Self {
            cpu: used.cpu_us as f64 / pairs,
            requests: each(used.requests),
            commands: each(used.commands),
            bytes_in: each(used.bytes_in),
            bytes_out: each(used.bytes_out),
        }
    }
}
