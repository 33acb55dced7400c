//! Measures lockkit in comparison with bare requests and other locks on the same stores.
//!
//! Machines are shared and noisy, so only runs of the same round are compared: rows take turns for several rounds, and a
//! ratio is the median of the ratios of all rounds. Every row is a process of its own (see the module `job`), so that its
//! CPU time is what the kernel counted. The servers report their own requests and bytes.

mod backend;
mod child;
mod job;
mod measure;
mod peers;
mod probe;
mod report;
mod results;
mod row;
mod steps;
mod usage;
mod workload;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, bail};
use serde::de::DeserializeOwned;

use self::measure::{BackendRun, Progress};
pub use self::{
    backend::Backend,
    child::Problem,
    peers::install as install_peers,
    probe::{holds::Holds, loss::Loss, reentry::Reentry, sale::Sale, takeover::Takeover},
    report::{BackendReport, Kind, PromiseTexts, Report, Row, Spread},
    results::{Measured, PerPair, Percentiles},
    steps::Plan,
    usage::Usage,
    workload::Workload,
};

/// Where things are.
#[derive(Clone, Debug)]
pub struct Folders {
    /// For `report.md`, `report.json` and the plots.
    pub report: PathBuf,
    /// With the programs of the peers.
    pub peers: PathBuf,
}

/// Starts servers, measures all rows on them, and writes the report.
///
/// # Errors
///
/// When the report cannot be written, or the list of the peers is wrong. Stores that do not start, and rows that failed,
/// are in the report's [`errors`](Report::errors).
pub async fn run(backends: &[Backend], plan: &Plan, folders: &Folders) -> Result<Report> {
    let peers = peers::load(&folders.peers)?;
    let steps: Vec<_> = backends.iter().map(|backend| plan.steps(*backend, &peers)).collect();
    let all: Vec<_> = steps.iter().flatten().cloned().collect();
    let millis = plan.millis(backends.len(), &all);
    let progress = Progress::new(all.iter().map(|step| plan.cost(step, millis)).sum())?;
    let conditions = conditions(plan, millis);
    let mut report = Report { conditions, backends: Vec::new(), failed: Vec::new() };
    for (&backend, steps) in backends.iter().zip(steps) {
        let run = BackendRun { backend, plan, steps, millis };
        match run.run(&progress).await {
            Ok(measured) => report.backends.push(measured),
            Err(error) => report.failed.push(format!("{}: {error:#}", backend.name())),
        }
        // After each backend: a long run that is interrupted leaves what it has.
        report.write(&folders.report)?;
    }
    progress.close();
    Ok(report)
}

/// Does what a process of a row does, see the module `job`.
///
/// # Errors
///
/// When the store fails, or the command is unknown.
pub async fn run_child(command: &str, job: &str) -> Result<()> {
    match command {
        "row" => row::run(parsed(job)?).await,
        "reentry" => probe::reentry::child(parsed(job)?).await,
        "holds" => probe::holds::child(parsed(job)?).await,
        "loss" => probe::loss::child(parsed(job)?).await,
        "takeover" => probe::takeover::child(parsed(job)?).await,
        "buyers" => probe::sale::child(parsed(job)?).await,
        _ => bail!("no command {command:?}"),
    }
}

fn parsed<T: DeserializeOwned>(job: &str) -> Result<T> {
    Ok(serde_json::from_str(job)?)
}

fn conditions(plan: &Plan, millis: u64) -> BTreeMap<&'static str, String> {
    let each = Duration::from_millis(millis);
    let quick = if plan.quick { ", quick: a look, no measurement" } else { "" };
    let profile = if cfg!(debug_assertions) { "debug: the figures mean nothing" } else { "release" };
    BTreeMap::from([
        ("lockkit", format!("{}, {profile}", env!("CARGO_PKG_VERSION"))),
        ("machine", machine()),
        ("rounds", format!("{} of {each:?} each, rows in turns{quick}", plan.rounds)),
    ])
}

/// Returns processor and system, as far as Linux reports them.
fn machine() -> String {
    let read = |path: &str| fs::read_to_string(Path::new(path)).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let models = || cpus.lines().filter_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{} x {}, Linux {}", models().count(), models().next().unwrap_or("?"), kernel.trim())
}
