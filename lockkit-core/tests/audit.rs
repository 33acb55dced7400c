//! The audit log: every hold that was broken from outside is one event.
//!
//! A program of its own, because its subscriber is that of the whole process.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are not seen as tests")]

#[path = "it/checked.rs"]
mod checked;
#[path = "it/common.rs"]
mod common;

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex, Once},
    task::{Context as TaskContext, Waker},
    time::Duration,
};

use async_trait::async_trait;
use common::{TTL, client, in_time, settle};
use lockkit_core::{
    Clock, Error, ErrorKind, LockClient, LockName, Metadata, Result, Status,
    backend::{Admin, Backend, BackendInfo, Contender, Inspection, Session},
    memory::{MemoryBackend, MemoryServer},
};
use tokio::sync::Semaphore;
use tracing::{Event, Level, Subscriber, field::Field};
use tracing_subscriber::{Layer, layer::Context, layer::SubscriberExt};

/// The events of the target `lockkit::audit`: their level and their fields as text.
static AUDIT: Mutex<Vec<(Level, BTreeMap<&'static str, String>)>> = Mutex::new(Vec::new());

struct Audit;

impl<S: Subscriber> Layer<S> for Audit {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "lockkit::audit" {
            let mut fields = BTreeMap::new();
            event.record(&mut |field: &Field, value: &dyn Debug| {
                fields.insert(field.name(), format!("{value:?}"));
            });
            AUDIT.lock().unwrap().push((*event.metadata().level(), fields));
        }
    }
}

fn start_audit() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Audit)).unwrap();
    });
}

/// Returns the events about this lock.
fn events_of(name: &str) -> Vec<(Level, BTreeMap<&'static str, String>)> {
    let name = format!("{name:?}");
    AUDIT.lock().unwrap().iter().filter(|(_, fields)| fields["lock"] == name).cloned().collect()
}

/// Returns the guard of a new client that holds this lock, and the operator's view of it.
async fn held(server: &MemoryServer, name: &str) -> (lockkit_core::LockGuard, Contender) {
    let client = client(server).await;
    let guard = client.lock(name).unwrap().acquire().await.unwrap();
    let holder = client.inspect(name).await.unwrap().holder.unwrap();
    (guard, holder)
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_break_is_one_warning_that_names_lock_entry_token_host_and_pid() {
    start_audit();
    let (server, name) = (MemoryServer::new(), "orders/\n42");
    let (operator, (guard, holder)) = (client(&server).await, held(&server, name).await);
    assert!(operator.break_lock(name, &holder).await.unwrap());
    // It holds nothing any more: the second break changes nothing and is no event.
    assert!(!operator.break_lock(name, &holder).await.unwrap());
    let here = Metadata::of_this_process(None);
    let expected = BTreeMap::from([
        ("message", "lock broken".to_owned()),
        ("lock", format!("{name:?}")),
        ("entry", format!("{:?}", holder.entry)),
        ("token", guard.token().to_string()),
        ("host", format!("{:?}", here.host)),
        ("pid", here.pid.to_string()),
    ]);
    assert_eq!(events_of(name), [(Level::WARN, expected)]);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_break_whose_caller_has_left_is_an_event() {
    start_audit();
    let (server, name) = (MemoryServer::new(), "left by its caller");
    let (operator, (guard, holder)) = (client(&server).await, held(&server, name).await);
    server.hold_requests();
    let mut breaking = Box::pin(operator.break_lock(name, &holder));
    assert!(breaking.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())).is_pending());
    drop(breaking);
    settle().await;
    assert_eq!(events_of(name), []);
    server.deliver_requests();
    in_time(guard.lost()).await;
    settle().await;
    assert_eq!(events_of(name).len(), 1);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_break_without_an_answer_is_an_event_that_says_so() {
    start_audit();
    let (server, name) = (MemoryServer::new(), "without an answer");
    let (operator, (guard, holder)) = (client(&server).await, held(&server, name).await);
    server.lose_replies(1);
    assert!(operator.break_lock(name, &holder).await.is_err());
    let events = events_of(name);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].1["message"], "lock perhaps broken");
    assert!(events[0].1["error"].contains("unavailable"), "{events:?}");
    let here = Metadata::of_this_process(None);
    let of_the_holder = ["entry", "token", "host", "pid"].map(|field| events[0].1[field].clone());
    let (entry, host) = (format!("{:?}", holder.entry), format!("{:?}", here.host));
    assert_eq!(of_the_holder, [entry, guard.token().to_string(), host, here.pid.to_string()]);
}

/// A memory server that breaks otherwise.
#[derive(Clone, Debug)]
struct Breaking {
    backend: MemoryBackend,
    how: How,
    opens: Opens,
}

/// What becomes of an attempt to open a session.
#[derive(Clone, Debug)]
enum Opens {
    Session,
    Unavailable,
    /// Denied after this permit.
    DeniedAfter(Arc<Semaphore>),
}

#[derive(Clone, Debug)]
enum How {
    Panics,
    IsNotOffered,
    /// Waits for this permit.
    Slowly(Arc<Semaphore>),
}

impl Breaking {
    async fn client(server: &MemoryServer, how: How) -> LockClient {
        let backend = Self { backend: server.backend(), how, opens: Opens::Session };
        LockClient::builder(backend).ttl(TTL).clock(Clock::tokio()).build().await.unwrap()
    }
}

#[async_trait]
impl Backend for Breaking {
    fn info(&self) -> BackendInfo {
        self.backend.info()
    }

    async fn open_session(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        match &self.opens {
            Opens::Session => self.backend.open_session(ttl, clock).await,
            Opens::Unavailable => Err(Error::new(ErrorKind::Unavailable, "open session")),
            Opens::DeniedAfter(permit) => {
                let _permit = permit.acquire().await.unwrap();
                Err(Error::new(ErrorKind::Denied, "open session"))
            }
        }
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }
}

#[async_trait]
impl Admin for Breaking {
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        self.backend.inspect(name).await
    }

    async fn break_lock(&self, name: &LockName, holder: &Contender) -> Result<bool> {
        match &self.how {
            How::Panics => panic!("panics on request"),
            How::IsNotOffered => Err(Error::new(ErrorKind::Unsupported, "break").with_lock(name)),
            How::Slowly(permit) => {
                let _permit = permit.acquire().await.unwrap();
                self.backend.break_lock(name, holder).await
            }
        }
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_break_that_panics_is_an_event_and_one_that_is_not_offered_is_none() {
    start_audit();
    let holder = Contender::new("entry", None, None);
    for (name, how, kind, events) in [
        ("panics", How::Panics, ErrorKind::Unexpected, 1),
        ("not offered", How::IsNotOffered, ErrorKind::Unsupported, 0),
    ] {
        let operator = Breaking::client(&MemoryServer::new(), how).await;
        assert_eq!(operator.break_lock(name, &holder).await.unwrap_err().kind(), kind);
        assert_eq!(events_of(name).len(), events, "{name}");
    }
}
/// Leaves a break after its first poll and closes its client, which waits until the permit lets the break end.
async fn close_waits_for_a_left_break(
    operator: &LockClient,
    name: &'static str,
    holder: &Contender,
    permit: &Semaphore,
) {
    let mut breaking = Box::pin(operator.break_lock(name, holder));
    assert!(breaking.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())).is_pending());
    drop(breaking);
    let closing = tokio::spawn({
        let operator = operator.clone();
        async move { operator.close().await }
    });
    tokio::time::sleep(TTL / 4).await;
    assert!(!closing.is_finished());
    permit.add_permits(1);
    in_time(closing).await.unwrap().unwrap();
    assert_eq!(events_of(name).len(), 1);
}

/// Else the end of the client's own thread, which follows the close, could drop the break half-way.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn close_waits_for_a_break_whose_caller_has_left() {
    start_audit();
    let (server, name) = (MemoryServer::new(), "left by its client");
    let (guard, holder) = held(&server, name).await;
    let permit = Arc::new(Semaphore::new(0));
    let operator = Breaking::client(&server, How::Slowly(Arc::clone(&permit))).await;
    close_waits_for_a_left_break(&operator, name, &holder, &permit).await;
    in_time(guard.lost()).await;

    // Not for ever.
    let (_guard, holder) = held(&server, name).await;
    let permit = Arc::new(Semaphore::new(0));
    let operator = Breaking::client(&server, How::Slowly(Arc::clone(&permit))).await;
    let mut breaking = Box::pin(operator.break_lock(name, &holder));
    assert!(breaking.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())).is_pending());
    let start = tokio::time::Instant::now();
    operator.close().await.unwrap();
    assert_eq!(start.elapsed(), TTL / 2);
    permit.add_permits(1);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn close_without_a_session_waits_for_a_break_whose_caller_has_left() {
    start_audit();
    let (server, name) = (MemoryServer::new(), "left without a session");
    let (guard, holder) = held(&server, name).await;
    let permit = Arc::new(Semaphore::new(0));
    let how = How::Slowly(Arc::clone(&permit));
    let backend = Breaking { backend: server.backend(), how, opens: Opens::Unavailable };
    let operator = LockClient::builder(backend).ttl(TTL).clock(Clock::tokio()).build_lazy().await.unwrap();
    close_waits_for_a_left_break(&operator, name, &holder, &permit).await;
    in_time(guard.lost()).await;
}

/// The client's own thread ends with the refusal, but not before the break.
#[tokio::test(crate = "crate::checked")]
async fn thread_of_a_refused_client_ends_after_its_break() {
    start_audit();
    let (server, name) = (MemoryServer::new(), "left by a refused client");
    let holding = LockClient::builder(server.backend()).build().await.unwrap();
    let guard = holding.lock(name).unwrap().acquire().await.unwrap();
    let holder = holding.inspect(name).await.unwrap().holder.unwrap();
    let permit = Arc::new(Semaphore::new(0));
    let how = How::Slowly(Arc::clone(&permit));
    let denied = Arc::new(Semaphore::new(0));
    let opens = Opens::DeniedAfter(Arc::clone(&denied));
    let backend = Breaking { backend: server.backend(), how, opens };
    let operator = LockClient::builder(backend).own_thread().build_lazy().await.unwrap();
    let mut breaking = Box::pin(operator.break_lock(name, &holder));
    assert!(breaking.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())).is_pending());
    drop(breaking);
    denied.add_permits(1);
    let mut status = operator.status();
    while in_time(status.changed()).await != Status::Closed {}
    // The thread ends at once otherwise; then the client refuses to inspect.
    let thread_ends = async { while operator.inspect(name).await.is_ok() {} };
    assert!(tokio::time::timeout(Duration::from_millis(200), thread_ends).await.is_err());
    permit.add_permits(1);
    in_time(guard.lost()).await;
    in_time(async {
        while events_of(name).is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
