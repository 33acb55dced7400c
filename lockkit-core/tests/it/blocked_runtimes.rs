//! A caller on a healthy runtime gets its result in time, even if the keeper's runtime is blocked.
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    task::Poll,
    time::{Duration, Instant},
};

use crate::checked::Counted;
use crate::common::{HANG, NAME, kind, settle};
use lockkit_core::{
    BootInstant, Clock, ErrorKind, LockClient, lease::validity, limits::CLOCK_READ_PAUSE_MAX,
    memory::MemoryServer,
};
use tokio::runtime::{Builder, Runtime};

const TTL: Duration = Duration::from_secs(2);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs `work` on this thread while `runtime` is blocked.
fn while_blocked<T>(runtime: Runtime, work: impl FnOnce() -> T) -> T {
    let (unblock, blocked) = mpsc::channel::<()>();
    let (entered, is_blocked) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        runtime.block_on(async {
            entered.send(()).unwrap();
            // Blocks the executor, until the sender is dropped.
            let _ = blocked.recv_timeout(HANG * 2);
        });
    });
    is_blocked.recv().unwrap();
    let outcome = work();
    assert!(!thread.is_finished(), "the keeper was not blocked all the time");
    drop(unblock);
    thread.join().unwrap();
    outcome
}

/// Runs a future on a separate runtime; returns its output and how long it took.
fn elsewhere<F: Future>(future: F) -> (F::Output, Duration) {
    let start = Instant::now();
    let outcome = runtime().block_on(async { tokio::time::timeout(HANG, future).await.expect("no hang") });
    (outcome, start.elapsed())
}

#[test]
fn a_loss_is_reported_at_the_deadline_while_the_keeper_is_blocked() {
    let _counted = Counted::begin();
    let keepers = runtime();
    let (_client, guard) = keepers.block_on(async {
        let client = LockClient::builder(MemoryServer::new().backend()).ttl(TTL).build().await.unwrap();
        let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
        (client, guard)
    });
    let (lost, _) = while_blocked(keepers, || elsewhere(guard.lost()));
    assert_eq!(lost.kind(), ErrorKind::Lost);
}

#[test]
fn callers_return_at_their_time_limits_while_the_keeper_is_blocked() {
    let _counted = Counted::begin();
    let (keepers, server) = (runtime(), MemoryServer::new());
    let (client, guard) = keepers.block_on(async {
        let client = LockClient::builder(server.backend()).build().await.unwrap();
        let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
        (client, guard)
    });
    let lock = client.lock("another").unwrap();
    // Not answered within the first poll, which the caller makes.
    server.hold_requests();
    while_blocked(keepers, || {
        let time_limit = Duration::from_millis(100);
        assert_eq!(kind(elsewhere(lock.acquire_timeout(time_limit)).0), ErrorKind::Unavailable);
        assert_eq!(kind(elsewhere(lock.try_acquire()).0), ErrorKind::Unavailable);
        assert_eq!(kind(elsewhere(guard.release()).0), ErrorKind::Unavailable);
    });
}

#[test]
fn close_and_drain_return_while_the_keeper_is_blocked() {
    let _counted = Counted::begin();
    let (keepers, server) = (runtime(), MemoryServer::new());
    let client = keepers.block_on(LockClient::builder(server.backend()).ttl(TTL).build()).unwrap();
    while_blocked(keepers, || {
        assert_eq!(kind(elsewhere(client.drain(Duration::from_millis(100))).0), ErrorKind::Unavailable);
        assert_eq!(kind(elsewhere(client.close()).0), ErrorKind::Unavailable);
    });
}

/// Only the timers of the caller read the clock here: the keeper's runtime does not run.
#[test]
fn caller_reads_the_clock_once_a_second_while_the_keeper_is_blocked() {
    let _counted = Counted::begin();
    let (keepers, (clock, suspended_ms)) = (runtime(), moved_clock());
    let (_client, guard) = keepers.block_on(async {
        let backend = MemoryServer::new().backend();
        let client = LockClient::builder(backend).ttl(TTL * 60).clock(clock).build().await.unwrap();
        let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
        (client, guard)
    });
    let callers = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    callers.block_on(async {
        let mut losing = std::pin::pin!(guard.lost());
        tokio::select! {
            biased;
            lost = &mut losing => panic!("{lost}"),
            () = tokio::task::yield_now() => {}
        }
        suspended_ms.store(3_600_000, Ordering::SeqCst);
        let start = tokio::time::Instant::now();
        losing.await;
        assert!(start.elapsed() <= CLOCK_READ_PAUSE_MAX, "{:?}", start.elapsed());
    });
}

/// The clock shows less than a second to the deadline, which no renewal moves.
#[test]
fn caller_reads_the_clock_at_the_deadline_while_the_keeper_is_blocked() {
    let _counted = Counted::begin();
    let (keepers, (clock, suspended_ms)) = (runtime(), moved_clock());
    let (_client, guard) = keepers.block_on(async {
        let backend = MemoryServer::new().backend();
        let client = LockClient::builder(backend).ttl(TTL).clock(clock).build().await.unwrap();
        let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
        (client, guard)
    });
    let (deadline, left) = (validity(TTL).as_millis() as u64, Duration::from_millis(300));
    let callers = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    callers.block_on(async {
        suspended_ms.store(deadline - left.as_millis() as u64, Ordering::SeqCst);
        let mut losing = std::pin::pin!(guard.lost());
        assert!(poll_in_task(losing.as_mut()).await.is_pending());
        suspended_ms.store(deadline, Ordering::SeqCst);
        let start = tokio::time::Instant::now();
        losing.await;
        assert!(start.elapsed().abs_diff(left) <= Duration::from_millis(1), "{:?}", start.elapsed());
    });
}

/// Polls a future once, with the waker of the calling task.
async fn poll_in_task<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

/// Returns a clock that only the test moves, and by how many milliseconds it was moved.
fn moved_clock() -> (Clock, Arc<AtomicU64>) {
    let moved_ms = Arc::new(AtomicU64::new(0));
    let moved = Arc::clone(&moved_ms);
    let now = move || BootInstant::from_start(Duration::from_millis(1_000 + moved.load(Ordering::SeqCst)));
    (Clock::new(now), moved_ms)
}

/// The first poll of a request is made by its caller, whose runtime may be another one: nothing of the request depends
/// on it.
#[test]
fn request_of_a_caller_whose_runtime_ends_is_driven_by_the_keeper() {
    let _counted = Counted::begin();
    let (keepers, server) = (runtime(), MemoryServer::new());
    let client = keepers.block_on(async { LockClient::builder(server.backend()).build().await.unwrap() });
    let lock = client.lock(NAME).unwrap();
    server.hold_requests();
    let callers = runtime();
    callers.block_on(async {
        let mut acquire = std::pin::pin!(lock.acquire());
        tokio::select! {
            biased;
            outcome = &mut acquire => panic!("{outcome:?}"),
            () = tokio::task::yield_now() => {}
        }
        assert_eq!(server.held_requests(), 1, "sent within the first poll");
    });
    drop(callers);
    server.deliver_requests();
    keepers.block_on(async {
        let free = async { while lock.try_acquire().await.unwrap().is_none() {} };
        tokio::time::timeout(HANG, free).await.expect("the abandoned grant is released");
        client.close().await.unwrap();
    });
}

/// A keeper on its own thread serves callers without timers.
#[test]
fn caller_on_a_runtime_without_timers_returns_in_time() {
    let _counted = Counted::begin();
    let bare = Builder::new_current_thread().build().unwrap();
    bare.block_on(async {
        let client = LockClient::builder(MemoryServer::new().backend()).own_thread().build().await.unwrap();
        let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
        let time_limit = Duration::from_millis(50);
        assert!(client.lock(NAME).unwrap().acquire_timeout(time_limit).await.unwrap().is_none());
        guard.release().await.unwrap();
        client.close().await.unwrap();
    });
}

/// The keeper's runtime has the timer then, for as long as the call lasts.
#[test]
fn timer_of_a_caller_on_a_runtime_without_timers_ends_with_its_call() {
    let _counted = Counted::begin();
    let keepers = runtime();
    let (client, _guard) = keepers.block_on(async {
        let client = LockClient::builder(MemoryServer::new().backend()).ttl(TTL * 60).build().await.unwrap();
        let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
        settle().await;
        (client, guard)
    });
    let tasks = || keepers.handle().metrics().num_alive_tasks();
    let before = tasks();
    let bare = Builder::new_current_thread().build().unwrap();
    bare.block_on(async {
        let lock = client.lock(NAME).unwrap();
        let mut waiting = std::pin::pin!(lock.acquire_timeout(HANG * 100));
        assert!(poll_in_task(waiting.as_mut()).await.is_pending());
        assert!(tasks() > before, "no timer");
    });
    keepers.block_on(settle());
    assert_eq!(tasks(), before, "tasks of the keeper's runtime");
}
