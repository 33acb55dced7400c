//! The metrics of every client, emitted through the [`metrics`](https://docs.rs/metrics) facade with the feature
//! `metrics`. Without it, this code compiles to nothing.
//!
//! Names and units follow OpenTelemetry's conventions. Every metric has the label `scheme`, the
//! [scheme](crate::backend::BackendInfo::scheme) of the backend.
//!
//! | name | kind | unit | labels | meaning |
//! |---|---|---|---|---|
//! | `lockkit.acquire.duration` | histogram | seconds | `scheme`, `outcome`, `error.type` | from the call of an acquire to its end |
//! | `lockkit.queue.duration` | histogram | seconds | `scheme` | from the store's first report of another holder to the grant; a grant without such a report is not counted |
//! | `lockkit.hold.duration` | histogram | seconds | `scheme`, `outcome` | from the grant to the end of the hold, `released` or `lost` |
//! | `lockkit.losses` | counter | count | `scheme`, `reason` | holds that were lost |
//! | `lockkit.heartbeat.duration` | histogram | seconds | `scheme`, `outcome` | from sending a heartbeat to its answer: `renewed`, `gone` (the session has ended) or `unknown` (no valid answer) |
//! | `lockkit.renewal.margin` | histogram | seconds | `scheme` | what was left to the deadline of a hold when its renewal arrived |
//! | `lockkit.held` | gauge | count | `scheme` | holds now, from the grant to the release or the loss |
//! | `lockkit.waiters` | gauge | count | `scheme` | callers that wait now; tries do not wait |
//! | `lockkit.releases.retrying` | gauge | count | `scheme` | releases now that the store has not confirmed and that are retried |
//! | `lockkit.sessions.opened` | counter | count | `scheme` | sessions that were opened |
//! | `lockkit.sessions.lost` | counter | count | `scheme`, `reason` | sessions that ended although their client was open |
//!
//! A client sees its own callers only: `lockkit.waiters` is not the length of the queue at the store, which
//! [`inspect`](crate::LockClient::inspect) shows. It does not learn when the holder before it released the lock either,
//! so `lockkit.queue.duration` contains the time for which that holder still held it, not only the handoff.
//!
//! The `outcome` of an acquire:
//!
//! | outcome | meaning |
//! |---|---|
//! | `granted` | the lock was granted to the caller, alone or with other callers of its owner |
//! | `reentered` | the owner held the lock already; nothing was sent |
//! | `busy` | others held it until the time limit, or when it was tried |
//! | `cancelled` | the caller dropped the future |
//! | `error` | it failed; the label `error.type`, which only this outcome has, is the [kind](crate::ErrorKind) in snake case |
//!
//! The `reason` of a loss. With a session, all its holds are lost; the other reasons end one hold:
//!
//! | reason | of | meaning |
//! |---|---|---|
//! | `deadline` | session, hold | no renewal was acknowledged in time: the store was silent, or the process did not run |
//! | `session_ended` | session | the store ended the session |
//! | `hold_expired` | session | the client gave up the session, because a hold of it had passed its deadline |
//! | `release_unconfirmed` | session | the client gave up the session, because the store did not confirm a release for a ttl |
//! | `withdrawal_unconfirmed` | session | the client gave up the session, because the store did not confirm a withdrawal for a ttl |
//! | `backend_panicked` | session | the client gave up the session, because the backend panicked |
//! | `task_panicked` | session | the client gave up the session, because a task of it panicked and may have left an entry without a holder |
//! | `entry_gone` | hold | the store has the entry no longer: it expired there, or somebody removed it |
//! | `max_hold` | hold | it lasted longer than [`max_hold`](crate::Lock::max_hold) |
//! | `client_closed` | hold | the client was closed while the lock was held |
//! | `runtime_ended` | hold | the runtime ended while the lock was held |
//!
//! Each client starts all counters, with each reason, and all gauges at zero: a query such as `increase(...[5m]) > 0` sees
//! the first loss of a process only if the series was there before.
//!
//! Names of locks are no labels: an application has as many as it has orders or users, and each would be a time series
//! for ever. Logs and spans contain them ([crate documentation](crate#logs-and-spans)).
//!
//! Install the recorder before the first client is built: what is emitted earlier reaches nobody, and gauges count from
//! what has reached the recorder.
//!
//! # Names in Prometheus
//!
//! `metrics-exporter-prometheus` turns each `.` into `_`, in labels too (`error_type`). With
//! `with_recommended_naming(true)`, which the dashboard of this project expects, it also adds units and `_total`:
//!
//! | kind and unit | name here | name in Prometheus |
//! |---|---|---|
//! | histogram in seconds | `lockkit.acquire.duration` | `lockkit_acquire_duration_seconds` (`_bucket`, `_sum`, `_count`) |
//! | counter | `lockkit.losses` | `lockkit_losses_total` |
//! | gauge | `lockkit.held` | `lockkit_held` |

use std::time::Duration;

use crate::{
    ErrorKind,
    backend::Renewal,
    keeper::{AcquireAnswer, LossReason},
};

const ACQUIRE_DURATION: &str = "lockkit.acquire.duration";
const QUEUE_DURATION: &str = "lockkit.queue.duration";
const HOLD_DURATION: &str = "lockkit.hold.duration";
const LOSSES: &str = "lockkit.losses";
const HEARTBEAT_DURATION: &str = "lockkit.heartbeat.duration";
const RENEWAL_MARGIN: &str = "lockkit.renewal.margin";
const HELD: &str = "lockkit.held";
const WAITERS: &str = "lockkit.waiters";
const RELEASES_RETRYING: &str = "lockkit.releases.retrying";
const SESSIONS_OPENED: &str = "lockkit.sessions.opened";
const SESSIONS_LOST: &str = "lockkit.sessions.lost";

/// The labels of one value.
type Labels<'a> = &'a [(&'static str, &'static str)];

/// Describes the metrics to the recorder, and starts counters and gauges at zero. Each client does it, in case the
/// recorder is newer than the client before.
pub(crate) fn start(scheme: &'static str) {
    let histograms = [
        (ACQUIRE_DURATION, "Time from the call of an acquire to its end"),
        (QUEUE_DURATION, "Time from the store's first report of another holder to the grant"),
        (HOLD_DURATION, "Time from the grant to the end of the hold"),
        (HEARTBEAT_DURATION, "Time from sending a heartbeat to its answer"),
        (RENEWAL_MARGIN, "Time left to the deadline of a hold when its renewal arrived"),
    ];
    let counters = [
        (LOSSES, "Holds that were lost"),
        (SESSIONS_OPENED, "Sessions that were opened"),
        (SESSIONS_LOST, "Sessions that ended although their client was open"),
    ];
    let gauges = [
        (HELD, "Holds now"),
        (WAITERS, "Callers of this process that wait now"),
        (RELEASES_RETRYING, "Releases that the store has not confirmed and that are retried"),
    ];
    facade::describe(&histograms, &counters, &gauges);
    let scheme = ("scheme", scheme);
    for (gauge, _) in gauges {
        facade::add(gauge, 0.0, &[scheme]);
    }
    facade::count(SESSIONS_OPENED, 0, &[scheme]);
    for reason in LossReason::OF_SESSIONS {
        facade::count(SESSIONS_LOST, 0, &[scheme, ("reason", reason.label())]);
    }
    for reason in LossReason::OF_SESSIONS.into_iter().chain(LossReason::OF_HOLDS) {
        facade::count(LOSSES, 0, &[scheme, ("reason", reason.label())]);
    }
}

/// A call of acquire, recorded when it ends; without a result it was cancelled.
#[derive(Debug)]
pub(crate) struct AcquireCall {
    scheme: &'static str,
    called: Moment,
    outcome: &'static str,
    error: Option<ErrorKind>,
}

impl AcquireCall {
    pub(crate) fn begin(scheme: &'static str) -> Self {
        Self { scheme, called: Moment::now(), outcome: "cancelled", error: None }
    }

    /// Notes that the owner held the lock already.
    pub(crate) fn reentered(mut self) {
        self.outcome = "reentered";
    }

    /// Notes the answer, and returns it.
    pub(crate) fn ended(mut self, answer: AcquireAnswer) -> AcquireAnswer {
        (self.outcome, self.error) = match &answer {
            Ok(Some(_)) => ("granted", None),
            Ok(None) => ("busy", None),
            Err(error) => ("error", Some(error.kind())),
        };
        answer
    }
}

impl Drop for AcquireCall {
    fn drop(&mut self) {
        let (scheme, outcome) = (("scheme", self.scheme), ("outcome", self.outcome));
        let duration = self.called.elapsed();
        match self.error {
            Some(kind) => {
                facade::record(ACQUIRE_DURATION, duration, &[scheme, outcome, ("error.type", kind.label())])
            }
            None => facade::record(ACQUIRE_DURATION, duration, &[scheme, outcome]),
        }
    }
}

/// Records the grant of a claim to which the store had reported another holder at this moment.
pub(crate) fn left_queue(scheme: &'static str, contended: Moment) {
    facade::record(QUEUE_DURATION, contended.elapsed(), &[("scheme", scheme)]);
}

/// Records the end of a hold.
pub(crate) fn hold_ended(scheme: &'static str, granted: Moment, loss: Option<LossReason>) {
    let outcome = if loss.is_some() { "lost" } else { "released" };
    facade::record(HOLD_DURATION, granted.elapsed(), &[("scheme", scheme), ("outcome", outcome)]);
    if let Some(reason) = loss {
        facade::count(LOSSES, 1, &[("scheme", scheme), ("reason", reason.label())]);
    }
}

/// Records a heartbeat that was sent at this moment.
pub(crate) fn heartbeat(scheme: &'static str, sent: Moment, session: &Renewal) {
    let outcome = match session {
        Renewal::Renewed { .. } => "renewed",
        Renewal::Gone => "gone",
        Renewal::Unknown(_) => "unknown",
    };
    facade::record(HEARTBEAT_DURATION, sent.elapsed(), &[("scheme", scheme), ("outcome", outcome)]);
}

/// Records what was left to the deadline of a hold when its renewal arrived.
pub(crate) fn margin(scheme: &'static str, left: Duration) {
    facade::record(RENEWAL_MARGIN, left, &[("scheme", scheme)]);
}

pub(crate) fn session_opened(scheme: &'static str) {
    facade::count(SESSIONS_OPENED, 1, &[("scheme", scheme)]);
}

pub(crate) fn session_lost(scheme: &'static str, reason: LossReason) {
    facade::count(SESSIONS_LOST, 1, &[("scheme", scheme), ("reason", reason.label())]);
}

/// One of what a gauge counts, until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    gauge: &'static str,
    scheme: &'static str,
}

impl Counted {
    pub(crate) fn hold(scheme: &'static str) -> Self {
        Self::new(HELD, scheme)
    }

    pub(crate) fn waiter(scheme: &'static str) -> Self {
        Self::new(WAITERS, scheme)
    }

    pub(crate) fn retried_release(scheme: &'static str) -> Self {
        Self::new(RELEASES_RETRYING, scheme)
    }

    fn new(gauge: &'static str, scheme: &'static str) -> Self {
        facade::add(gauge, 1.0, &[("scheme", scheme)]);
        Self { gauge, scheme }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        facade::add(self.gauge, -1.0, &[("scheme", self.scheme)]);
    }
}

/// When something began, on tokio's clock. Without the feature it is empty, and no clock is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(#[cfg(feature = "metrics")] tokio::time::Instant);

impl Moment {
    pub(crate) fn now() -> Self {
        Self(
            #[cfg(feature = "metrics")]
            tokio::time::Instant::now(),
        )
    }

    fn elapsed(self) -> Duration {
        #[cfg(feature = "metrics")]
        return self.0.elapsed();
        #[cfg(not(feature = "metrics"))]
        return Duration::ZERO;
    }
}

/// The recorder. Its panic must end no task of the keeper, and none that is unwound already.
#[cfg(feature = "metrics")]
mod facade {
    use std::{cell::RefCell, collections::HashMap, rc::Rc, time::Duration};

    use metrics::{Key, Level, Metadata, Unit};

    use super::Labels;
    use crate::keeper::caught::contained;

    type Descriptions<'a> = &'a [(&'static str, &'static str)];

    pub(super) fn describe(
        histograms: Descriptions<'_>,
        counters: Descriptions<'_>,
        gauges: Descriptions<'_>,
    ) {
        contained(|| {
            for &(name, text) in histograms {
                metrics::describe_histogram!(name, Unit::Seconds, text);
            }
            for &(name, text) in counters {
                metrics::describe_counter!(name, Unit::Count, text);
            }
            for &(name, text) in gauges {
                metrics::describe_gauge!(name, Unit::Count, text);
            }
        });
    }

    pub(super) fn record(name: &'static str, value: Duration, labels: Labels<'_>) {
        let key = key(name, labels);
        contained(|| {
            metrics::with_recorder(|recorder| recorder.register_histogram(&key, &METADATA)).record(value)
        });
    }

    pub(super) fn count(name: &'static str, by: u64, labels: Labels<'_>) {
        let key = key(name, labels);
        contained(|| {
            metrics::with_recorder(|recorder| recorder.register_counter(&key, &METADATA)).increment(by)
        });
    }

    pub(super) fn add(name: &'static str, change: f64, labels: Labels<'_>) {
        let key = key(name, labels);
        contained(|| {
            metrics::with_recorder(|recorder| recorder.register_gauge(&key, &METADATA)).increment(change)
        });
    }

    static METADATA: Metadata<'_> = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

    /// A name, and its labels; a value has at most three.
    type KeyParts = (&'static str, [(&'static str, &'static str); 3]);

    thread_local! {
        /// The keys that this thread has emitted. All their parts are constants of the program, so there are few.
        static KEYS: RefCell<HashMap<KeyParts, Rc<Key>>> = RefCell::default();
    }

    /// Returns the key of a value, which is allocated once per thread. The recorder gets the key each time: it may be
    /// installed after the client was built, and may drop a series that was idle.
    fn key(name: &'static str, labels: Labels<'_>) -> Rc<Key> {
        let new = || Rc::new(Key::from_parts(name, labels));
        let mut parts = (name, [("", ""); 3]);
        parts.1.iter_mut().zip(labels).for_each(|(part, label)| *part = *label);
        // While the thread ends, its keys may be gone.
        KEYS.try_with(|keys| Rc::clone(keys.borrow_mut().entry(parts).or_insert_with(new)))
            .unwrap_or_else(|_| new())
    }
}

#[cfg(not(feature = "metrics"))]
mod facade {
    use std::time::Duration;

    use super::Labels;

    type Descriptions<'a> = &'a [(&'static str, &'static str)];

    pub(super) fn describe(_: Descriptions<'_>, _: Descriptions<'_>, _: Descriptions<'_>) {}
    pub(super) fn record(_: &'static str, _: Duration, _: Labels<'_>) {}
    pub(super) fn count(_: &'static str, _: u64, _: Labels<'_>) {}
    pub(super) fn add(_: &'static str, _: f64, _: Labels<'_>) {}
}
