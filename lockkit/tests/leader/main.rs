//! An election over three processes of the example `leader`: its leaders are killed and stopped.
//!
//! The nodes print what they do, with the time of the machine's clock. From that: never do two lead at a time, by the
//! clock and by token; the next one leads within the bound of `docs/guarantees.md`; and everybody sees who leads.
#![allow(missing_docs, reason = "a test program")]

mod cluster;
mod history;
#[path = "../../examples/leader.rs"]
#[allow(dead_code, reason = "the nodes start at `run`")]
mod leader;

use std::{any::Any, fmt::Write, process::ExitCode, time::Duration};

use anyhow::{Context, Result, ensure};
use libtest_mimic::{Arguments, Trial};
use lockkit::{BootInstant, Clock};
use lockkit_testbed::{Etcd, Redis, ZooKeeper};
use rustix::process::Signal;

use crate::{
    cluster::{Cluster, NODES, SLACK},
    history::{Line, Process, Term},
};

const TTL: Duration = Duration::from_secs(3);

const KILLS: u32 = 5;

/// How long a change takes at most to reach an observer that no notification reaches: 2 s + 12.5 % with this ttl.
const SIGHT: Duration = Duration::from_millis(2_250);

/// How many leaders may lose their session, one after the other, before all nodes see one.
const LEADERS_MAX: u32 = 5;

/// A leader that resigns is followed sooner than one whose hold expires: its last heartbeat is at most ttl / 3 ago.
const RESIGNED_MAX: Duration = Duration::from_secs(2);

/// How long after the end of a leader the next one led, and everybody saw it.
struct Takeover {
    led: Duration,
    seen: Duration,
}

/// The URL of a server, and what keeps it running.
type Started = (String, Box<dyn Any>);

/// A store and its bounds.
struct Store {
    name: &'static str,
    start: fn() -> Result<Started>,
    /// "Takeover after a crash" in `docs/guarantees.md`.
    takeover: Duration,
    /// Whether a stopped leader is followed by another one; otherwise its process keeps the leadership.
    has_ttl: bool,
}

const STORES: [Store; 4] = [
    Store {
        name: "etcd",
        start: || Etcd::start().map(|server| (server.url(), Box::new(server) as _)),
        takeover: TTL.saturating_add(Duration::from_secs(1)),
        has_ttl: true,
    },
    Store {
        name: "file",
        start: || {
            let folder = tempfile::tempdir()?;
            Ok((format!("file://{}", folder.path().display()), Box::new(folder)))
        },
        // "At once": the end of the process, and the next poll.
        takeover: Duration::from_millis(100),
        has_ttl: false,
    },
    Store {
        name: "redis",
        start: || Redis::start().map(|server| (server.url(), Box::new(server) as _)),
        takeover: TTL,
        has_ttl: true,
    },
    Store {
        name: "zk",
        start: || ZooKeeper::start().map(|server| (server.url(), Box::new(server) as _)),
        // The testbed's ticks have half a second.
        takeover: TTL.saturating_add(Duration::from_millis(750)),
        has_ttl: true,
    },
];

fn main() -> ExitCode {
    if let Some(outcome) = cluster::play_role_if_asked() {
        return match outcome {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let mut trials = vec![trial("checks_find_what_is_wrong".into(), history::checks_find_what_is_wrong)];
    for store in STORES {
        let name = format!("{}_elects_one_leader_after_another", store.name);
        trials.push(trial(name, move || run(&store)));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn trial(name: String, test: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    Trial::test(name, || test().map_err(|error| format!("{error:#}").into()))
}

fn run(store: &Store) -> Result<()> {
    let (url, _server) = (store.start)()?;
    let mut cluster = Cluster::start(&url, TTL)?;
    let outcome = elections(store, &mut cluster);
    let check = || {
        cluster.history.check_leaders()?;
        outcome?;
        cluster.history.check_observers()
    };
    check().with_context(|| format!("{}\n{}", store.name, cluster.history))
}

/// Kills leaders, stops one, and terminates all nodes.
fn elections(store: &Store, cluster: &mut Cluster) -> Result<()> {
    let mut killed = Vec::new();
    for number in 0..KILLS {
        // At different times after the last heartbeat.
        cluster.read_for(TTL / 6 * number)?;
        let leader = leader_seen_by_all(cluster)?;
        killed.push(takeover(cluster, leader, store.takeover, Cluster::kill)?);
        cluster.restart(leader.process)?;
    }
    let stopped = leader_seen_by_all(cluster)?;
    match store.has_ttl {
        true => stop_leader_with_ttl(store, cluster, stopped)?,
        false => stop_leader_without_ttl(cluster, stopped)?,
    }
    let mut terminated = Vec::new();
    for _ in 1..NODES.len() {
        let leader = leader_seen_by_all(cluster)?;
        terminated.push(takeover(cluster, leader, RESIGNED_MAX, Cluster::terminate)?);
    }
    // The last node has no successor.
    let last = leader_seen_by_all(cluster)?;
    cluster.terminate(last.process)?;

    print(store, &killed, &terminated)?;
    check_takeovers("killed", &killed, store.takeover)?;
    check_takeovers("terminated", &terminated, RESIGNED_MAX)
}

/// Waits until somebody leads and works, and all nodes see it. The time counts again from a leader that begins meanwhile: on
/// a busy machine, several may lose their session.
fn leader_seen_by_all(cluster: &mut Cluster) -> Result<Term> {
    cluster.all_started()?;
    for _ in 0..LEADERS_MAX {
        let before = cluster.history.terms().len();
        let seen = cluster.wait("all nodes see the same leader", TTL + SIGHT + SLACK, |cluster| {
            let leader = cluster.history.current()?;
            cluster
                .processes()
                .all(|process| cluster.history.sees(process) == Some(leader.token))
                .then_some(leader)
        });
        if seen.is_ok() || cluster.history.terms().len() == before {
            return seen;
        }
    }
    anyhow::bail!("{LEADERS_MAX} times, a leader lost its session before all nodes saw it")
}

/// Ends the process of the leader, and waits until all others see a next one.
fn takeover(
    cluster: &mut Cluster,
    leader: Term,
    bound: Duration,
    end: fn(&mut Cluster, Process) -> Result<Duration>,
) -> Result<Takeover> {
    // A process that is killed keeps its lock file until it has ended.
    let at = now() + end(cluster, leader.process)?;
    let next = next_leader(cluster, leader, bound)?;
    leader_seen_by_all(cluster)?;
    let sights = cluster.processes().filter_map(|process| cluster.history.saw(process, next.token));
    let seen = sights.max().context("somebody sees it")?;
    Ok(Takeover { led: next.start.saturating_sub(at), seen: seen.saturating_sub(at) })
}

fn next_leader(cluster: &mut Cluster, last: Term, bound: Duration) -> Result<Term> {
    let what = format!("a leader after {}", last.process.0);
    cluster.wait(&what, bound + SLACK, |cluster| cluster.history.successor_of(last.token))
}

/// Stops the leader for longer than the ttl: another one leads. Continued, it first reports its loss.
fn stop_leader_with_ttl(store: &Store, cluster: &mut Cluster, stopped: Term) -> Result<()> {
    let at = now();
    cluster.signal(stopped.process, Signal::STOP)?;
    let next = next_leader(cluster, stopped, store.takeover)?;
    ensure!(next.process != stopped.process, "{stopped:?} was not stopped");
    cluster.read_for((at + TTL + TTL / 4).saturating_sub(now()))?;
    ensure!(
        continue_node(cluster, stopped)? == Line::Lost(stopped.token),
        "the stopped leader did not notice"
    );
    Ok(())
}

/// Stops a leader that leads as long as its process lives: nobody else leads, and it goes on.
fn stop_leader_without_ttl(cluster: &mut Cluster, stopped: Term) -> Result<()> {
    cluster.signal(stopped.process, Signal::STOP)?;
    cluster.read_for(TTL + TTL / 4)?;
    ensure!(
        continue_node(cluster, stopped)? == Line::Tick(stopped.token),
        "the stopped leader did not go on"
    );
    ensure!(cluster.history.successor_of(stopped.token).is_none(), "two lead at a time");
    Ok(())
}

/// Continues a stopped process. Returns what it does first.
fn continue_node(cluster: &mut Cluster, stopped: Term) -> Result<Line> {
    let at = now();
    cluster.signal(stopped.process, Signal::CONT)?;
    cluster.wait("a line of the continued leader", SLACK, |cluster| {
        cluster.history.of(stopped.process).find(|event| event.at >= at).map(|event| event.line.clone())
    })
}

/// Compares with the bound: the best figure on any machine, the others with what a busy one adds.
fn check_takeovers(how: &str, takeovers: &[Takeover], bound: Duration) -> Result<()> {
    let led = || takeovers.iter().map(|takeover| takeover.led);
    let (best, worst) = (led().min().context("leaders ended")?, led().max().unwrap_or_default());
    ensure!(best <= bound, "{how}: the next leader comes after {best:?} or more, not {bound:?}");
    ensure!(worst <= bound + SLACK, "{how}: the next leader came after {worst:?}, not {bound:?}");
    Ok(())
}

fn print(store: &Store, killed: &[Takeover], terminated: &[Takeover]) -> Result<()> {
    let mut table = format!("{}: milliseconds after the end of a leader\n", store.name);
    writeln!(table, "{:<9} {:>10} {:>10}", "", "next leads", "all see it")?;
    for (how, takeovers) in [("SIGKILL", killed), ("SIGTERM", terminated)] {
        for (number, Takeover { led, seen }) in takeovers.iter().enumerate() {
            writeln!(table, "{how} {} {:>10} {:>10}", number + 1, led.as_millis(), seen.as_millis())?;
        }
    }
    println!("{table}");
    Ok(())
}

/// Returns the time of the clock that the nodes read.
fn now() -> Duration {
    Clock::boot().now().since(BootInstant::from_start(Duration::ZERO))
}
