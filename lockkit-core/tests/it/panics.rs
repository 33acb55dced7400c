//! Backends that panic in the middle of a call.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use crate::common::{NAME, TTL, client, eventually, in_time, kind};
use crate::scripted::Scripted;
use lockkit_core::{
    BootInstant, Clock, ErrorKind, LockClient, Status, TimeSource, backend::Lifetime, memory::MemoryServer,
};
use tracing_subscriber::layer::SubscriberExt;

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

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for PanickingLog {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        assert_ne!(event.metadata().target(), self.0, "panics on request");
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn subscriber_that_panics_prevents_no_release() {
    for module in ["lockkit_core::keeper::claim_task", "lockkit_core::keeper::ending"] {
        let server = MemoryServer::new();
        let lock = client(&server).await.lock(NAME).unwrap().max_hold(TTL / 2);
        let log = tracing_subscriber::registry().with(PanickingLog(module));
        let _log = tracing::subscriber::set_default(log);
        let guard = lock.acquire().await.unwrap();
        assert_eq!(in_time(guard.lost()).await.kind(), ErrorKind::Lost, "{module}");
        eventually(TTL, "released", || server.is_empty()).await;
    }
}

/// A clock of the user, whose next reading panics if the test says so.
struct PanickingClock(Clock, Arc<AtomicBool>);

impl TimeSource for PanickingClock {
    fn now(&self) -> BootInstant {
        assert!(!self.1.swap(false, Ordering::SeqCst), "panics on request");
        self.0.now()
    }
}

/// Without a hold, the next reading is that of the session task.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn panicked_session_task_ends_the_observations_of_its_client() {
    let panics = Arc::new(AtomicBool::new(false));
    let clock = Clock::new(PanickingClock(Clock::tokio(), Arc::clone(&panics)));
    let builder = LockClient::builder(MemoryServer::new().backend()).ttl(TTL).clock(clock);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let client = builder.build().await.unwrap();
    let mut observer = client.election(NAME).unwrap().observe();
    assert_eq!(in_time(observer.next()).await.unwrap().unwrap(), None);
    panics.store(true, Ordering::SeqCst);
    assert_eq!(kind(in_time(observer.next()).await.unwrap()), ErrorKind::Closed);
    assert_eq!(client.status().current(), Status::Closed);
    eventually(TTL, "its other tasks end too", || tasks() == before).await;
}
