//! Helpers: clients of a memory server, and waits on a paused clock.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "for tests only; each file uses some of it"
)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use lockkit_core::{Clock, Error, ErrorKind, Lock, LockClient, LockName, memory::MemoryServer};

/// Time limit of a step that would hang, where the clock is not paused.
pub const HANG: Duration = Duration::from_secs(30);

pub const TTL: Duration = Duration::from_secs(6);
pub const NAME: &str = "orders/42";

/// Returns the number of tasks of this test's runtime.
pub fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

pub fn name() -> LockName {
    LockName::new(NAME).unwrap()
}

pub async fn client(server: &MemoryServer) -> LockClient {
    LockClient::builder(server.backend()).ttl(TTL).clock(Clock::tokio()).build().await.unwrap()
}

pub async fn lock_of_new_client(server: &MemoryServer) -> Lock {
    client(server).await.lock(NAME).unwrap()
}

/// Returns a clock that moves ahead of tokio's timers, as on a suspended machine, and by how many milliseconds it is ahead.
pub fn suspendable_clock() -> (Clock, Arc<AtomicU64>) {
    let (clock, ahead_ms) = (Clock::tokio(), Arc::new(AtomicU64::new(0)));
    let ahead = Arc::clone(&ahead_ms);
    (Clock::new(move || clock.now().after(Duration::from_millis(ahead.load(SeqCst)))), ahead_ms)
}

/// Runs all ready tasks without moving the clock.
pub async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

/// Lets the server answer the requests that are sent next, and holds back those that follow them.
pub async fn deliver_next(server: &MemoryServer) {
    settle().await;
    assert!(server.held_requests() > 0, "nothing was sent");
    server.deliver_requests();
    server.hold_requests();
}

/// Waits until `done` returns true, moving the paused clock in small steps; panics after `within`.
pub async fn eventually(within: Duration, what: &str, mut done: impl FnMut() -> bool) -> Duration {
    let start = tokio::time::Instant::now();
    loop {
        settle().await;
        if done() {
            return start.elapsed();
        }
        assert!(start.elapsed() <= within, "not within {within:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub fn kind<T: std::fmt::Debug>(outcome: Result<T, Error>) -> ErrorKind {
    outcome.unwrap_err().kind()
}

/// Waits for a future with a time limit, so that a hang fails the test.
pub async fn in_time<T>(awaited: impl Future<Output = T>) -> T {
    tokio::time::timeout(TTL * 10, awaited).await.expect("no hang")
}
