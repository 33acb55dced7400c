//! Backends, subscribers and clocks that panic in the middle of a call.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use lockkit_core::{Clock, ErrorKind, LockClient, Status, backend::Lifetime, memory::MemoryServer};
use tokio::time::sleep;
use tracing::{Subscriber, span, subscriber::DefaultGuard};
use tracing_subscriber::{
    Layer, Registry,
    layer::{Context, SubscriberExt},
};

use crate::{
    checked::on_paused_clock,
    common::{NAME, TTL, client, eventually, in_time, kind, name, settle, tasks},
    scripted::Scripted,
};

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn client_recovers_from_a_panic_while_opening() {
    let backend = Scripted::new(Lifetime::Session);
    let client = backend.client().await;
    backend.script.open_panics.store(true, Ordering::SeqCst);
    backend.script.lose_session.notify_one();
    eventually(TTL, "lost", || client.status().current() == Status::Lost).await;
    eventually(TTL, "connected again", || client.status().current() == Status::Connected).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn panic_while_watching_ends_that_session_only() {
    let backend = Scripted::new(Lifetime::Session);
    let client = backend.client().await;
    let lock = client.lock(NAME).unwrap();
    let guard = lock.acquire().await.unwrap();
    backend.script.lost_panics.store(true, Ordering::SeqCst);
    backend.script.lose_session.notify_one();
    assert_eq!(in_time(guard.lost()).await.kind(), ErrorKind::Lost);
    eventually(TTL, "connected again", || client.status().current() == Status::Connected).await;
    assert!(in_time(lock.acquire()).await.unwrap().is_held());
}

/// The client is not closed, and the next call may succeed.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn panicked_pin_and_panicked_proclaim_are_unexpected() {
    let backend = Scripted::with_pins(Lifetime::Session);
    let lock = backend.client().await.lock(NAME).unwrap().hold_at_least(TTL * 10);
    backend.script.pin_panics.store(true, Ordering::SeqCst);
    assert_eq!(kind(in_time(lock.acquire()).await), ErrorKind::Unexpected);
    assert!(in_time(lock.acquire()).await.unwrap().is_held());

    let backend = Scripted::with_elections(Lifetime::Session);
    let leadership = backend.client().await.election(NAME).unwrap().campaign("one").await.unwrap();
    backend.script.proclaim_panics.store(true, Ordering::SeqCst);
    assert_eq!(kind(in_time(leadership.proclaim("two")).await), ErrorKind::Unexpected);
    in_time(leadership.proclaim("three")).await.unwrap();
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn panicked_release_is_retried_and_panicked_acquire_ends_its_session() {
    for in_release in [false, true] {
        let backend = Scripted::new(Lifetime::Session);
        let script = &backend.script;
        let client = backend.client().await;
        let lock = client.lock(NAME).unwrap();
        if in_release {
            let guard = lock.acquire().await.unwrap();
            script.release_panics.store(true, Ordering::SeqCst);
            guard.release().await.expect("tried again");
            assert_eq!(script.releases.load(Ordering::SeqCst), 1);
        } else {
            script.acquire_panics.store(true, Ordering::SeqCst);
            assert_eq!(kind(lock.acquire().await), ErrorKind::Unexpected);
            eventually(TTL, "the session is closed", || script.closed.load(Ordering::SeqCst) == 1).await;
        }
        assert!(lock.acquire().await.unwrap().is_held(), "the client still works");
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn heartbeat_that_panics_is_repeated_in_its_session() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let guard = backend.client().await.lock(NAME).unwrap().acquire().await.unwrap();
    script.heartbeat_panics.store(true, Ordering::SeqCst);
    tokio::time::sleep(TTL * 3).await;
    assert!(!script.heartbeat_panics.load(Ordering::SeqCst), "it has panicked");
    assert!(guard.is_held(), "{:?}", guard.check());
    assert_eq!(script.opened.load(Ordering::SeqCst), 1);
}

/// A subscriber that panics at each event of this module.
struct PanickingLog(&'static str);

impl<S: Subscriber> Layer<S> for PanickingLog {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        assert_ne!(event.metadata().target(), self.0, "panics on request");
    }
}

/// A subscriber that panics at each new span with this name.
struct PanickingSpans(&'static str);

impl<S: Subscriber> Layer<S> for PanickingSpans {
    fn on_new_span(&self, new: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        assert_ne!(new.metadata().name(), self.0, "panics on request");
    }
}

/// A subscriber that panics once, when it enters a span with this name.
struct PanicsOnce(&'static str, AtomicBool);

impl Layer<Registry> for PanicsOnce {
    fn on_enter(&self, id: &span::Id, context: Context<'_, Registry>) {
        let is_it = context.span(id).is_some_and(|span| span.name() == self.0);
        assert!(!is_it || self.1.swap(true, Ordering::SeqCst), "panics on request");
    }
}

/// Sets a subscriber of this thread that panics at the first release.
pub(crate) fn panicking_at_a_release() -> DefaultGuard {
    logging_to(PanicsOnce("release", AtomicBool::new(false)))
}

/// Sets the subscriber of this thread.
fn logging_to(layer: impl Layer<Registry> + Send + Sync + 'static) -> DefaultGuard {
    tracing::subscriber::set_default(tracing_subscriber::registry().with(layer))
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn subscriber_that_panics_prevents_no_release() {
    for module in ["lockkit_core::keeper::claim_task", "lockkit_core::keeper::ending"] {
        let server = MemoryServer::new();
        let client = client(&server).await;
        let other = client.lock("other").unwrap().acquire().await.unwrap();
        let lock = client.lock(NAME).unwrap().max_hold(TTL / 2);
        let _log = logging_to(PanickingLog(module));
        let guard = lock.acquire().await.unwrap();
        assert_eq!(in_time(guard.lost()).await.kind(), ErrorKind::Lost, "{module}");
        eventually(TTL, "released", || server.inspect(&name()).holder.is_none()).await;
        assert!(other.is_held(), "{module}: not by the end of its session");
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn subscriber_that_panics_at_a_late_grant_prevents_no_release() {
    let backend = Scripted::new(Lifetime::Hold);
    let script = &backend.script;
    let client = backend.client().await;
    let lock = client.lock(NAME).unwrap();
    let _log = logging_to(PanickingLog("lockkit_core::keeper::claim_task"));
    script.late.store(true, Ordering::SeqCst);
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(TTL * 2).await;
    script.late.store(false, Ordering::SeqCst);
    script.grants.notify_one();
    assert!(in_time(acquiring).await.unwrap().unwrap().is_held());
    assert_eq!(script.releases.load(Ordering::SeqCst), 1);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn subscriber_that_panics_prevents_no_retry_of_a_release() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    let lock = client.lock(NAME).unwrap();
    let _log = logging_to(PanickingLog("lockkit_core::keeper::releases"));
    let guard = lock.acquire().await.unwrap();
    script.releases_refused.store(true, Ordering::SeqCst);
    drop(guard);
    eventually(TTL, "refused twice", || script.releases_tried.load(Ordering::SeqCst) == 2).await;
    script.releases_refused.store(false, Ordering::SeqCst);
    eventually(TTL, "released", || script.releases.load(Ordering::SeqCst) == 1).await;
    assert_eq!(script.opened.load(Ordering::SeqCst), 1);
    let guard = lock.acquire().await.unwrap();
    script.releases_refused.store(true, Ordering::SeqCst);
    drop(guard);
    eventually(TTL * 2, "given up with its session", || script.opened.load(Ordering::SeqCst) == 2).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn subscriber_that_panics_ends_no_session_and_no_client() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let _log = logging_to(PanickingLog("lockkit_core::keeper::session_task"));
    script.silent.store(true, Ordering::SeqCst);
    eventually(TTL, "not renewed", || script.heartbeats.load(Ordering::SeqCst) == 2).await;
    script.silent.store(false, Ordering::SeqCst);
    tokio::time::sleep(TTL * 2).await;
    assert!(guard.is_held(), "{:?}", guard.check());
    script.lose_session.notify_one();
    eventually(TTL, "a new session", || script.opened.load(Ordering::SeqCst) == 2).await;
    eventually(TTL, "connected again", || client.status().current() == Status::Connected).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn subscriber_that_panics_at_a_new_span_prevents_nothing() {
    for span in ["hold", "release", "heartbeat"] {
        let server = MemoryServer::new();
        let lock = client(&server).await.lock(NAME).unwrap();
        let _log = logging_to(PanickingSpans(span));
        let guard = lock.acquire().await.expect(span);
        tokio::time::sleep(TTL * 2).await;
        assert!(guard.is_held(), "{span}: {:?}", guard.check());
        guard.release().await.expect(span);
        assert!(server.is_empty(), "{span}");
    }
}

/// A panic that is not caught drops the release. The session would renew the entry for ever.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn release_that_a_panic_drops_ends_with_its_session() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let (lock, other) = (client.lock(NAME).unwrap(), client.lock("b").unwrap().acquire().await.unwrap());
    let _log = panicking_at_a_release();
    drop(lock.acquire().await.unwrap());
    assert!(in_time(other.lost()).await.to_string().contains("a task of the client panicked"));
    eventually(TTL, "the entry is gone", || server.is_empty()).await;
    assert!(in_time(lock.acquire()).await.unwrap().is_held(), "the client still works");
}

/// Nothing else would end that entry, which has no lifetime.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn release_without_a_lifetime_that_a_panic_drops_ends_with_its_session() {
    let backend = Scripted::new(Lifetime::Process);
    let script = &backend.script;
    let lock = backend.client().await.lock(NAME).unwrap();
    let _log = panicking_at_a_release();
    drop(lock.acquire().await.unwrap());
    eventually(TTL, "its session is closed", || script.closed.load(Ordering::SeqCst) == 1).await;
    assert!(in_time(lock.acquire()).await.unwrap().is_held(), "the client still works");
}

/// Returns a clock of the user, and whether its next reading panics.
fn panicking_clock() -> (Clock, Arc<AtomicBool>) {
    let (clock, panics) = (Clock::tokio(), Arc::new(AtomicBool::new(false)));
    let panicking = Arc::clone(&panics);
    let read = move || {
        assert!(!panicking.swap(false, Ordering::SeqCst), "panics on request");
        clock.now()
    };
    (Clock::new(read), panics)
}

/// Without a hold, the next reading is that of the session task.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn panicked_session_task_ends_the_observations_of_its_client() {
    let (clock, panics) = panicking_clock();
    let builder = LockClient::builder(MemoryServer::new().backend()).ttl(TTL).clock(clock);
    let before = tasks();
    let client = builder.build().await.unwrap();
    let mut observer = client.election(NAME).unwrap().observe();
    assert_eq!(in_time(observer.next()).await.unwrap().unwrap(), None);
    panics.store(true, Ordering::SeqCst);
    assert_eq!(kind(in_time(observer.next()).await.unwrap()), ErrorKind::Closed);
    assert_eq!(client.status().current(), Status::Closed);
    eventually(TTL, "its other tasks end too", || tasks() == before).await;
}

/// A report of the store wakes the session task, whose reading of the clock is the next one.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn panicked_session_task_ends_the_releases_of_its_session() {
    let (clock, panics) = panicking_clock();
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = LockClient::builder(backend.clone()).ttl(TTL).clock(clock).build().await.unwrap();
    let held = client.lock("other").unwrap().acquire().await.unwrap();
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    script.releases_refused.store(true, Ordering::SeqCst);
    let releasing = tokio::spawn(guard.release());
    settle().await;
    panics.store(true, Ordering::SeqCst);
    script.lose_grant.notify_one();
    assert_eq!(kind(in_time(releasing).await.unwrap()), ErrorKind::Unavailable);
    assert_eq!(client.status().current(), Status::Closed);
    panics.store(false, Ordering::SeqCst);
    let lost = held.check().unwrap_err().to_string();
    assert!(lost.contains("panicked"), "{lost}");
}

/// A recorder that panics at everything.
struct Panicking;

impl ::metrics::Recorder for Panicking {
    fn describe_counter(
        &self,
        _: ::metrics::KeyName,
        _: Option<::metrics::Unit>,
        _: ::metrics::SharedString,
    ) {
        panics()
    }

    fn describe_gauge(&self, _: ::metrics::KeyName, _: Option<::metrics::Unit>, _: ::metrics::SharedString) {
        panics()
    }

    fn describe_histogram(
        &self,
        _: ::metrics::KeyName,
        _: Option<::metrics::Unit>,
        _: ::metrics::SharedString,
    ) {
        panics()
    }

    fn register_counter(&self, _: &::metrics::Key, _: &::metrics::Metadata<'_>) -> ::metrics::Counter {
        panics()
    }

    fn register_gauge(&self, _: &::metrics::Key, _: &::metrics::Metadata<'_>) -> ::metrics::Gauge {
        panics()
    }

    fn register_histogram(&self, _: &::metrics::Key, _: &::metrics::Metadata<'_>) -> ::metrics::Histogram {
        panics()
    }
}

#[expect(clippy::panic, reason = "the recorder is to panic")]
fn panics() -> ! {
    panic!("on request")
}

#[test]
fn recorder_that_panics_prevents_nothing() {
    ::metrics::with_local_recorder(&Panicking, || {
        on_paused_clock(async {
            let server = MemoryServer::new();
            let client = client(&server).await;
            let lock = client.lock(NAME).unwrap();
            let guard = lock.acquire().await.unwrap();
            sleep(TTL * 3).await;
            assert!(guard.is_held(), "{:?}", guard.check());
            guard.release().await.unwrap();
            assert!(server.is_empty());
            let guard = lock.acquire().await.unwrap();
            server.expire_all();
            in_time(guard.lost()).await;
            eventually(TTL, "connected again", || client.status().current() == Status::Connected).await;
            assert!(lock.acquire().await.unwrap().is_held());
            client.close().await.unwrap();
        });
    });
}
