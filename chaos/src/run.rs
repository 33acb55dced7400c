//! One run on one backend: start, disturb, heal, judge.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    clients::Clients,
    clock::now,
    hub::Hub,
    nemesis::Nemesis,
    report::Outcome,
    schedule::{Cast, Schedule},
    store::{self, Store},
    verdict::{Demand, History},
    watchdog,
    wire::{ClientId, Orders},
};

/// Longest time from the order to finish until every client has taken every lock once more, and closed.
const FINISH_MAX: Duration = Duration::from_secs(120);

/// Longest time until nothing is left in the store.
const RESIDUE_MAX: Duration = Duration::from_secs(90);
const RESIDUE_POLL: Duration = Duration::from_millis(250);

/// What a run may take beside its schedule: servers that get well, the last phase, a machine that is busy.
const ALLOWANCE: Duration = Duration::from_secs(420);

/// How long each fault may take to be made good.
const HEAL_MAX: Duration = Duration::from_secs(20);

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) backend: String,
    pub(crate) seed: u64,
    pub(crate) length: Duration,
    pub(crate) cast: Cast,
    /// Where reports go.
    pub(crate) folder: PathBuf,
}

/// Runs it. An error: the run could not be made; what it has shown is in the outcome.
pub(crate) fn run(plan: &Plan) -> Result<Outcome> {
    let Plan { backend, seed, cast, .. } = plan;
    println!("{backend}: seed {seed}, {} clients, {} locks, ttl {:?}", cast.clients, cast.locks, cast.ttl);
    let store = store::start(backend).with_context(|| format!("cannot start {backend}"))?;
    let menu = store.menu();
    let schedule = Schedule::new(*seed, *cast, &menu, plan.length);
    println!("{schedule}");
    let logs = plan.folder.join(format!("{backend}-{seed}-logs"));
    clear(&logs)?;
    let locks: Vec<String> = (0..cast.locks).map(|number| format!("lock-{number}")).collect();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let orders = Orders {
        client: ClientId { slot: 0, generation: 0 },
        coordinator: listener.local_addr()?.to_string(),
        url: store.url(),
        ttl: cast.ttl,
        locks: locks.clone(),
        seed: *seed,
    };
    let hub = Hub::start(listener, Clients::new(orders, cast.clients, &logs)?)?;
    let steps = u32::try_from(schedule.0.len())?;
    watchdog::watch(&hub, schedule.length() + HEAL_MAX * steps + ALLOWANCE)?;
    let start = now();
    hub.clients().start_all()?;
    let store = Mutex::new(store);
    let nemesis = Nemesis { hub: &hub, store: &store, menu: &menu, locks: &locks, ttl: cast.ttl };
    let bar = progress(backend, schedule.0.len());
    let faults = nemesis.run(&schedule, &bar)?;
    bar.set_message("everybody finishes");
    let mut violations = finish(&hub)?;
    bar.set_message("what is left");
    let store = store.into_inner().unwrap_or_else(PoisonError::into_inner);
    violations.extend(residue(&*store, RESIDUE_MAX)?);
    bar.finish_and_clear();
    let demand = Demand { steps: schedule.0.len(), has_queue: menu.has_queue };
    let history = hub.look(|registers, reports| History::new(registers, reports, faults, cast.ttl));
    let verdict = history.judge(demand, violations);
    let took = now().saturating_sub(start);
    Ok(Outcome {
        backend: backend.clone(),
        seed: *seed,
        cast: *cast,
        start,
        took,
        schedule,
        verdict,
        history,
    })
}

/// Lets every client take every lock once more, and close; what did not go well.
fn finish(hub: &Hub) -> Result<Vec<String>> {
    let mut violations = hub.clients().deserted();
    let late = hub.finish(FINISH_MAX);
    violations.extend(late.iter().map(|client| {
        format!("the last phase: {client} has not taken every lock and closed within {FINISH_MAX:?}")
    }));
    if late.is_empty() {
        violations.extend(hub.clients().wait_for_all(FINISH_MAX)?);
    }
    // A close that was not confirmed in time is none: what it leaves must go by itself, and is looked for.
    violations.extend(hub.errors());
    Ok(violations)
}

/// What is left in the store for too long.
fn residue(store: &dyn Store, longest: Duration) -> Result<Vec<String>> {
    let start = Instant::now();
    loop {
        let left = store.residue();
        match left {
            Ok(left) if left.is_empty() => return Ok(left),
            // A store that has no leader at the moment.
            Err(_) | Ok(_) if start.elapsed() < longest => thread::sleep(RESIDUE_POLL),
            left => return Ok(left?.iter().map(|left| format!("left in the store: {left}")).collect()),
        }
    }
}

fn progress(backend: &str, steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    // The default stands where this template is not understood.
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
    fn what_is_left_in_the_store_is_a_violation() {
        let store = store::start("file").unwrap();
        let url = store.url();
        let folder = Path::new(url.strip_prefix("file://").unwrap());
        fs::write(folder.join("lock-0.lock"), "").unwrap();
        assert_eq!(residue(&*store, Duration::ZERO).unwrap(), [""; 0]);
        fs::write(folder.join("stray"), "").unwrap();
        assert_eq!(residue(&*store, Duration::ZERO).unwrap(), ["left in the store: stray"]);
    }
}
