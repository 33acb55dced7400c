//! What is run, in which order, and how long it takes.

use std::{fmt, time::Duration};

use crate::{
    backend::Backend,
    peers::Peer,
    report::Kind,
    row::{self, LOCKKIT},
    workload::Workload,
};

/// Time for one store in full.
const FULL: Duration = Duration::from_secs(14 * 60);

/// Time for all stores together in a quick run.
const QUICK: Duration = Duration::from_secs(270);

/// The limits of a timed run.
const SECONDS: [f64; 2] = [0.2, 3.0];

/// The numbers of clients that compete for one lock, besides the 8 of W3.
const CLIENTS: [usize; 5] = [1, 2, 4, 16, 32];
const CLIENTS_QUICK: [usize; 2] = [1, 32];

/// The numbers of waiters, besides the 200 of W4.
const WAITERS: [usize; 2] = [50, 1_000];

/// The most waiters on Redlock, whose waiters poll: of more, each hinders all the others for minutes.
const REDLOCK_WAITERS_MAX: usize = 200;

/// The numbers of holds of W6.
const HOLDS: [usize; 4] = [1, 100, 1_000, 10_000];
const HOLDS_QUICK: [usize; 1] = [1_000];

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// How often each row runs, for each workload.
    pub rounds: usize,
    /// How long a timed run lasts; by default as long as the time allows.
    pub seconds: Option<f64>,
    /// Fewer points and shorter times: a look, no measurement.
    pub quick: bool,
}

/// A way to lock, in a process of its own.
#[derive(Clone, Debug)]
pub(crate) struct RowSpec {
    /// In reports.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// In jobs.
    pub(crate) job: String,
    /// The program of a peer.
    pub(crate) peer: Option<Peer>,
}

/// One thing to do.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) workload: Workload,
    pub(crate) round: usize,
    pub(crate) task: Task,
}

#[derive(Clone, Debug)]
pub(crate) enum Task {
    /// A row, for this many clients or tasks.
    Row(RowSpec, usize),
    /// lockkit alone, W5 and W7 to W9.
    Lockkit,
    /// lockkit alone, W6, with this many holds.
    Holds(usize),
}

impl Plan {
    /// Returns how long all tasks of a `once` run are given to queue.
    pub(crate) fn settle(&self, size: usize) -> Duration {
        let base = Duration::from_millis(if self.quick { 700 } else { 1_500 });
        if size > 500 { base * 2 } else { base }
    }

    /// Returns the ttl of the holds of W6, and how long they are watched.
    pub(crate) fn holds_ttl(&self) -> Duration {
        Duration::from_secs(if self.quick { 3 } else { 10 })
    }

    /// Returns the rows of a workload: first the bare requests, if there are any.
    pub(crate) fn rows(&self, backend: Backend, workload: Workload, peers: &[Peer]) -> Vec<RowSpec> {
        let raw = row::raw(backend, workload).map(|job| {
            let name = if job == "raw-push" { "raw push" } else { "raw" };
            RowSpec { name: name.to_owned(), kind: Kind::Raw, job: job.to_owned(), peer: None }
        });
        let ours = RowSpec {
            name: "lockkit".to_owned(),
            kind: Kind::Lockkit,
            job: format!("{LOCKKIT}{}", backend.name()),
            peer: None,
        };
        // A quick run has no time for both forms of W4.
        let has_peers = !(self.quick && workload == Workload::W4L);
        let peers = peers.iter().filter(|peer| has_peers && peer.runs(backend, workload));
        let peers = peers.map(|peer| RowSpec {
            name: peer.row.clone(),
            kind: Kind::Peer,
            job: peer.row.clone(),
            peer: Some(peer.clone()),
        });
        raw.into_iter().chain([ours]).chain(peers).collect()
    }

    /// Returns all steps of a backend, in their order: in each round another row is the first.
    pub(crate) fn steps(&self, backend: Backend, peers: &[Peer]) -> Vec<Step> {
        let mut steps = Vec::new();
        for &workload in &self.workloads {
            if Workload::OF_ROWS.contains(&workload) {
                let rows = self.rows(backend, workload, peers);
                for round in 0..self.rounds {
                    let turns = (0..rows.len()).map(|turn| &rows[(round + turn) % rows.len()]);
                    let task = |row: &RowSpec| Task::Row(row.clone(), workload.size());
                    steps.extend(turns.map(|row| Step { workload, round, task: task(row) }));
                }
                steps.extend(self.other_sizes(backend, workload, &rows));
            } else {
                steps.extend(self.lockkit_alone(backend, workload));
            }
        }
        steps
    }

    /// Returns the steps for plots over the number of clients or waiters.
    fn other_sizes(&self, backend: Backend, workload: Workload, rows: &[RowSpec]) -> Vec<Step> {
        let sizes: &[usize] = match (workload, self.quick) {
            (Workload::W3, false) => &CLIENTS,
            (Workload::W3, true) => &CLIENTS_QUICK,
            (Workload::W4 | Workload::W4L, false) => &WAITERS,
            _ => &[],
        };
        let mut steps = Vec::new();
        let is_possible = |size: &&usize| backend != Backend::Redlock || **size <= REDLOCK_WAITERS_MAX;
        for &size in sizes.iter().filter(is_possible) {
            for row in rows {
                // A thousand clients of a peer are more than some can start.
                let is_wanted = row.kind != Kind::Peer || (workload == Workload::W3 && !self.quick);
                if is_wanted {
                    steps.push(Step { workload, round: 0, task: Task::Row(row.clone(), size) });
                }
            }
        }
        steps
    }

    fn lockkit_alone(&self, backend: Backend, workload: Workload) -> Vec<Step> {
        let step = |round, task| Step { workload, round, task };
        match workload {
            Workload::W6 => {
                let counts: &[usize] = if self.quick { &HOLDS_QUICK } else { &HOLDS };
                counts.iter().map(|count| step(0, Task::Holds(*count))).collect()
            }
            Workload::W7 if !backend.has_servers() => Vec::new(),
            Workload::W8 | Workload::W9 if !backend.is_shared() => Vec::new(),
            _ => (0..self.rounds).map(|round| step(round, Task::Lockkit)).collect(),
        }
    }

    /// Returns how long each timed run may last, so that all of these steps fit into the time for them.
    pub(crate) fn millis(&self, backends: usize, steps: &[Step]) -> u64 {
        let seconds = self.seconds.unwrap_or_else(|| {
            let budget = if self.quick { QUICK } else { FULL * backends as u32 };
            let fixed: Duration = steps.iter().map(|step| self.cost(step, 0)).sum();
            let timed = steps.iter().filter(|step| step.is_timed()).count().max(1);
            let rest = budget.saturating_sub(fixed).as_secs_f64() / timed as f64;
            rest.clamp(SECONDS[0], if self.quick { 0.5 } else { SECONDS[1] })
        });
        (seconds * 1e3) as u64
    }

    /// Returns about how long a step takes, where a timed run lasts `millis`.
    pub(crate) fn cost(&self, step: &Step, millis: u64) -> Duration {
        let seconds = Duration::from_secs_f64;
        match (&step.task, step.workload) {
            (Task::Row(row, size), workload) => {
                let start = if row.kind == Kind::Peer { 1.0 } else { 0.15 };
                let run = if workload.is_once() {
                    self.settle(*size) + seconds(0.3 + *size as f64 * 0.008)
                } else {
                    Duration::from_millis(millis)
                };
                seconds(start) + run
            }
            (Task::Holds(count), _) => self.holds_ttl() + seconds(0.3 + *count as f64 / 2_000.0),
            (Task::Lockkit, Workload::W5) => seconds(0.15) + Duration::from_millis(millis.min(500)),
            (Task::Lockkit, Workload::W9) => seconds(1.0),
            (Task::Lockkit, _) => seconds(5.0),
        }
    }
}

impl Step {
    fn is_timed(&self) -> bool {
        matches!(self.task, Task::Row(..)) && !self.workload.is_once()
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, round, task } = self;
        match task {
            Task::Row(row, size) if *size == workload.size() => {
                write!(f, "{workload} round {}: {}", round + 1, row.name)
            }
            Task::Row(row, size) => write!(f, "{workload} with {size}: {}", row.name),
            Task::Holds(count) => write!(f, "{workload}: {count} holds"),
            Task::Lockkit => write!(f, "{workload} round {}", round + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(rounds: usize, quick: bool) -> Plan {
        Plan { workloads: vec![Workload::W1, Workload::W3], rounds, seconds: None, quick }
    }

    #[test]
    fn another_row_is_the_first_in_each_round() {
        let steps = plan(2, true).steps(Backend::Redis, &[]);
        let of_w1: Vec<String> =
            steps.iter().filter(|step| step.workload == Workload::W1).map(Step::to_string).collect();
        let expected = ["W1 round 1: raw", "W1 round 1: lockkit", "W1 round 2: lockkit", "W1 round 2: raw"];
        assert_eq!(of_w1, expected);
    }

    #[test]
    fn memory_of_one_process_has_no_server_that_fails() {
        let workloads = vec![Workload::W7, Workload::W8, Workload::W9];
        let plan = Plan { workloads, rounds: 1, seconds: None, quick: true };
        assert!(plan.steps(Backend::Memory, &[]).is_empty());
        assert_eq!(plan.steps(Backend::File, &[]).len(), 2, "takeover and sale");
        assert_eq!(plan.steps(Backend::Etcd, &[]).len(), 3);
    }

    #[test]
    fn redlock_has_no_crowd_of_waiters() {
        let plan = Plan { workloads: vec![Workload::W4], rounds: 1, seconds: None, quick: false };
        let most = |backend| {
            let steps = plan.steps(backend, &[]);
            let sizes = steps.iter().filter_map(|step| match step.task {
                Task::Row(_, size) => Some(size),
                _ => None,
            });
            sizes.max()
        };
        assert_eq!([Backend::Redlock, Backend::Redis].map(most), [Some(200), Some(1_000)]);
    }

    #[test]
    fn all_steps_fit_into_the_time() {
        let workloads = vec![Workload::W1, Workload::W2, Workload::W3, Workload::W3H, Workload::W4];
        let plan = Plan { workloads, rounds: 5, seconds: None, quick: false };
        let steps = plan.steps(Backend::Redis, &[]);
        let millis = plan.millis(1, &steps);
        let total: Duration = steps.iter().map(|step| plan.cost(step, millis)).sum();
        assert!(millis >= 200 && total <= FULL, "{millis} ms each, {total:?}");
        assert_eq!(Plan { seconds: Some(0.05), ..plan }.millis(1, &steps), 50);
    }
}
