//! One run on one backend: start, disturb, heal, judge.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use lockkit_core::support::unpoisoned;

use crate::{
    clients::Clients,
    clock::now,
    coordinator::Coordinator,
    nemesis::Nemesis,
    report::RunResult,
    schedule::{Scale, Schedule},
    store::{self, Store},
    verdict::{History, Requirements},
    watchdog,
    wire::{ClientId, ClientSetup},
};

/// Longest time from the request to finish until every client has taken every lock once more, and closed.
const FINISH_MAX: Duration = Duration::from_secs(120);

/// Longest time until nothing is left in the store.
const RESIDUE_MAX: Duration = Duration::from_secs(90);
const RESIDUE_POLL: Duration = Duration::from_millis(250);

/// How long a run may take in addition to its schedule: recovery of servers, the last phase, a busy machine.
const ALLOWANCE: Duration = Duration::from_secs(420);

/// How long the recovery from each fault may take.
const HEAL_MAX: Duration = Duration::from_secs(20);

/// The options of one run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) backend: String,
    pub(crate) seed: u64,
    pub(crate) length: Duration,
    pub(crate) scale: Scale,
    /// The folder for reports.
    pub(crate) folder: PathBuf,
}

/// Makes a run. Violations are part of the result; an error means that the run could not be made.
pub(crate) fn run(plan: &Plan) -> Result<RunResult> {
    let Plan { backend, seed, scale, .. } = plan;
    println!("{backend}: seed {seed}, {} clients, {} locks, ttl {:?}", scale.clients, scale.locks, scale.ttl);
    let store = store::start(backend).with_context(|| format!("cannot start {backend}"))?;
    let info = store.info();
    let schedule = Schedule::new(*seed, *scale, &info, plan.length);
    println!("{schedule}");
    let logs = plan.folder.join(format!("{backend}-{seed}-logs"));
    clear(&logs)?;
    let locks: Vec<String> = (0..scale.locks).map(|number| format!("lock-{number}")).collect();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let setup = ClientSetup {
        client: ClientId { slot: 0, generation: 0 },
        coordinator: listener.local_addr()?.to_string(),
        url: store.url(),
        ttl: scale.ttl,
        locks: locks.clone(),
        seed: *seed,
    };
    let coordinator = Coordinator::start(listener, Clients::new(setup, scale.clients, &logs)?)?;
    let steps = u32::try_from(schedule.0.len())?;
    watchdog::watch(&coordinator, schedule.length() + HEAL_MAX * steps + ALLOWANCE)?;
    let start = now();
    coordinator.clients().start_all()?;
    let store = Mutex::new(store);
    let nemesis =
        Nemesis { coordinator: &coordinator, store: &store, info: &info, locks: &locks, ttl: scale.ttl };
    let bar = progress(backend, schedule.0.len());
    let faults = nemesis.run(&schedule, &bar)?;
    bar.set_message("clients finish");
    let mut violations = finish(&coordinator)?;
    bar.set_message("checking for residue");
    let store = unpoisoned(store.into_inner());
    violations.extend(residue(&*store, &locks, RESIDUE_MAX)?);
    bar.finish_and_clear();
    let required = Requirements { steps: schedule.0.len(), has_queue: info.has_queue };
    let history =
        coordinator.inspect(|registers, reports| History::new(registers, reports, faults, scale.ttl));
    let verdict = history.judge(required, violations);
    let took = now().saturating_sub(start);
    Ok(RunResult {
        backend: backend.clone(),
        seed: *seed,
        scale: *scale,
        start,
        took,
        schedule,
        verdict,
        history,
    })
}

/// Lets every client take every lock once more, and close. Returns what failed.
fn finish(coordinator: &Coordinator) -> Result<Vec<String>> {
    let mut violations = coordinator.clients().ended_early();
    let late = coordinator.finish(FINISH_MAX);
    violations.extend(late.iter().map(|client| {
        format!("the last phase: {client} has not taken every lock and closed within {FINISH_MAX:?}")
    }));
    if late.is_empty() {
        violations.extend(coordinator.clients().wait_for_all(FINISH_MAX)?);
    }
    // An unconfirmed close is no violation: what it leaves must expire, and `residue` checks that.
    violations.extend(coordinator.errors());
    Ok(violations)
}

/// Returns what is left in the store after `longest`.
fn residue(store: &dyn Store, locks: &[String], longest: Duration) -> Result<Vec<String>> {
    let start = Instant::now();
    loop {
        let left = store.residue(locks);
        match left {
            Ok(left) if left.is_empty() => return Ok(left),
            // An error: the store has no leader at the moment.
            Err(_) | Ok(_) if start.elapsed() < longest => thread::sleep(RESIDUE_POLL),
            left => return Ok(left?.iter().map(|left| format!("left in the store: {left}")).collect()),
        }
    }
}

fn progress(backend: &str, steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    // If the template is invalid, the default style remains.
    if let Ok(style) = ProgressStyle::with_template("{prefix} {elapsed} {bar:30} {pos}/{len} {wide_msg}") {
        bar.set_style(style);
    }
    bar.set_prefix(backend.to_owned());
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

fn clear(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    Ok(fs::create_dir_all(folder)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residue_in_the_store_is_a_violation() {
        let store = store::start("file").unwrap();
        let url = store.url();
        let folder = Path::new(url.strip_prefix("file://").unwrap());
        let left = || residue(&*store, &["lock-0".to_owned()], Duration::ZERO).unwrap();
        fs::write(folder.join("lock-0.lock"), "").unwrap();
        assert_eq!(left(), [""; 0]);
        fs::write(folder.join("lock-1.lock"), "").unwrap();
        assert_eq!(left(), ["left in the store: lock-1.lock"]);
    }
}
