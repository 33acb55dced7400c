//! Releases are retried until the store confirms them, and dropping a guard needs no runtime.

use std::{sync::mpsc, time::Duration};

use crate::cancel_safety::poll_once;
use crate::checked::Counted;
use crate::common::{NAME, TTL, client, eventually, kind, lock_of_new_client, name, settle};
use lockkit_core::{ErrorKind, LockClient, limits::RELEASE_ANSWER_MAX, memory::MemoryServer};
use tokio::time::{Instant, sleep};

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn release_whose_reply_is_lost_is_retried() {
    let server = MemoryServer::new();
    let guard = lock_of_new_client(&server).await.acquire().await.unwrap();
    server.lose_replies(5);
    guard.release().await.unwrap();
    assert!(server.is_empty());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn release_in_an_outage_returns_in_time_and_is_done_afterwards() {
    let server = MemoryServer::new();
    let client = LockClient::builder(server.backend())
        .ttl(Duration::from_secs(60))
        .clock(lockkit_core::Clock::tokio())
        .build()
        .await
        .unwrap();
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    server.hold_requests();
    let start = Instant::now();
    assert_eq!(kind(guard.release().await), ErrorKind::Unavailable);
    assert!(start.elapsed() <= RELEASE_ANSWER_MAX + Duration::from_millis(10));
    assert!(server.inspect(&name()).holder.is_some());
    server.deliver_requests();
    eventually(Duration::from_secs(1), "released after the outage", || server.is_empty()).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn nothing_renews_a_hold_after_its_release() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    guard.release().await.unwrap();
    let asked = server.renewed_claims();
    sleep(TTL * 3).await;
    assert_eq!(server.renewed_claims(), asked, "heartbeats continue without the released hold");
    assert_eq!(client.status().current(), lockkit_core::Status::Connected);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn hold_being_released_is_not_renewed() {
    let server = MemoryServer::new();
    let guard = lock_of_new_client(&server).await.acquire().await.unwrap();
    server.lose_replies(usize::MAX);
    let releasing = tokio::spawn(guard.release());
    settle().await;
    let asked = server.renewed_claims();
    sleep(TTL / 2).await;
    assert_eq!(server.renewed_claims(), asked);
    server.lose_replies(0);
    releasing.await.unwrap().unwrap();
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_dropped_guard_releases_in_the_background() {
    let server = MemoryServer::new();
    let lock = lock_of_new_client(&server).await;
    drop(lock.acquire().await.unwrap());
    eventually(Duration::from_millis(100), "released", || server.is_empty()).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn the_last_handle_dropped_with_its_guard_still_releases() {
    let server = MemoryServer::new();
    let guard = lock_of_new_client(&server).await.acquire().await.unwrap();
    drop(guard);
    eventually(Duration::from_millis(100), "released and closed", || {
        server.is_empty() && server.sessions() == 0
    })
    .await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_panic_while_holding_releases() {
    let server = MemoryServer::new();
    let lock = lock_of_new_client(&server).await;
    let panicking = tokio::spawn(async move {
        let _guard = lock.acquire().await.unwrap();
        panic!("the work failed");
    });
    assert!(panicking.await.unwrap_err().is_panic());
    eventually(Duration::from_millis(100), "released", || server.is_empty()).await;
}

#[test]
fn a_guard_dropped_outside_any_runtime_releases() {
    let _counted = Counted::begin();
    let server = MemoryServer::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let guard = runtime.block_on(async { lock_of_new_client(&server).await.acquire().await.unwrap() });
    drop(guard);
    runtime.block_on(async {
        let free = async {
            while !server.is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), free).await.expect("released");
    });
}

#[test]
fn guard_that_outlives_its_runtime_is_lost() {
    let _counted = Counted::begin();
    let server = MemoryServer::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (client, guard) = runtime.block_on(async {
        let client = client(&server).await;
        let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
        (client, guard)
    });
    drop(runtime);
    assert!(!guard.is_held());
    let (sender, outcome) = mpsc::channel();
    // On a separate thread, so that a hang fails the test instead of blocking it.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let lock = client.lock("another").unwrap();
            let kinds = [
                kind(lock.acquire().await),
                kind(lock.try_acquire().await),
                kind(lock.acquire_timeout(TTL).await),
                kind(client.inspect(NAME).await),
                kind(client.close().await),
            ];
            sender.send((kinds, kind(guard.release().await))).unwrap();
        });
    });
    let (closed, lost) = outcome.recv_timeout(Duration::from_secs(30)).expect("nothing hangs");
    assert_eq!(closed, [ErrorKind::Closed; 5]);
    assert_eq!(lost, ErrorKind::Lost);
}

/// The release waits behind that of a dropped guard when the keeper's runtime ends.
#[test]
fn release_that_was_not_polled_ends_with_the_runtime() {
    let _counted = Counted::begin();
    let keepers = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_client, dropped, released) = keepers.block_on(async {
        let client = client(&MemoryServer::new()).await;
        let [dropped, released] = ["dropped", "released"].map(|name| client.lock(name).unwrap());
        let guards = (dropped.acquire().await.unwrap(), released.acquire().await.unwrap());
        (client, guards.0, guards.1)
    });
    drop(dropped);
    let callers =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    callers.block_on(async {
        let start = Instant::now();
        let mut releasing = Box::pin(released.release());
        assert!(poll_once(releasing.as_mut()).is_pending());
        keepers.shutdown_background();
        assert_eq!(kind(releasing.await), ErrorKind::Closed);
        assert_eq!(start.elapsed(), Duration::ZERO);
    });
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_forgotten_guard_is_bounded_by_max_hold() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let lock = client.lock(NAME).unwrap();
    let longest = TTL * 4;
    let _forgotten = lock.clone().max_hold(longest).acquire().await.unwrap();
    let start = Instant::now();
    let guard = lock.acquire().await.unwrap();
    assert!(start.elapsed() >= longest - Duration::from_millis(10), "{:?}", start.elapsed());
    assert!(start.elapsed() <= longest + Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(guard.is_held());
}

/// On several threads, where the caller runs while the keeper is still settling the grant.
#[tokio::test(crate = "crate::checked", flavor = "multi_thread", worker_threads = 4)]
async fn release_right_after_the_grant_returns_when_it_is_done() {
    const ROUNDS: u32 = 3_000;
    let server = MemoryServer::new();
    let client = LockClient::builder(server.backend()).build().await.unwrap();
    for round in 0..ROUNDS {
        client.lock(NAME).unwrap().acquire().await.unwrap().release().await.unwrap();
        assert!(server.inspect(&name()).holder.is_none(), "released before it was, in round {round}");
    }
}
