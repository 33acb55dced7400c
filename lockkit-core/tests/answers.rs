//! What a client makes of answers that only some backends give, and of late ones.
#![allow(clippy::unwrap_used, reason = "helpers of tests are not seen as tests")]

mod common;
#[path = "common/scripted.rs"]
mod scripted;

use std::{sync::atomic::Ordering, time::Duration};

use common::{NAME, TTL, eventually, in_time, kind, settle};
use lockkit_core::{
    Clock, ErrorKind, LockClient, Status,
    backend::Lifetime,
    limits::{RELEASE_ANSWER_MAX, RETRY_PAUSE_MIN},
};
use scripted::Scripted;
use tokio::time::{Instant, advance, sleep, timeout};

/// What timers may add on a paused clock.
const SLACK: Duration = Duration::from_millis(10);

#[tokio::test(start_paused = true)]
async fn grant_that_is_reported_lost_is_lost_at_once_and_alone() {
    let backend = Scripted::new(Lifetime::Hold);
    let client = backend.client().await;
    let kept = client.lock("other").unwrap().acquire().await.unwrap();
    let lost = client.lock(NAME).unwrap().acquire().await.unwrap();
    let start = Instant::now();
    backend.script.lose_grant.notify_one();
    assert_eq!(in_time(lost.lost()).await.kind(), ErrorKind::Lost);
    assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
    assert!(kept.is_held());
}

#[tokio::test(start_paused = true)]
async fn session_that_a_heartbeat_finds_gone_is_lost_by_that() {
    let backend = Scripted::new(Lifetime::Session);
    let client = backend.client().await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let start = Instant::now();
    backend.script.session_gone.store(true, Ordering::SeqCst);
    assert_eq!(in_time(guard.lost()).await.kind(), ErrorKind::Lost);
    assert!(start.elapsed() <= client.ttl() / 3 + SLACK, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn claims_whose_entries_vanish_are_made_anew_with_pauses() {
    let backend = Scripted::new(Lifetime::Session);
    let lock = backend.client().await.lock(NAME).unwrap();
    backend.script.entries_vanish.store(true, Ordering::SeqCst);
    assert!(timeout(TTL, lock.acquire()).await.is_err());
    let claims = backend.script.claims.load(Ordering::SeqCst);
    assert!((2..=12).contains(&claims), "{claims} claims in {TTL:?}");
}

#[tokio::test(start_paused = true)]
async fn denial_is_answered_although_its_session_has_ended() {
    let backend = Scripted::new(Lifetime::Session);
    let lock = backend.client().await.lock(NAME).unwrap();
    backend.script.denials_end_sessions.store(true, Ordering::SeqCst);
    assert_eq!(kind(in_time(lock.acquire()).await), ErrorKind::Denied);
    assert_eq!(backend.script.claims.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn first_heartbeat_is_due_from_the_sending_of_the_open() {
    let backend = Scripted::new(Lifetime::Session);
    // Not long enough for a session that is renewed before it is used.
    backend.script.open_takes_ms.store(TTL.as_millis() as u64 / 3, Ordering::SeqCst);
    let client = backend.client().await;
    let mut status = client.status();
    let changed = timeout(client.ttl(), status.changed()).await;
    assert!(changed.is_err(), "{changed:?}");
}

/// Where holds have no lifetime, and a pause ends nothing.
#[tokio::test(start_paused = true)]
async fn heartbeats_that_a_pause_of_the_process_has_missed_are_not_made_up_for() {
    let backend = Scripted::new(Lifetime::Process);
    let _client = backend.client().await;
    advance(TTL * 100).await;
    settle().await;
    let beats = backend.script.beats.load(Ordering::SeqCst);
    assert!((1..=2).contains(&beats), "{beats} heartbeats at once");
}

#[tokio::test(start_paused = true)]
async fn session_that_was_renewed_starts_the_pauses_between_opens_anew() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    let flap = || {
        script.flapping.store(true, Ordering::SeqCst);
        script.lose_session.notify_one();
    };
    flap();
    // The pauses grow to their bound.
    sleep(TTL * 2).await;
    script.flapping.store(false, Ordering::SeqCst);
    sleep(TTL).await;
    assert_eq!(client.status().current(), Status::Connected);
    let before = script.opened.load(Ordering::SeqCst);
    flap();
    sleep(RETRY_PAUSE_MIN * 8).await;
    let opened = script.opened.load(Ordering::SeqCst) - before;
    assert!(opened >= 3, "{opened} sessions");
}

/// Where the ttl is longer than a caller waits.
#[tokio::test(start_paused = true)]
async fn release_that_is_refused_says_so_also_before_its_ttl_has_passed() {
    let backend = Scripted::new(Lifetime::Session);
    let builder = LockClient::builder(backend.clone()).ttl(RELEASE_ANSWER_MAX * 3).clock(Clock::tokio());
    let guard = builder.build().await.unwrap().lock(NAME).unwrap().acquire().await.unwrap();
    backend.script.releases_refused.store(true, Ordering::SeqCst);
    let start = Instant::now();
    assert_eq!(kind(in_time(guard.release()).await), ErrorKind::Denied);
    assert!(start.elapsed() <= RELEASE_ANSWER_MAX + SLACK, "{:?}", start.elapsed());
}

/// A heartbeat whose answer was lost may have renewed it.
#[tokio::test(start_paused = true)]
async fn lost_session_is_closed_also_a_ttl_after_its_last_answer() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    let closed = || script.closed.load(Ordering::SeqCst);
    script.silent.store(true, Ordering::SeqCst);
    sleep(client.ttl() * 3 / 2).await;
    assert_eq!((script.opened.load(Ordering::SeqCst), closed()), (2, 0));
    script.silent.store(false, Ordering::SeqCst);
    eventually(client.ttl() / 2, "the first session is closed", || closed() == 1).await;
}
