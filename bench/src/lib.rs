//! Measures lockkit in comparison with bare requests and other locks on the same stores.
//!
//! Machines are shared and noisy, so only measurements of the same round are compared: rows take turns for several
//! rounds, and a ratio is the median of the ratios of all rounds. A store is one file: a [`Store`] and its [`Row`]s.

mod measure;
mod ours;
mod redis;
mod report;
mod store;
mod usage;
mod workload;
mod zookeeper;

use std::{path::Path, time::Duration};

use anyhow::{Result, bail};
use indicatif::ProgressBar;

pub use self::{
    measure::{Measured, Percentiles},
    report::{Comparison, Report, Spread},
    store::{Contender, Row, Store},
    usage::Usage,
    workload::Workload,
};

/// How often and how long rows are measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How often each row runs, for each workload.
    pub rounds: usize,
    /// How long a row runs in one round.
    pub each: Duration,
}

/// Starts a server, measures all rows on it, and writes `report.md` and `report.json` into `folder`.
///
/// # Errors
///
/// For an unknown store, and when a server or a row fails. A row that grants the lock to two clients at a time fails.
pub async fn run(store: &str, plan: Plan, folder: &Path) -> Result<Report> {
    let store: Box<dyn Store> = match store {
        "redis" => Box::new(redis::RedisStore::start()?),
        "zk" => Box::new(zookeeper::ZooKeeperStore::start()?),
        other => bail!("no store {other:?}; there are redis and zk"),
    };
    let rows = store.rows();
    let bar = ProgressBar::new((Workload::ALL.len() * plan.rounds * rows.len()) as u64);
    let mut report = Report::new(&*store, plan);
    for workload in Workload::ALL {
        for round in 0..plan.rounds {
            // A different row is first in each round.
            for turn in 0..rows.len() {
                let row = (round + turn) % rows.len();
                let measured = measure::measure(&*store, &*rows[row], workload, plan.each).await?;
                report.add(workload, rows[row].name(), measured);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    report.write(folder)?;
    Ok(report)
}
