//! Lost sessions are replaced, callers get their results in time, and everything is bounded.

use std::{sync::Arc, time::Duration};

use crate::checked::Counted;
use crate::common::{
    HANG, NAME, TTL, client, eventually, in_time, kind, lock_of_new_client, name, settle, tasks,
};
use async_trait::async_trait;
use lockkit_core::{
    ClientOptions, Clock, ErrorKind, LockClient, Owner, Result, Status,
    backend::{Backend, BackendInfo, Session},
    limits::{LABEL_BYTES_MAX, TRY_ANSWER_MAX, TTL_MAX, WAITERS_PER_CLIENT_MAX},
    memory::{MemoryBackend, MemoryServer},
};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn client_survives_many_lost_sessions() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let lock = client.lock(NAME).unwrap();
    let mut last = None;
    for _ in 0..50 {
        let guard = lock.acquire().await.unwrap();
        assert!(Some(guard.token()) > last, "tokens rise over sessions");
        last = Some(guard.token());
        server.expire_all();
        guard.lost().await;
    }
    eventually(TTL, "connected again", || client.status().current() == Status::Connected).await;
    assert_eq!(server.sessions(), 1, "the lost ones are gone");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn waiting_claims_move_to_the_new_session() {
    let server = MemoryServer::new();
    let holder = lock_of_new_client(&server).await.acquire().await.unwrap();
    let waiting = lock_of_new_client(&server).await;
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    eventually(TTL, "it waits", || server.inspect(&name()).waiters.len() == 1).await;
    server.expire_all();
    holder.lost().await;
    assert!(in_time(waiter).await.unwrap().unwrap().is_held());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn waiter_whose_entry_was_deleted_queues_again() {
    let server = MemoryServer::new();
    let holder = lock_of_new_client(&server).await.acquire().await.unwrap();
    let waiting = lock_of_new_client(&server).await;
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    eventually(TTL, "it waits", || server.inspect(&name()).waiters.len() == 1).await;
    server.delete_entries(&name());
    assert!(in_time(waiter).await.unwrap().unwrap().is_held());
    drop(holder);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn no_wake_up_is_lost_when_every_notification_is_dropped() {
    let server = MemoryServer::new();
    let holder = lock_of_new_client(&server).await.acquire().await.unwrap();
    let waiting = lock_of_new_client(&server).await;
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    eventually(TTL, "it waits", || server.inspect(&name()).waiters.len() == 1).await;
    server.drop_notifications(true);
    holder.release().await.unwrap();
    let start = Instant::now();
    assert!(in_time(waiter).await.unwrap().unwrap().is_held());
    let recheck_max = Duration::from_secs(2).mul_f64(1.125);
    assert!(start.elapsed() <= recheck_max + Duration::from_millis(10), "{:?}", start.elapsed());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn waiters_are_granted_in_order_when_one_leaves() {
    let server = MemoryServer::new();
    let holder = lock_of_new_client(&server).await.acquire().await.unwrap();
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for number in 0..5 {
        let lock = lock_of_new_client(&server).await;
        let served = served.clone();
        tasks.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            served.send(number).unwrap();
            drop(guard);
        }));
        eventually(TTL, "it waits", || server.inspect(&name()).waiters.len() == number + 1).await;
    }
    tasks[2].abort();
    settle().await;
    drop((holder, served));
    let mut seen = Vec::new();
    while let Some(number) = order.recv().await {
        seen.push(number);
    }
    assert_eq!(seen, [0, 1, 3, 4]);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn none_is_returned_only_when_the_server_reported_busy() {
    let server = MemoryServer::new();
    let holder = lock_of_new_client(&server).await.acquire().await.unwrap();
    let lock = lock_of_new_client(&server).await;
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(lock.acquire_timeout(Duration::from_millis(100)).await.unwrap().is_none());
    assert!(lock.acquire_timeout(Duration::ZERO).await.unwrap().is_none());
    server.hold_requests();
    let start = Instant::now();
    assert_eq!(kind(lock.acquire_timeout(Duration::from_millis(100)).await), ErrorKind::Unavailable);
    assert!(start.elapsed() <= Duration::from_millis(110));
    let start = Instant::now();
    assert_eq!(kind(lock.try_acquire().await), ErrorKind::Unavailable);
    assert!(start.elapsed() <= TRY_ANSWER_MAX + Duration::from_millis(10));
    server.deliver_requests();
    drop(holder);
    eventually(TTL, "nothing is left", || server.is_empty()).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn close_ends_waiting_calls_and_leaves_nothing() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let waiting = client.lock(NAME).unwrap();
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    settle().await;
    client.close().await.unwrap();
    assert_eq!(kind(waiter.await.unwrap()), ErrorKind::Closed);
    assert!(!guard.is_held());
    assert_eq!(kind(client.lock(NAME).unwrap().acquire().await), ErrorKind::Closed);
    assert_eq!(client.status().current(), Status::Closed);
    client.close().await.expect("closing again returns the same");
    assert!(server.is_empty());
    assert_eq!(server.sessions(), 0);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn close_is_bounded_by_the_ttl_when_the_server_is_silent() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    server.hold_requests();
    let start = Instant::now();
    assert_eq!(kind(client.close().await), ErrorKind::Unavailable);
    assert!(start.elapsed() <= TTL + Duration::from_millis(10), "{:?}", start.elapsed());
    assert!(!guard.is_held());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_client_whose_last_handle_is_dropped_closes_its_session() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    drop(client.lock(NAME).unwrap().acquire().await.unwrap());
    drop(client);
    eventually(TTL, "no session is left", || server.sessions() == 0).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn odd_ttls_and_labels_are_refused_or_raised_and_reported() {
    let server = MemoryServer::new();
    let build = |ttl| LockClient::builder(server.backend()).ttl(ttl).clock(Clock::tokio()).build();
    assert_eq!(kind(build(Duration::ZERO).await), ErrorKind::InvalidConfig);
    assert_eq!(build(TTL_MAX).await.unwrap().ttl(), TTL_MAX);
    assert_eq!(kind(build(TTL_MAX + Duration::from_secs(1)).await), ErrorKind::InvalidConfig);
    assert_eq!(kind(build(Duration::from_secs(10 * 365 * 24 * 3600)).await), ErrorKind::InvalidConfig);
    assert_eq!(kind(build(Duration::MAX).await), ErrorKind::InvalidConfig);
    let raised = build(Duration::from_millis(1)).await.unwrap();
    assert_eq!(raised.ttl(), raised.info().ttl_min);
    let labelled = |bytes| LockClient::builder(server.backend()).label("x".repeat(bytes)).build();
    assert!(labelled(LABEL_BYTES_MAX).await.is_ok());
    assert_eq!(kind(labelled(LABEL_BYTES_MAX + 1).await), ErrorKind::InvalidConfig);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn odd_names_are_different_locks() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let longest = "x".repeat(1024);
    let mut guards = Vec::new();
    for odd in ["a", "a/b", "ab", "a\0", "/", "..", "{}", "\0", "🔒", "new\nline", &longest] {
        guards.push(client.lock(odd).unwrap().try_acquire().await.unwrap().expect(odd));
    }
    assert_eq!(kind(client.lock("")), ErrorKind::InvalidName);
    assert_eq!(kind(client.lock("x".repeat(1 << 20))), ErrorKind::InvalidName);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn unreachable_server_fails_the_build() {
    let server = MemoryServer::new();
    server.hold_requests();
    let built = LockClient::builder(server.backend()).ttl(TTL).clock(Clock::tokio()).build().await;
    assert_eq!(kind(built), ErrorKind::Unavailable);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_thousand_holds_are_renewed_by_one_request_per_heartbeat() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let mut guards = Vec::new();
    for number in 0..1_000 {
        guards.push(client.lock(format!("lock {number}")).unwrap().acquire().await.unwrap());
    }
    let before = server.requests();
    sleep(TTL * 5).await;
    assert!(guards.iter().all(lockkit_core::LockGuard::is_held));
    let heartbeats = server.requests() - before;
    assert!((14..=16).contains(&heartbeats), "{heartbeats} requests in five ttls");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn callers_beyond_the_limit_are_refused_and_leave_nothing() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    server.hold_requests();
    let waiting: Vec<_> = (0..WAITERS_PER_CLIENT_MAX)
        .map(|_| {
            let lock = client.lock(NAME).unwrap();
            tokio::spawn(async move { lock.acquire_timeout(TTL).await })
        })
        .collect();
    eventually(TTL, "all are waiting", || server.held_requests() >= WAITERS_PER_CLIENT_MAX).await;
    let before = tasks();
    let refused = client.lock(NAME).unwrap().acquire_timeout(TTL).await.unwrap_err();
    assert_eq!(tasks(), before, "a call that is refused starts nothing");
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.to_string().contains("are waiting already"), "{refused}");
    for waiter in waiting {
        waiter.abort();
    }
    assert_eq!(kind(client.close().await), ErrorKind::Unavailable);
}

/// They share one claim, and each of them waits.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn callers_that_join_an_attempt_count_against_the_limit() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let lock = client.lock(NAME).unwrap().reentrant(&Owner::new());
    server.hold_requests();
    let waiting: Vec<_> = (0..WAITERS_PER_CLIENT_MAX)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire().await })
        })
        .collect();
    // The clock moves only once all of them wait.
    sleep(Duration::from_millis(1)).await;
    assert_eq!(server.held_requests(), 1);
    let refused = lock.acquire_timeout(TTL).await.unwrap_err();
    assert!(refused.to_string().contains("are waiting already"), "{refused}");
    for waiter in waiting {
        waiter.abort();
    }
    assert_eq!(kind(client.close().await), ErrorKind::Unavailable);
}

#[test]
fn a_client_on_its_own_thread_renews_while_the_callers_executor_is_blocked() {
    let _counted = Counted::begin();
    let server = MemoryServer::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // Long enough for a thread that must wait for a CPU.
        let ttl = Duration::from_secs(6);
        let build = |thread: bool| {
            let builder = LockClient::builder(server.backend()).ttl(ttl);
            if thread { builder.own_thread() } else { builder }
        };
        let own = build(true).build().await.unwrap();
        let callers = build(false).build().await.unwrap();
        let kept = own.lock("own").unwrap().acquire().await.unwrap();
        let starved = callers.lock("callers").unwrap().acquire().await.unwrap();
        std::thread::sleep(ttl * 3 / 2);
        assert!(kept.is_held());
        assert!(!starved.is_held(), "known although no task has run");
        own.close().await.unwrap();
    });
}

#[test]
fn outside_a_runtime_a_client_needs_its_own_thread() {
    let _counted = Counted::begin();
    let server = MemoryServer::new();
    let outside = futures_block_on(LockClient::builder(server.backend()).build());
    assert_eq!(kind(outside), ErrorKind::Unsupported);
    let inside = futures_block_on(LockClient::builder(server.backend()).own_thread().build()).unwrap();
    let guard = futures_block_on(inside.lock(NAME).unwrap().acquire()).unwrap();
    assert!(guard.is_held());
    assert!(
        futures_block_on(inside.lock(NAME).unwrap().acquire_timeout(Duration::from_secs(1)))
            .unwrap()
            .is_none()
    );
    futures_block_on(guard.release()).unwrap();
    drop(inside);
}

/// A memory server that reports the end of the runtime that opened a session.
#[derive(Debug)]
struct RuntimeWatch {
    backend: MemoryBackend,
    runtime_ended: CancellationToken,
}

#[async_trait]
impl Backend for RuntimeWatch {
    fn info(&self) -> BackendInfo {
        self.backend.info()
    }

    async fn open_session(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        // Nothing but the end of the runtime drops this task.
        let dropped = self.runtime_ended.clone().drop_guard();
        tokio::spawn(async move {
            let _dropped = dropped;
            std::future::pending::<()>().await;
        });
        self.backend.open_session(ttl, clock).await
    }
}

#[tokio::test(crate = "crate::checked")]
async fn own_thread_of_a_client_ends_when_the_client_closes_or_is_dropped() {
    for closes in [true, false] {
        let runtime_ended = CancellationToken::new();
        let backend =
            RuntimeWatch { backend: MemoryServer::new().backend(), runtime_ended: runtime_ended.clone() };
        let client = LockClient::builder(backend).own_thread().build().await.unwrap();
        assert!(!runtime_ended.is_cancelled());
        match closes {
            true => client.close().await.unwrap(),
            false => drop(client),
        }
        tokio::time::timeout(HANG, runtime_ended.cancelled()).await.expect("the thread ends");
    }
}

/// Runs a future on the smallest executor that is not tokio.
fn futures_block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(value) => return value,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn label_of_the_options_replaces_that_of_the_builder() {
    let server = MemoryServer::new();
    for (of_options, label) in [(Some("options".to_owned()), "options"), (None, "builder")] {
        let mut options = ClientOptions::default();
        options.label = of_options;
        let client =
            LockClient::builder(server.backend()).label("builder").options(options).build().await.unwrap();
        let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
        let holder = server.inspect(&name()).holder.unwrap();
        assert_eq!(holder.metadata.unwrap().label.as_deref(), Some(label));
        guard.release().await.unwrap();
    }
}
