//! Measures lockkit beside bare requests and beside other locks on the same stores.
//!
//! Machines are shared and noisy, so only rows that ran next to each other are compared: rows take turns, several rounds
//! long, and a ratio is the median of the rounds' own ratios. A store joins with one file: a [`Store`] and its [`Row`]s.

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
    measure::Measured,
    report::{Comparison, Report},
    store::{Contender, Row, Store},
    workload::Workload,
};

/// How long everything takes.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How often the rows take turns.
    pub rounds: usize,
    /// How long each of them runs, for each workload.
    pub each: Duration,
}

/// Starts a server, measures all rows on it, and writes `report.md` and `report.json` into `folder`.
///
/// # Errors
///
/// For an unknown store, and when a server or a row fails; so does a row that lets two hold the lock at a time.
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
            // Each is first in its turn.
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
