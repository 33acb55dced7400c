//! The clock is read for all holds of a client by one task, in time and not more often than needed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::common::suspendable_clock;
use crate::common::{NAME, TTL, client, eventually, in_time, kind, settle};
use crate::scripted::Scripted;
use lockkit_core::{
    Clock, ErrorKind, LockClient, Status, backend::Lifetime, limits::CLOCK_READ_PAUSE_MAX,
    memory::MemoryServer,
};
use tokio::time::{Instant, sleep};

/// Nobody waits for its loss or reads it.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn suspended_hold_that_nobody_waits_for_is_released_within_a_second() {
    let ttl = Duration::from_secs(60);
    let (clock, suspended_ms) = suspendable_clock();
    let backend = Scripted::new(Lifetime::Hold);
    let client = LockClient::builder(backend.clone()).ttl(ttl).clock(clock).build().await.unwrap();
    let _guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    settle().await;
    suspended_ms.store(3 * ttl.as_millis() as u64, Ordering::SeqCst);
    let released = || backend.script.releases.load(Ordering::SeqCst) == 1;
    eventually(CLOCK_READ_PAUSE_MAX, "it is released", released).await;
}

/// Returns a clock, and how often it was read.
fn counted_clock() -> (Clock, Arc<AtomicU64>) {
    let (clock, count) = (Clock::tokio(), Arc::new(AtomicU64::new(0)));
    let readings = Arc::clone(&count);
    let counted = move || {
        readings.fetch_add(1, Ordering::SeqCst);
        clock.now()
    };
    (Clock::new(counted), count)
}

/// Otherwise each acquire of a client with many holds would visit all of them.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn hold_that_ends_after_the_next_check_does_not_wake_the_clock_watch() {
    let (clock, count) = counted_clock();
    let backend = MemoryServer::new().backend();
    let client = LockClient::builder(backend).ttl(TTL * 10).clock(clock).build().await.unwrap();
    let _first = client.lock("first").unwrap().acquire().await.unwrap();
    settle().await;
    let _next = client.lock("next").unwrap().acquire().await.unwrap();
    let before = count.load(Ordering::SeqCst);
    settle().await;
    assert_eq!(count.load(Ordering::SeqCst), before);
}

/// Between two heartbeats, the clock is read once a second for all holds of a client.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn clock_is_read_as_often_for_many_holds_as_for_one() {
    let mut readings = Vec::new();
    for holds in [1, 500] {
        let (clock, count) = counted_clock();
        let backend = Scripted::new(Lifetime::Hold);
        let client = LockClient::builder(backend).ttl(TTL * 10).clock(clock).build().await.unwrap();
        let mut guards = Vec::new();
        for number in 0..holds {
            guards.push(client.lock(format!("lock {number}")).unwrap().acquire().await.unwrap());
        }
        settle().await;
        let before = count.load(Ordering::SeqCst);
        sleep(Duration::from_secs(10)).await;
        readings.push(count.load(Ordering::SeqCst) - before);
        client.close().await.unwrap();
    }
    assert_eq!(readings[0], readings[1]);
    assert!(readings[0] >= 10, "{readings:?}");
}

/// A hold whose end comes before the next regular check is visited in time.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn short_hold_next_to_a_long_one_ends_in_time() {
    let client = client(&MemoryServer::new()).await;
    let long = client.lock("long").unwrap().acquire().await.unwrap();
    sleep(Duration::from_millis(100)).await;
    let longest = Duration::from_millis(300);
    let _forgotten = client.lock(NAME).unwrap().max_hold(longest).acquire().await.unwrap();
    let start = Instant::now();
    // Nobody reads the guard; the other caller waits for the release.
    let lock = client.lock(NAME).unwrap();
    let next = in_time(lock.acquire()).await.unwrap();
    assert!(start.elapsed() <= longest + Duration::from_millis(2), "{:?}", start.elapsed());
    assert!(next.is_held() && long.is_held());
}

/// Without a hold, no task but the session task reads the clock, and its next heartbeat is many seconds away.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn idle_session_that_expires_during_a_suspend_is_lost_within_a_second() {
    let ttl = Duration::from_secs(60);
    let server = MemoryServer::new();
    let (clock, suspended_ms) = suspendable_clock();
    let client = LockClient::builder(server.backend()).ttl(ttl).clock(clock).build().await.unwrap();
    let mut status = client.status();
    settle().await;
    suspended_ms.store(3 * ttl.as_millis() as u64, Ordering::SeqCst);
    let start = Instant::now();
    while in_time(status.changed()).await != Status::Lost {}
    assert!(start.elapsed() <= CLOCK_READ_PAUSE_MAX, "{:?}", start.elapsed());
}

/// The heartbeat was answered in its own lifetime, but after the deadline of the one before.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn heartbeat_that_is_answered_after_the_deadline_revives_no_session() {
    let server = MemoryServer::new();
    let (clock, suspended_ms) = suspendable_clock();
    let client = LockClient::builder(server.backend()).ttl(TTL).clock(clock).build().await.unwrap();
    let mut status = client.status();
    server.hold_requests();
    sleep(TTL / 3 + Duration::from_millis(10)).await;
    assert_eq!(server.held_requests(), 1, "a heartbeat is under way");
    suspended_ms.store(TTL.as_millis() as u64 * 9 / 10, Ordering::SeqCst);
    server.deliver_requests();
    while in_time(status.changed()).await != Status::Lost {}
}

/// No call has read the clock before.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn release_that_finds_the_deadline_passed_is_sent() {
    let (clock, suspended_ms) = suspendable_clock();
    let backend = Scripted::new(Lifetime::Hold);
    let client = LockClient::builder(backend.clone()).ttl(TTL).clock(clock).build().await.unwrap();
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    suspended_ms.store(3 * TTL.as_millis() as u64, Ordering::SeqCst);
    assert_eq!(kind(guard.release().await), ErrorKind::Lost);
    settle().await;
    assert_eq!(backend.script.releases.load(Ordering::SeqCst), 1);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn max_hold_counts_from_the_grant_and_not_from_the_last_heartbeat() {
    let client = client(&MemoryServer::new()).await;
    sleep(TTL / 4).await;
    let guard = client.lock(NAME).unwrap().max_hold(TTL / 2).acquire().await.unwrap();
    let start = Instant::now();
    in_time(guard.lost()).await;
    assert!(start.elapsed() >= TTL / 2, "{:?}", start.elapsed());
}

/// While no hold is left, the clock is not read, and no next reading is due.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn short_hold_after_a_pause_without_holds_ends_in_time() {
    let client = client(&MemoryServer::new()).await;
    let earlier = client.lock("earlier").unwrap().acquire().await.unwrap();
    settle().await;
    earlier.release().await.unwrap();
    sleep(CLOCK_READ_PAUSE_MAX * 2).await;
    let longest = Duration::from_millis(300);
    let _forgotten = client.lock(NAME).unwrap().max_hold(longest).acquire().await.unwrap();
    let start = Instant::now();
    let _ = in_time(client.lock(NAME).unwrap().acquire()).await.unwrap();
    assert!(start.elapsed() <= longest + Duration::from_millis(2), "{:?}", start.elapsed());
}

/// It is not a whole number of seconds after the last event.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn silent_store_is_suspect_exactly_at_half_the_ttl() {
    let (backend, start) = (Scripted::new(Lifetime::Session), Instant::now());
    let builder = LockClient::builder(backend.clone()).ttl(TTL * 10).clock(Clock::tokio());
    let client = builder.build().await.unwrap();
    backend.script.heartbeats_wait.store(true, Ordering::SeqCst);
    let suspect = in_time(client.status().changed()).await;
    assert!(matches!(suspect, Status::Suspect { .. }), "{suspect:?}");
    let late = start.elapsed().abs_diff(client.ttl() / 2);
    assert!(late <= Duration::from_millis(10), "{:?} of {:?}", start.elapsed(), client.ttl());
}
