//! Spans and events: the keeper's work can be followed by lock and token, and a loss is one warning.

#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers of tests are not seen as tests")]

#[path = "it/checked.rs"]
mod checked;
#[path = "it/common.rs"]
mod common;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Debug},
    sync::{Once, atomic::Ordering},
};

use checked::Counted;
use common::{NAME, TTL, client, eventually, in_time, name, settle, suspendable_clock};
use lockkit_core::{Clock, LockClient, LockGuard, Status, memory::MemoryServer};
use tracing::{
    Instrument, Level, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id},
};
use tracing_subscriber::{Layer, layer::Context, prelude::*, registry::LookupSpan};

thread_local! {
    static RECORDED: RefCell<Vec<Recorded>> = RefCell::default();
}

/// A new span, or an event.
#[derive(Clone, Debug)]
struct Recorded {
    /// The name of a span; `None` for an event.
    span: Option<&'static str>,
    parent: Option<&'static str>,
    level: Level,
    fields: Fields,
}

#[derive(Clone, Debug, Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

/// Records what is emitted on a thread for the test on this thread; each runtime here has one thread.
struct Recorder;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let (metadata, span) = (attributes.metadata(), context.span(id));
        let parent = span.and_then(|span| span.parent()).map(|parent| parent.name());
        push(Recorded { span: Some(metadata.name()), parent, level: *metadata.level(), fields });
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let parent = context.event_span(event).map(|span| span.name());
        push(Recorded { span: None, parent, level: *event.metadata().level(), fields });
    }
}

fn push(recorded: Recorded) {
    RECORDED.with_borrow_mut(|all| all.push(recorded));
}

/// Records from now on what this thread emits.
fn record() {
    // One subscriber for the whole program, for ever: with one per thread, the cached interest of another thread, which
    // has none, would drop events.
    static SUBSCRIBE: Once = Once::new();
    SUBSCRIBE.call_once(|| tracing_subscriber::registry().with(Recorder).init());
    RECORDED.take();
}

impl Recorded {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.0.get(name).map(String::as_str)
    }

    /// Returns whether it has exactly these fields with these values; `*` stands for any value.
    fn has_exactly(&self, fields: &[(&str, &str)]) -> bool {
        self.fields.0.len() == fields.len()
            && fields
                .iter()
                .all(|(name, value)| self.field(name).is_some_and(|found| *value == "*" || found == *value))
    }
}

fn recorded() -> Vec<Recorded> {
    RECORDED.with_borrow(Clone::clone)
}

/// Returns the events above DEBUG.
fn notable() -> Vec<Recorded> {
    recorded().into_iter().filter(|one| one.span.is_none() && one.level < Level::DEBUG).collect()
}

/// Returns the spans of the table in the documentation of the crate, with their fields.
fn documented_spans() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let rows = include_str!("../src/lib.rs").lines().filter_map(|line| line.strip_prefix("//! | span `"));
    let spans = rows.map(|row| {
        let fields = row.rsplit('|').nth(1).unwrap_or_default();
        let fields = fields.split(',').map(|field| field.trim().trim_matches('`')).collect();
        (row.split('`').next().unwrap_or_default(), fields)
    });
    spans.collect()
}

async fn held(client: &LockClient, name: &str) -> LockGuard {
    client.lock(name).unwrap().acquire().await.unwrap()
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn acquire_wait_hold_renew_and_release_have_spans_with_name_and_token() {
    record();
    let server = MemoryServer::new();
    let client = client(&server).await;
    let caller = tracing::info_span!("request");
    let guard = held(&client, NAME).instrument(caller).await;
    let token = guard.token().to_string();
    tokio::time::sleep(TTL / 2).await;
    guard.release().await.unwrap();
    client.close().await.unwrap();

    let documented = documented_spans();
    for span in recorded() {
        let Some(name) = span.span.filter(|name| *name != "request") else { continue };
        let fields: BTreeSet<&str> = span.fields.0.keys().copied().collect();
        assert_eq!(
            documented.get(name),
            Some(&fields),
            "{name} is documented with other fields, or not at all"
        );
    }
    let spans: Vec<_> = recorded().into_iter().filter(|one| one.span.is_some()).collect();
    let lock = ("lock", NAME);
    let scheme = ("scheme", "memory");
    let of_grant = [lock, scheme, ("token", token.as_str()), ("claim", "*")];
    let expected = [
        ("acquire", Some("request"), vec![lock, scheme]),
        ("claim", Some("acquire"), vec![("claim", "*"), ("wait", "true")]),
        ("hold", Some("request"), of_grant.to_vec()),
        ("heartbeat", None, vec![scheme, ("held", "1")]),
        ("release", Some("request"), of_grant.to_vec()),
    ];
    for (name, parent, fields) in expected {
        let found = |span: &Recorded| {
            span.span == Some(name)
                && span.parent == parent
                && span.has_exactly(&fields)
                && span.level == Level::DEBUG
        };
        assert!(spans.iter().any(found), "no {name} under {parent:?} with {fields:?} in\n{}", Lines(&spans));
    }
}

/// Also with a waiter, a try that finds the lock busy, a cancelled waiter and renewals.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn ordinary_use_emits_nothing_above_debug() {
    let server = MemoryServer::new();
    let (first, second) = (client(&server).await, client(&server).await);
    record();
    let guard = held(&first, NAME).await;
    let lock = second.lock(NAME).unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(lock.acquire_timeout(TTL / 10).await.unwrap().is_none());
    assert!(tokio::time::timeout(TTL / 10, lock.acquire()).await.is_err(), "cancelled");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(TTL * 2).await;
    guard.release().await.unwrap();
    in_time(waiting).await.unwrap().unwrap().release().await.unwrap();
    drop(held(&first, NAME).await);
    settle().await;
    first.close().await.unwrap();
    second.close().await.unwrap();
    assert!(recorded().len() > 20, "little was recorded: {}", Lines(&recorded()));
    assert!(notable().is_empty(), "{}", Lines(&notable()));
}

/// How a lock is lost.
struct Loss {
    reason: &'static str,
    how: fn(&MemoryServer, &LockClient),
    /// Whether the session is lost, which is one more warning.
    with_session: bool,
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn lost_hold_is_one_warning_with_lock_and_reason() {
    let losses = [
        Loss { reason: "entry_gone", how: |server, _| server.delete_entries(&name()), with_session: false },
        Loss { reason: "session_ended", how: |server, _| server.expire_all(), with_session: true },
        Loss { reason: "deadline", how: |server, _| server.hold_requests(), with_session: true },
        Loss {
            reason: "client_closed",
            how: |_, client| {
                let client = client.clone();
                tokio::spawn(async move { client.close().await });
            },
            with_session: false,
        },
    ];
    for loss in losses {
        let server = MemoryServer::new();
        let client = client(&server).await;
        let guard = held(&client, NAME).await;
        let token = guard.token().to_string();
        record();
        (loss.how)(&server, &client);
        in_time(guard.lost()).await;
        eventually(TTL, "the session is over", || {
            !loss.with_session || client.status().current() == Status::Lost
        })
        .await;
        drop(guard);
        settle().await;

        let warned = notable();
        let of_lock: Vec<_> = warned.iter().filter(|event| event.field("lock").is_some()).collect();
        let [warning] = of_lock[..] else { panic!("{}: {}", loss.reason, Lines(&warned)) };
        let expected = [
            ("lock", NAME),
            ("scheme", "memory"),
            ("token", token.as_str()),
            ("claim", "*"),
            ("reason", loss.reason),
            ("message", "*"),
        ];
        assert!(warning.has_exactly(&expected) && warning.level == Level::WARN, "{}", Lines(&warned));
        let of_session: Vec<_> = warned
            .iter()
            .filter(|event| event.field("reason").is_some() && event.field("lock").is_none())
            .map(|event| event.field("reason").unwrap_or_default())
            .collect();
        assert_eq!(
            of_session,
            if loss.with_session { vec![loss.reason] } else { vec![] },
            "{}",
            Lines(&warned)
        );
    }
}

/// `Debug` may run within an event, in which another one would be lost.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn shown_guard_notes_no_loss() {
    let (clock, ahead_ms) = suspendable_clock();
    let server = MemoryServer::new();
    let client = LockClient::builder(server.backend()).ttl(TTL).clock(clock).build().await.unwrap();
    let guard = held(&client, NAME).await;
    record();
    ahead_ms.store(u64::try_from(TTL.as_millis()).unwrap(), Ordering::SeqCst);
    let shown = format!("{guard:?}");
    assert!(shown.contains("held: false") && notable().is_empty(), "{shown}: {}", Lines(&notable()));
    assert!(!guard.is_held());
    assert_eq!(notable().len(), 1, "{}", Lines(&notable()));
}

/// After a suspension, the guard reads the clock before the session task does.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn session_is_lost_by_its_deadline_although_its_hold_was_found_first() {
    let (clock, ahead_ms) = suspendable_clock();
    let server = MemoryServer::new();
    let client = LockClient::builder(server.backend()).ttl(TTL).clock(clock).build().await.unwrap();
    let guard = held(&client, NAME).await;
    record();
    ahead_ms.store(2 * TTL.as_millis() as u64, Ordering::SeqCst);
    assert!(!guard.is_held());
    eventually(TTL, "lost", || client.status().current() == Status::Lost).await;
    let warned = notable();
    let of_session = warned.iter().filter(|event| event.field("lock").is_none());
    let reasons: Vec<_> = of_session.filter_map(|event| event.field("reason")).collect();
    assert_eq!(reasons, ["deadline"], "{}", Lines(&warned));
}

#[test]
fn hold_that_ends_with_its_runtime_is_one_warning() {
    let _counted = Counted::begin();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = MemoryServer::new();
    let client_runtime = runtime();
    let guard = client_runtime.block_on(async {
        let client =
            LockClient::builder(server.backend()).ttl(TTL).clock(Clock::boot()).build().await.unwrap();
        held(&client, NAME).await
    });
    record();
    drop(client_runtime);
    assert!(!guard.is_held());
    let reasons: Vec<_> = notable().iter().map(|event| event.field("reason").map(str::to_owned)).collect();
    assert_eq!(reasons, [Some("runtime_ended".to_owned())], "{}", Lines(&notable()));
}

/// Prints one line for each.
struct Lines<'a>(&'a [Recorded]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|one| {
            let kind = one.span.map_or("event".to_owned(), |name| format!("span {name}"));
            writeln!(f, "{} {kind} in {:?}: {:?}", one.level, one.parent, one.fields.0)
        })
    }
}
