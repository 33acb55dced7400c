//! Calls that their caller has given up, and what they still count for.

#[path = "it/checked.rs"]
mod checked;
#[path = "it/common.rs"]
mod common;

use std::{
    future::Future,
    task::{Context, Waker},
    time::Duration,
};

use checked::Counted;
use common::{NAME, TTL, client, kind, settle};
use lockkit_core::{
    ErrorKind, LockClient, Owner,
    limits::{TRY_ANSWER_MAX, WAITERS_PER_CLIENT_MAX},
    memory::MemoryServer,
};
use tokio::time::Instant;

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn try_does_not_join_an_attempt_that_was_given_up() {
    let server = MemoryServer::new();
    let lock = client(&server).await.lock(NAME).unwrap().reentrant(&Owner::new());
    server.hold_requests();
    assert_eq!(kind(lock.acquire_timeout(Duration::from_millis(10)).await), ErrorKind::Unavailable);
    let start = Instant::now();
    assert_eq!(kind(lock.try_acquire().await), ErrorKind::Unavailable, "the server has not reported busy");
    assert!(start.elapsed() <= TRY_ANSWER_MAX + Duration::from_millis(10));
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn attempts_being_withdrawn_count_against_the_limit() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    server.hold_requests();
    for _ in 0..WAITERS_PER_CLIENT_MAX {
        let lock = client.lock(NAME).unwrap();
        let held = server.held_requests();
        let task = tokio::spawn(async move { lock.acquire().await });
        // Only what was sent must be withdrawn.
        while server.held_requests() == held {
            tokio::task::yield_now().await;
        }
        task.abort();
    }
    settle().await;
    let refused = client.lock(NAME).unwrap().acquire_timeout(TTL / 100).await.unwrap_err();
    assert!(refused.to_string().contains("are waiting already"), "{refused}");
}

#[test]
fn a_build_dropped_while_its_thread_starts_leaves_no_thread() {
    let _counted = Counted::begin();
    let threads = || {
        std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .filter(|name| name.trim() == "lockkit-keeper")
            .count()
    };
    let server = MemoryServer::new();
    let begin_and_drop = || {
        let mut build = Box::pin(LockClient::builder(server.backend()).own_thread().build());
        let mut context = Context::from_waker(Waker::noop());
        let begun = build.as_mut().poll(&mut context).is_pending();
        std::thread::sleep(Duration::from_millis(200));
        begun
    };
    // The new thread may have finished before the first poll returns.
    while !begin_and_drop() {}
    let start = std::time::Instant::now();
    while threads() > 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "the thread is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
}
