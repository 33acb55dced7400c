//! Deadlines count from the sending of a request, and a loss is final.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::common::{
    NAME, TTL, client, eventually, in_time, kind, lock_of_new_client, name, settle, suspendable_clock,
};
use crate::scripted::Scripted;
use lockkit_core::{
    ErrorKind, LockClient, Owner, Status, backend::Lifetime, limits::CLOCK_READ_PAUSE_MAX,
    memory::MemoryServer,
};
use tokio::time::{Instant, advance, sleep};

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_hold_ends_at_its_deadline_when_the_server_falls_silent() {
    let server = MemoryServer::new();
    let guard = lock_of_new_client(&server).await.acquire().await.unwrap();
    server.hold_requests();
    let start = Instant::now();
    let error = guard.lost().await;
    assert_eq!(error.kind(), ErrorKind::Lost);
    // The last acknowledged heartbeat was sent with the session: 99 % of the ttl, less 2 ms, and one timer tick.
    let expected = TTL * 99 / 100 - Duration::from_millis(2);
    assert!(start.elapsed() <= expected + Duration::from_millis(2), "{:?}", start.elapsed());
    assert!(start.elapsed() + Duration::from_millis(5) >= expected, "{:?}", start.elapsed());
    assert!(!guard.is_held());
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn is_held_turns_false_at_the_deadline_although_no_task_has_run() {
    let server = MemoryServer::new();
    let guard = lock_of_new_client(&server).await.acquire().await.unwrap();
    // As after a stop of the process: the clock has moved, and no task has been polled.
    advance(TTL).await;
    assert!(!guard.is_held());
    assert_eq!(kind(guard.release().await), ErrorKind::Lost);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn renewals_keep_a_hold_for_many_ttls() {
    let server = MemoryServer::new();
    let guard = lock_of_new_client(&server).await.acquire().await.unwrap();
    sleep(TTL * 20).await;
    assert!(guard.is_held());
    assert!(guard.remaining() > TTL / 2);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_renewal_counts_from_its_sending_not_from_its_receipt() {
    let server = MemoryServer::new();
    let guard = lock_of_new_client(&server).await.acquire().await.unwrap();
    // Just before the first heartbeat, hold its request back for most of the time that the backend waits for an answer.
    sleep(TTL / 3 - Duration::from_millis(10)).await;
    server.hold_requests();
    let way = TTL / 8;
    sleep(Duration::from_millis(10) + way).await;
    assert_eq!(server.held_requests(), 1, "the heartbeat is on its way");
    server.deliver_requests();
    settle().await;
    let from_sending = TTL * 99 / 100 - way;
    assert!(guard.remaining() <= from_sending, "{:?} is more than {from_sending:?}", guard.remaining());
    assert!(guard.remaining() > TTL / 2, "it was renewed: {:?}", guard.remaining());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_late_answer_revives_nothing() {
    let server = MemoryServer::new();
    let guard = lock_of_new_client(&server).await.acquire().await.unwrap();
    let stopped = guard.run(std::future::pending::<()>());
    server.hold_requests();
    assert_eq!(stopped.await.unwrap_err().error().kind(), ErrorKind::Lost);
    server.deliver_requests();
    sleep(TTL * 3).await;
    assert!(!guard.is_held());
    assert_eq!(guard.lost().await.kind(), ErrorKind::Lost);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_silent_server_makes_the_client_suspect_at_half_the_ttl_and_connected_again() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let mut status = client.status();
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    assert_eq!(status.current(), Status::Connected);
    let start = Instant::now();
    server.hold_requests();
    loop {
        if matches!(status.changed().await, Status::Suspect { .. }) {
            break;
        }
    }
    assert!(start.elapsed() >= TTL / 2 - Duration::from_millis(10), "{:?}", start.elapsed());
    assert!(start.elapsed() <= TTL / 2 + Duration::from_millis(10), "{:?}", start.elapsed());
    assert!(guard.is_held());
    server.deliver_requests();
    assert_eq!(status.changed().await, Status::Connected);
    sleep(TTL).await;
    assert!(guard.is_held(), "a pause shorter than the deadline loses nothing");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_few_lost_renewals_do_no_harm() {
    let server = MemoryServer::new();
    let guard = lock_of_new_client(&server).await.acquire().await.unwrap();
    for _ in 0..10 {
        server.lose_replies(1);
        sleep(TTL / 2).await;
        assert!(guard.is_held());
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn session_of_an_expired_hold_is_abandoned() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let mut status = client.status();
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    // Every reply is lost but every request arrives: the server still renews what the client has given up.
    server.lose_replies(usize::MAX);
    guard.lost().await;
    let until_abandoned = async { while status.changed().await != Status::Lost {} };
    tokio::time::timeout(TTL, until_abandoned).await.expect("the session is abandoned");
    server.lose_replies(0);
    eventually(Duration::from_secs(3), "the dead hold's entry is gone", || {
        server.inspect(&name()).holder.is_none()
    })
    .await;
    assert!(!guard.is_held());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn an_acquire_that_outlives_its_session_is_granted_in_the_next_one() {
    let server = MemoryServer::new();
    let lock = lock_of_new_client(&server).await;
    server.hold_requests();
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    sleep(TTL * 3 / 2).await;
    server.deliver_requests();
    let guard = acquiring.await.unwrap().unwrap();
    assert!(guard.is_held());
    assert!(guard.remaining() > TTL / 2, "a fresh lifetime: {:?}", guard.remaining());
    assert!(server.inspect(&name()).waiters.is_empty());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn hold_that_the_server_ends_is_lost_at_once() {
    let server = MemoryServer::new();
    let guard = lock_of_new_client(&server).await.acquire().await.unwrap();
    let start = Instant::now();
    assert!(server.expire_holder(&name()));
    guard.lost().await;
    assert!(start.elapsed() < Duration::from_millis(10));
    let next = lock_of_new_client(&server).await.acquire().await.unwrap();
    assert!(next.token() > guard.token());
    drop(guard);
    settle().await;
    assert!(next.is_held(), "the release of a lost hold does not touch the next one");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn deleted_entry_loses_only_its_lock_within_one_heartbeat() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let deleted = client.lock(NAME).unwrap().acquire().await.unwrap();
    let other = client.lock("other").unwrap().acquire().await.unwrap();
    server.delete_entries(&name());
    let start = Instant::now();
    deleted.lost().await;
    assert!(start.elapsed() <= TTL / 3 + Duration::from_millis(10));
    sleep(TTL).await;
    assert!(other.is_held());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn suspended_time_counts() {
    let server = MemoryServer::new();
    let (clock, suspended_ms) = suspendable_clock();
    let client = LockClient::builder(server.backend()).ttl(TTL).clock(clock).build().await.unwrap();
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    suspended_ms.store(3 * TTL.as_millis() as u64, Ordering::SeqCst);
    assert!(!guard.is_held(), "no timer has run, and no I/O was done");
}

/// No call reads the guard before, so only a clock check can find the loss.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_loss_during_a_suspend_is_reported_within_a_second_of_the_timers() {
    let ttl = Duration::from_secs(60);
    let server = MemoryServer::new();
    let (clock, suspended_ms) = suspendable_clock();
    let client = LockClient::builder(server.backend()).ttl(ttl).clock(clock).build().await.unwrap();
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let mut status = client.status();
    let losing = tokio::spawn(async move { guard.lost().await });
    settle().await;
    suspended_ms.store(3 * ttl.as_millis() as u64, Ordering::SeqCst);
    let start = Instant::now();
    losing.await.unwrap();
    assert!(start.elapsed() <= Duration::from_secs(1), "{:?}", start.elapsed());
    while status.changed().await != Status::Lost {}
    assert!(start.elapsed() <= Duration::from_secs(1), "{:?}", start.elapsed());
}

/// Only a task that waits for the hold reads the clock in time: such a session has no deadline, and the next heartbeat
/// is many seconds away.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn hold_with_its_own_lifetime_is_lost_within_a_second_of_a_suspend() {
    let ttl = Duration::from_secs(60);
    let (clock, suspended_ms) = suspendable_clock();
    let client =
        LockClient::builder(Scripted::new(Lifetime::Hold)).ttl(ttl).clock(clock).build().await.unwrap();
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let losing = tokio::spawn(async move { guard.lost().await });
    settle().await;
    suspended_ms.store(3 * ttl.as_millis() as u64, Ordering::SeqCst);
    let start = Instant::now();
    assert_eq!(in_time(losing).await.unwrap().kind(), ErrorKind::Lost);
    assert!(start.elapsed() <= CLOCK_READ_PAUSE_MAX, "{:?}", start.elapsed());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn loss_that_one_reader_finds_wakes_the_other_waiters_at_once() {
    let backend = Scripted::new(Lifetime::Hold);
    let (clock, suspended_ms) = suspendable_clock();
    let client = LockClient::builder(backend.clone()).ttl(TTL).clock(clock).build().await.unwrap();
    let guard = Arc::new(client.lock(NAME).unwrap().acquire().await.unwrap());
    let waiting = Arc::clone(&guard);
    let waiting = tokio::spawn(async move { waiting.lost().await });
    settle().await;
    // The confirmation of the release is not what wakes them.
    backend.script.silent.store(true, Ordering::SeqCst);
    suspended_ms.store(3 * TTL.as_millis() as u64, Ordering::SeqCst);
    settle().await;
    assert!(!waiting.is_finished(), "no timer has run");
    assert!(!guard.is_held(), "this call is the first to read the clock");
    settle().await;
    assert!(waiting.is_finished(), "woken by the call, not by a timer");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_grant_that_arrives_after_its_deadline_is_released_and_not_returned() {
    let server = MemoryServer::new();
    let (clock, suspended_ms) = suspendable_clock();
    let client = LockClient::builder(server.backend()).ttl(TTL).clock(clock).build().await.unwrap();
    let lock = client.lock(NAME).unwrap();
    server.hold_requests();
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    settle().await;
    // The machine is suspended while the request is in flight; the answer arrives at once after it resumes.
    suspended_ms.store(3 * TTL.as_millis() as u64, Ordering::SeqCst);
    server.deliver_requests();
    let guard = acquiring.await.unwrap().unwrap();
    assert!(guard.is_held(), "a returned guard is held");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_hold_past_its_deadline_is_not_re_entered_although_no_task_has_run() {
    let server = MemoryServer::new();
    let (clock, suspended_ms) = suspendable_clock();
    let client = LockClient::builder(server.backend()).ttl(TTL).clock(clock).build().await.unwrap();
    let lock = client.lock(NAME).unwrap().reentrant(&Owner::new());
    let guard = lock.acquire().await.unwrap();
    suspended_ms.store(3 * TTL.as_millis() as u64, Ordering::SeqCst);
    let again = lock.acquire().await.unwrap();
    assert!(again.token() > guard.token(), "a new claim, a new token");
    assert!(again.is_held() && !guard.is_held());
}
