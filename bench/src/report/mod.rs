//! What was measured, as tables, Markdown, JSON and plots.

mod compare;
mod markdown;
mod plots;
mod tables;

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use lockkit::backend::{FailoverLoss, Promises, QueueKind, TokenStrength};
use serde::Serialize;

pub use self::compare::Spread;
use crate::{
    backend::Backend,
    child::Problem,
    probe::{holds::Holds, loss::Loss, reentry::Reentry, sale::Sale, takeover::Takeover},
    results::Measured,
    workload::Workload,
};

/// What kind of row it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Bare requests, or a prototype: what the store can do at best.
    Raw,
    /// lockkit.
    Lockkit,
    /// Somebody else's lock.
    Peer,
}

/// All runs.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Machine, versions and plan.
    pub conditions: BTreeMap<&'static str, String>,
    /// What was measured on each backend.
    pub backends: Vec<BackendReport>,
    /// Backends on which nothing could be measured, and why.
    pub failed: Vec<String>,
}

/// What was measured on one backend.
#[derive(Debug, Serialize)]
pub struct BackendReport {
    /// The backend.
    pub backend: Backend,
    /// Version and durability of the server.
    pub conditions: BTreeMap<&'static str, String>,
    /// What lockkit promises there.
    pub promises: PromiseTexts,
    /// Runs of rows.
    pub rows: Vec<Row>,
    /// W5.
    pub reentry: Vec<Reentry>,
    /// W6.
    pub holds: Vec<Holds>,
    /// W7.
    pub loss: Vec<Loss>,
    /// W8.
    pub takeover: Vec<Takeover>,
    /// W9.
    pub sale: Vec<Sale>,
    /// W5 to W9 that failed.
    pub problems: Vec<(Workload, Problem)>,
}

/// All runs of a row in one workload.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The workload.
    pub workload: Workload,
    /// Clients, or tasks of one client.
    pub size: usize,
    /// Its name.
    pub name: String,
    /// What kind of row it is.
    pub kind: Kind,
    /// One per round; nothing for a round that failed.
    pub runs: Vec<Option<Measured>>,
    /// Why a run has no result.
    pub problem: Option<Problem>,
}

/// What lockkit promises on a backend, in a few words.
#[derive(Debug, Serialize)]
pub struct PromiseTexts {
    /// What the order of fencing tokens survives.
    pub tokens: &'static str,
    /// The order in which waiters are served.
    pub waiters: &'static str,
    /// What the loss of a server costs.
    pub server_loss: &'static str,
}

impl PromiseTexts {
    pub(crate) fn of(promises: &Promises) -> Self {
        let tokens = match promises.token {
            TokenStrength::History => "in one data history",
            TokenStrength::ClockFloor => "also without counters",
            TokenStrength::Process => "in the process",
            _ => "see the guarantees",
        };
        let waiters = match promises.queue {
            QueueKind::Fifo => "in order",
            QueueKind::Unordered => "in no order",
            _ => "see the guarantees",
        };
        let server_loss = match promises.failover {
            FailoverLoss::Nothing => "costs no grant",
            FailoverLoss::Unreplicated => "may cost grants",
            FailoverLoss::NoFailover => "no failover",
            _ => "see the guarantees",
        };
        Self { tokens, waiters, server_loss }
    }
}

impl Row {
    /// Returns the runs that have a result.
    pub fn measured(&self) -> impl Iterator<Item = &Measured> {
        self.runs.iter().flatten()
    }

    /// Returns the median of a value over all rounds, if there is any.
    pub fn median(&self, value: impl Fn(&Measured) -> Option<f64>) -> Option<f64> {
        Spread::of(self.measured().filter_map(value)).map(|spread| spread.median)
    }

    /// Whether it has the size of its workload, and is not one of a plot's other points.
    fn is_main(&self) -> bool {
        self.size == self.workload.size()
    }
}

impl BackendReport {
    pub(crate) fn new(
        backend: Backend,
        conditions: [(&'static str, String); 2],
        promises: PromiseTexts,
    ) -> Self {
        Self {
            backend,
            conditions: conditions.into(),
            promises,
            rows: Vec::new(),
            reentry: Vec::new(),
            holds: Vec::new(),
            loss: Vec::new(),
            takeover: Vec::new(),
            sale: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Returns the rows of a workload in its own size.
    pub fn rows_of(&self, workload: Workload) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.workload == workload && row.is_main())
    }

    fn lockkit(&self, workload: Workload) -> Option<&Row> {
        self.rows_of(workload).find(|row| row.kind == Kind::Lockkit)
    }
}

impl Report {
    /// Writes `report.md`, `report.json` and the plots into a folder.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let plots = plots::draw_all(self, folder)?;
        fs::write(folder.join("report.json"), serde_json::to_string_pretty(self)? + "\n")?;
        Ok(fs::write(folder.join("report.md"), markdown::text(self, &plots))?)
    }

    /// Returns what this machine cannot measure, besides rows that are not installed.
    fn impossible(&self) -> Vec<String> {
        let all =
            self.backends.iter().flat_map(|report| report.problems.iter().map(move |found| (report, found)));
        let missing = all.filter_map(|(report, (workload, problem))| match problem {
            Problem::Missing(reason) => Some(format!("{} {workload}: {reason}", report.backend.name())),
            Problem::Failed(_) => None,
        });
        missing.collect()
    }

    /// Returns what went wrong; a row that is not installed is no error.
    pub fn errors(&self) -> Vec<String> {
        let mut errors = self.failed.clone();
        for report in &self.backends {
            let backend = report.backend.name();
            for row in &report.rows {
                let what = format!("{backend} {} with {}, {}", row.workload, row.size, row.name);
                if let Some(Problem::Failed(reason)) = &row.problem {
                    errors.push(format!("{what}: {reason}"));
                }
                let violations: u64 = row.measured().map(|run| run.violations).sum();
                if violations > 0 {
                    errors.push(format!("{what}: two were inside at the same time, {violations} times"));
                }
            }
            let problems = report.problems.iter().filter_map(|(workload, problem)| match problem {
                Problem::Failed(reason) => Some(format!("{backend} {workload}: {reason}")),
                Problem::Missing(_) => None,
            });
            errors.extend(problems);
        }
        errors
    }
}
