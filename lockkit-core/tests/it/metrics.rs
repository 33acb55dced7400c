//! Metrics: what is emitted is what the table in the documentation says, and the values are right.
//!
//! The recorder belongs to a thread, and so does each runtime here.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
    time::Duration,
};

use lockkit_core::{LockClient, LockGuard, Owner, Status, backend::Lifetime, memory::MemoryServer};
use metrics_util::{
    MetricKind,
    debugging::{DebugValue, DebuggingRecorder, Snapshotter},
};
use tokio::{runtime::Builder, time::sleep};

use crate::{
    checked::{Counted, on_paused_clock},
    common::{NAME, TTL, client, eventually, in_time, name, settle},
    panics::panicking_at_a_release,
    scripted::Scripted,
};

/// The documentation, which contains the tables.
const SOURCE: &str = include_str!("../../src/metrics.rs");

/// A metric: its kind, its unit, and the labels that it has at any time.
type Metric = (String, String, BTreeSet<String>);

/// Runs a scenario with a recorder of its own, on a paused clock.
pub(crate) fn recorded(scenario: impl AsyncFnOnce(&Emitted)) {
    let recorder = DebuggingRecorder::new();
    let emitted = Emitted::by(&recorder);
    metrics::with_local_recorder(&recorder, || on_paused_clock(scenario(&emitted)));
}

/// What was emitted. A snapshot sets everything to zero, so gauges are summed up here.
pub(crate) struct Emitted {
    snapshots: Snapshotter,
    gauges: RefCell<BTreeMap<String, f64>>,
}

/// One series.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    kind: MetricKind,
    unit: Option<metrics::Unit>,
    is_described: bool,
    labels: BTreeMap<String, String>,
    pub(crate) value: DebugValue,
}

impl Emitted {
    fn by(recorder: &DebuggingRecorder) -> Self {
        Self { snapshots: recorder.snapshotter(), gauges: RefCell::default() }
    }

    /// Returns what was emitted since the last call.
    pub(crate) fn take(&self) -> Vec<Series> {
        let series = self.snapshots.snapshot().into_vec().into_iter().map(|(key, unit, text, value)| {
            let (kind, key) = key.into_parts();
            let labels = key.labels().map(|label| (label.key().to_owned(), label.value().to_owned()));
            let (name, labels) = (key.name().to_owned(), labels.collect());
            Series { name, kind, unit, is_described: text.is_some(), labels, value }
        });
        let series: Vec<Series> = series.collect();
        for Series { name, value, .. } in &series {
            if let DebugValue::Gauge(change) = value {
                *self.gauges.borrow_mut().entry(name.clone()).or_default() += change.0;
            }
        }
        series
    }

    /// Returns the value of a gauge, over all schemes.
    fn gauge(&self, name: &str) -> f64 {
        self.take();
        self.gauges.borrow().get(name).copied().unwrap_or_default()
    }
}

/// Returns the values of a histogram with this value of a label.
fn seconds(taken: &[Series], name: &str, label: (&str, &str)) -> Vec<f64> {
    let found = taken
        .iter()
        .filter(|series| series.name == name)
        .filter(|series| series.labels.get(label.0).is_some_and(|value| value == label.1));
    found
        .filter_map(
            |series| if let DebugValue::Histogram(values) = &series.value { Some(values) } else { None },
        )
        .flatten()
        .map(|value| value.0)
        .collect()
}

/// Returns the cells of the rows that begin with a name in backticks, from the line that contains `from`.
fn table(from: &str) -> Vec<Vec<String>> {
    let rows =
        SOURCE.lines().skip_while(|line| !line.contains(from)).skip_while(|line| !line.starts_with("//! |"));
    let rows = rows.take_while(|line| line.starts_with("//! |")).filter(|line| line.starts_with("//! | `"));
    let cells = |line: &str| {
        line.trim_start_matches("//! |").split('|').map(|cell| cell.trim().replace('`', "")).collect()
    };
    rows.map(cells).collect()
}

/// Returns the reasons of the table for a loss of this.
fn reasons(of: &str) -> BTreeSet<String> {
    let rows = table("| reason | of | meaning |").into_iter().filter(|row| row[1].contains(of));
    rows.map(|row| row[0].clone()).collect()
}

pub(crate) async fn held(client: &LockClient, name: &str) -> LockGuard {
    client.lock(name).unwrap().acquire().await.unwrap()
}

async fn every_outcome() {
    let server = MemoryServer::new();
    let (first, second) = (client(&server).await, client(&server).await);
    let owned = first.lock(NAME).unwrap().reentrant(&Owner::new());
    let guard = owned.acquire().await.unwrap();
    drop(owned.acquire().await.unwrap());
    let lock = second.lock(NAME).unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(tokio::time::timeout(TTL / 10, lock.acquire()).await.is_err(), "cancelled");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    sleep(TTL).await;
    guard.release().await.unwrap();
    drop(in_time(waiting).await.unwrap().unwrap());
    first.close().await.unwrap();
    owned.acquire().await.unwrap_err();
    // An unanswered heartbeat, and the release that its server does not answer at first.
    let guard = held(&second, "other").await;
    server.lose_replies(2);
    sleep(TTL / 2).await;
    server.lose_replies(1);
    guard.release().await.unwrap();
    second.close().await.unwrap();
}

/// Losses that the memory server can cause.
async fn losses_of_holds() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let guard = client.lock(NAME).unwrap().max_hold(TTL / 2).acquire().await.unwrap();
    in_time(guard.lost()).await;
    let causes: [fn(&MemoryServer); 3] =
        [|server| server.delete_entries(&name()), MemoryServer::expire_all, MemoryServer::hold_requests];
    for cause in causes {
        let guard = held(&client, NAME).await;
        cause(&server);
        in_time(guard.lost()).await;
        server.deliver_requests();
        eventually(TTL * 2, "connected", || client.status().current() == Status::Connected).await;
    }
    let guard = held(&client, NAME).await;
    client.close().await.unwrap();
    in_time(guard.lost()).await;
}

/// Losses of a neighbour that lives in a session which the client gives up, or which a heartbeat finds ended.
async fn losses_of_sessions() {
    let causes =
        "hold_expired release_unconfirmed withdrawal_unconfirmed backend_panicked task_panicked gone";
    for cause in causes.split(' ') {
        let backend = Scripted::new(Lifetime::Session);
        let client = backend.client().await;
        let (script, limit) = (&backend.script, client.ttl() * 4);
        let older = held(&client, "older").await;
        sleep(TTL / 10).await;
        let neighbour = held(&client, "neighbour").await;
        let lock = client.lock(NAME).unwrap();
        match cause {
            "hold_expired" => script.holds_unknown.store(true, Ordering::SeqCst),
            "release_unconfirmed" => {
                script.releases_refused.store(true, Ordering::SeqCst);
                drop(older);
            }
            "withdrawal_unconfirmed" => {
                script.acquires_silent.store(true, Ordering::SeqCst);
                script.withdrawals_hang.store(true, Ordering::SeqCst);
                assert!(tokio::time::timeout(TTL / 10, lock.acquire()).await.is_err(), "cancelled");
            }
            "backend_panicked" => {
                script.acquire_panics.store(true, Ordering::SeqCst);
                lock.acquire().await.unwrap_err();
            }
            "task_panicked" => {
                let _log = panicking_at_a_release();
                drop(older);
                settle().await;
            }
            _ => script.session_gone.store(true, Ordering::SeqCst),
        }
        tokio::time::timeout(limit, neighbour.lost()).await.expect(cause);
    }
}

fn loss_with_the_runtime() {
    let _counted = Counted::begin();
    let runtime = Builder::new_current_thread().enable_all().build();
    let guard = runtime.unwrap().block_on(async { held(&client(&MemoryServer::new()).await, NAME).await });
    assert!(!guard.is_held());
}

/// A metric, an outcome or a reason that is emitted without being in the tables turns this red, and the other way round.
#[test]
fn emitted_metrics_are_those_of_the_table() {
    let recorder = DebuggingRecorder::new();
    let emitted = Emitted::by(&recorder);
    metrics::with_local_recorder(&recorder, || {
        on_paused_clock(async {
            every_outcome().await;
            losses_of_holds().await;
            losses_of_sessions().await;
        });
        loss_with_the_runtime();
    });

    let taken = emitted.take();
    let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
    let mut values: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for series in taken {
        assert!(series.is_described, "{} has no description", series.name);
        let unit = series.unit.map_or("", |unit| unit.as_str());
        let kind = format!("{:?}", series.kind).to_lowercase();
        let metric = metrics.entry(series.name.clone()).or_insert((kind, unit.to_owned(), BTreeSet::new()));
        metric.2.extend(series.labels.keys().cloned());
        // A counter of zero was started, and has counted nothing.
        if matches!(series.value, DebugValue::Counter(0)) {
            continue;
        }
        for (label, value) in series.labels {
            values.entry((series.name.clone(), label)).or_default().insert(value);
        }
    }
    for (name, value) in &*emitted.gauges.borrow() {
        assert_eq!(*value, 0.0, "{name} does not return to zero");
    }
    let labels = |cell: &str| cell.split(", ").map(str::to_owned).collect();
    let documented: BTreeMap<String, Metric> = table("| name | kind |")
        .into_iter()
        .map(|row| (row[0].clone(), (row[1].clone(), row[2].clone(), labels(&row[3]))))
        .collect();
    assert_eq!(metrics, documented);

    let values = |name: &str, label: &str| values[&(name.to_owned(), label.to_owned())].clone();
    let outcomes = table("| outcome | meaning |").into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(values("lockkit.acquire.duration", "outcome"), outcomes);
    assert_eq!(values("lockkit.losses", "reason"), reasons(""));
    assert_eq!(values("lockkit.sessions.lost", "reason"), reasons("session"));
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(values("lockkit.hold.duration", "outcome"), words(&["lost", "released"]));
    assert_eq!(values("lockkit.heartbeat.duration", "outcome"), words(&["gone", "renewed", "unknown"]));
    assert_eq!(values("lockkit.acquire.duration", "error.type"), words(&["closed", "unexpected"]));
}

#[test]
fn durations_and_gauges_have_the_right_values() {
    recorded(async |emitted| {
        let server = MemoryServer::new();
        let (first, second) = (client(&server).await, client(&server).await);
        let guard = held(&first, NAME).await;
        let lock = second.lock(NAME).unwrap();
        let waiting = tokio::spawn(async move { lock.acquire().await });
        settle().await;
        assert_eq!((emitted.gauge("lockkit.held"), emitted.gauge("lockkit.waiters")), (1.0, 1.0));
        sleep(TTL / 2).await;
        let taken = emitted.take();
        // Heartbeats are sent three times per ttl, and answered at once.
        let [margin] = seconds(&taken, "lockkit.renewal.margin", ("scheme", "memory"))[..] else { panic!() };
        let expected = (TTL * 99 / 100 - Duration::from_millis(2) - TTL / 3).as_secs_f64();
        assert!((margin - expected).abs() < 0.01, "{margin}, not {expected}");
        sleep(TTL / 2).await;
        guard.release().await.unwrap();
        let guard = in_time(waiting).await.unwrap().unwrap();
        let taken = emitted.take();
        for (name, label) in [
            ("lockkit.acquire.duration", ("outcome", "granted")),
            ("lockkit.queue.duration", ("scheme", "memory")),
            ("lockkit.hold.duration", ("outcome", "released")),
        ] {
            let [value] = seconds(&taken, name, label)[..] else { panic!("not one {name}") };
            assert!((value - TTL.as_secs_f64()).abs() < 0.01, "{name}: {value}");
        }
        assert_eq!((emitted.gauge("lockkit.held"), emitted.gauge("lockkit.waiters")), (1.0, 0.0));
        drop(guard);
    });
}

/// Otherwise Prometheus does not see the first loss: `increase` counts from the first value that it knows.
#[test]
fn counters_and_gauges_start_at_zero() {
    recorded(async |emitted| {
        let _client = client(&MemoryServer::new()).await;
        let started = emitted.take();
        let reasons_of = |name: &str| -> BTreeSet<_> {
            let zeros = started.iter().filter(|series| series.name == name);
            zeros
                .filter(|series| matches!(series.value, DebugValue::Counter(0)))
                .map(|series| series.labels["reason"].clone())
                .collect()
        };
        assert_eq!(reasons_of("lockkit.losses"), reasons(""));
        assert_eq!(reasons_of("lockkit.sessions.lost"), reasons("session"));
        let found: BTreeSet<_> = started.iter().map(|series| series.name.as_str()).collect();
        for row in table("| name | kind |").iter().filter(|row| row[1] != "histogram") {
            assert!(found.contains(row[0].as_str()), "{} is not there", row[0]);
        }
    });
}

#[test]
fn release_that_is_retried_is_counted_until_it_is_confirmed() {
    recorded(async |emitted| {
        let backend = Scripted::new(Lifetime::Session);
        let client = backend.client().await;
        let guards = [held(&client, "one").await, held(&client, "two").await];
        backend.script.releases_refused.store(true, Ordering::SeqCst);
        drop(guards);
        sleep(TTL / 4).await;
        assert_eq!(emitted.gauge("lockkit.releases.retrying"), 2.0);
        backend.script.releases_refused.store(false, Ordering::SeqCst);
        sleep(TTL / 2).await;
        assert_eq!(emitted.gauge("lockkit.releases.retrying"), 0.0);
    });
}

/// The clients share the gauge, as they share a process.
#[test]
fn gauge_of_held_locks_counts_over_all_clients() {
    recorded(async |emitted| {
        let server = MemoryServer::new();
        let clients = [client(&server).await, client(&server).await];
        let guards = [held(&clients[0], "one").await, held(&clients[1], "two").await];
        sleep(TTL).await;
        assert_eq!(emitted.gauge("lockkit.held"), 2.0);
        let [one, two] = guards;
        one.release().await.unwrap();
        assert_eq!(emitted.gauge("lockkit.held"), 1.0);
        server.hold_requests();
        drop(two);
        settle().await;
        assert_eq!(emitted.gauge("lockkit.held"), 0.0, "while it is being released");
    });
}

#[test]
fn unanswered_try_is_no_waiter() {
    recorded(async |emitted| {
        let server = MemoryServer::new();
        let lock = client(&server).await.lock(NAME).unwrap();
        server.hold_requests();
        let trying = tokio::spawn(async move { lock.try_acquire().await });
        settle().await;
        assert_eq!((server.held_requests(), emitted.gauge("lockkit.waiters")), (1, 0.0));
        server.deliver_requests();
        assert!(in_time(trying).await.unwrap().unwrap().is_some());
    });
}

/// No worker retries it: its claim waits for it.
#[test]
fn release_of_a_late_pinned_grant_is_counted_while_it_is_retried() {
    recorded(async |emitted| {
        let backend = Scripted::with_pins(Lifetime::Session);
        let script = &backend.script;
        script.releases_refused.store(true, Ordering::SeqCst);
        script.pin_takes_ms.store((TTL * 2).as_millis() as u64, Ordering::SeqCst);
        let lock = backend.client().await.lock(NAME).unwrap().hold_at_least(TTL * 10);
        let acquiring = tokio::spawn(async move { lock.acquire().await });
        eventually(TTL * 3, "refused", || script.releases_tried.load(Ordering::SeqCst) == 2).await;
        assert_eq!(emitted.gauge("lockkit.releases.retrying"), 1.0);
        script.pin_takes_ms.store(0, Ordering::SeqCst);
        script.releases_refused.store(false, Ordering::SeqCst);
        let _guard = in_time(acquiring).await.unwrap().unwrap();
        assert_eq!(emitted.gauge("lockkit.releases.retrying"), 0.0);
    });
}

#[test]
fn heartbeat_takes_from_its_sending_to_its_answer() {
    recorded(async |emitted| {
        let backend = Scripted::new(Lifetime::Hold);
        let _guard = held(&backend.client().await, NAME).await;
        backend.script.heartbeats_wait.store(true, Ordering::SeqCst);
        eventually(TTL, "sent", || backend.script.heartbeats.load(Ordering::SeqCst) == 1).await;
        sleep(Duration::from_secs(1)).await;
        backend.script.heartbeat_answers.notify_one();
        settle().await;
        let taken = emitted.take();
        let took = seconds(&taken, "lockkit.heartbeat.duration", ("outcome", "renewed"));
        assert!(matches!(took[..], [took] if (1.0..1.1).contains(&took)), "{took:?}");
        assert_eq!(seconds(&taken, "lockkit.renewal.margin", ("scheme", "scripted")).len(), 1);
    });
}
