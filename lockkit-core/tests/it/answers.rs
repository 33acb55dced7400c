//! How the keeper handles answers that only some backends give, and late ones.
use std::{sync::atomic::Ordering, time::Duration};

use crate::common::{NAME, TTL, eventually, in_time, kind, settle};
use crate::scripted::Scripted;
use lockkit_core::{
    Clock, ErrorKind, LockClient, Status,
    backend::Lifetime,
    limits::{RELEASE_ANSWER_MAX, RETRY_PAUSE_MAX, RETRY_PAUSE_MIN},
    memory::MemoryServer,
};
use tokio::time::{Instant, advance, sleep, timeout};

/// What timers may add on a paused clock.
const SLACK: Duration = Duration::from_millis(10);

#[tokio::test(crate = "crate::checked", start_paused = true)]
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

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn session_that_a_heartbeat_reports_gone_is_lost() {
    let backend = Scripted::new(Lifetime::Session);
    let client = backend.client().await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let start = Instant::now();
    backend.script.session_gone.store(true, Ordering::SeqCst);
    assert_eq!(in_time(guard.lost()).await.kind(), ErrorKind::Lost);
    assert!(start.elapsed() <= client.ttl() / 3 + SLACK, "{:?}", start.elapsed());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn claims_whose_entries_vanish_are_retried_with_pauses() {
    let backend = Scripted::new(Lifetime::Session);
    let lock = backend.client().await.lock(NAME).unwrap();
    backend.script.entries_vanish.store(true, Ordering::SeqCst);
    assert!(timeout(TTL * 10, lock.acquire()).await.is_err());
    let claims = backend.script.claims.load(Ordering::SeqCst);
    // After the first two seconds, each pause lasts for a second to two.
    assert!((30..=66).contains(&claims), "{claims} claims in {:?}", TTL * 10);
}

/// A claim is as short as those that begin no pauses again; only with the pause before it, it would be longer.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn pauses_between_slow_claims_grow_too() {
    let backend = Scripted::new(Lifetime::Session);
    let lock = backend.client().await.lock(NAME).unwrap();
    let takes = RETRY_PAUSE_MAX - RETRY_PAUSE_MIN * 2;
    backend.script.vanish_takes_ms.store(takes.as_millis() as u64, Ordering::SeqCst);
    backend.script.entries_vanish.store(true, Ordering::SeqCst);
    assert!(timeout(TTL * 10, lock.acquire()).await.is_err());
    let claims = backend.script.claims.load(Ordering::SeqCst);
    // 18 to 23 with pauses of a second to two, after the first five; 29 or more with the first pauses only.
    assert!((15..=25).contains(&claims), "{claims} claims in {:?}", TTL * 10);
}

/// A claim in the next session would fail in the same way.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn denial_is_returned_although_its_session_has_ended() {
    for failure in [ErrorKind::Denied, ErrorKind::InvalidConfig, ErrorKind::Unexpected] {
        let backend = Scripted::new(Lifetime::Session);
        let lock = backend.client().await.lock(NAME).unwrap();
        *backend.script.claim_failure.lock().unwrap() = Some(failure);
        assert_eq!(kind(in_time(lock.acquire()).await), failure);
        assert_eq!(backend.script.claims.load(Ordering::SeqCst), 1);
    }
}

/// `None` would say that another client has the lock.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn wanted_claim_that_the_store_gives_up_is_an_error() {
    let backend = Scripted::new(Lifetime::Session);
    let lock = backend.client().await.lock(NAME).unwrap();
    backend.script.claims_given_up.store(true, Ordering::SeqCst);
    assert_eq!(kind(in_time(lock.acquire_timeout(TTL)).await), ErrorKind::Unexpected);
    assert_eq!(kind(in_time(lock.acquire()).await), ErrorKind::Unexpected);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn first_heartbeat_is_due_from_the_sending_of_the_open() {
    let backend = Scripted::new(Lifetime::Session);
    // Not long enough that the session is renewed before use.
    backend.script.open_takes_ms.store(TTL.as_millis() as u64 / 3, Ordering::SeqCst);
    let client = backend.client().await;
    let mut status = client.status();
    let changed = timeout(client.ttl(), status.changed()).await;
    assert!(changed.is_err(), "{changed:?}");
}

/// Holds have no lifetime here, so the pause ends nothing.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn heartbeats_missed_in_a_pause_of_the_process_are_not_repeated() {
    let backend = Scripted::new(Lifetime::Process);
    let _client = backend.client().await;
    advance(TTL * 100).await;
    settle().await;
    let heartbeats = backend.script.heartbeats.load(Ordering::SeqCst);
    assert!((1..=2).contains(&heartbeats), "{heartbeats} heartbeats at once");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn renewed_session_resets_the_pauses_between_opens() {
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

/// The ttl is longer than a caller waits here.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn refused_release_returns_the_reason_at_its_time_limit() {
    let backend = Scripted::new(Lifetime::Session);
    let builder = LockClient::builder(backend.clone()).ttl(RELEASE_ANSWER_MAX * 3).clock(Clock::tokio());
    let guard = builder.build().await.unwrap().lock(NAME).unwrap().acquire().await.unwrap();
    backend.script.releases_refused.store(true, Ordering::SeqCst);
    let start = Instant::now();
    assert_eq!(kind(in_time(guard.release()).await), ErrorKind::Denied);
    assert!(start.elapsed() <= RELEASE_ANSWER_MAX + SLACK, "{:?}", start.elapsed());
}

/// A heartbeat whose answer was lost may have renewed the session.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn lost_session_is_closed_even_a_ttl_after_its_last_answer() {
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

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn release_that_fails_in_several_ways_returns_its_last_error() {
    let backend = Scripted::new(Lifetime::Session);
    let builder = LockClient::builder(backend.clone()).ttl(RELEASE_ANSWER_MAX * 3).clock(Clock::tokio());
    let guard = builder.build().await.unwrap().lock(NAME).unwrap().acquire().await.unwrap();
    backend.script.silent.store(true, Ordering::SeqCst);
    let (released, ()) = tokio::join!(guard.release(), async {
        sleep(RELEASE_ANSWER_MAX / 2).await;
        backend.script.releases_refused.store(true, Ordering::SeqCst);
        backend.script.silent.store(false, Ordering::SeqCst);
    });
    assert_eq!(kind(released), ErrorKind::Denied);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn claim_that_is_given_up_in_its_pause_ends_at_once() {
    let backend = Scripted::new(Lifetime::Session);
    let client = backend.client().await;
    let lock = client.lock(NAME).unwrap();
    backend.script.entries_vanish.store(true, Ordering::SeqCst);
    assert!(timeout(RETRY_PAUSE_MIN / 2, lock.acquire()).await.is_err());
    settle().await;
    assert!(format!("{client:?}").contains("parked: Parked { is_taken: false"), "{client:?}");
    sleep(TTL).await;
    assert_eq!(backend.script.claims.load(Ordering::SeqCst), 1);
}

/// The grant would be another client's in the meantime.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn claim_that_has_waited_begins_its_pauses_again() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let lock = backend.client().await.lock(NAME).unwrap();
    let claims = || script.claims.load(Ordering::SeqCst);
    script.entries_vanish.store(true, Ordering::SeqCst);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    sleep(TTL * 3).await;
    let before = claims();
    script.acquires_silent.store(true, Ordering::SeqCst);
    eventually(TTL, "a claim that waits", || claims() > before).await;
    sleep(TTL).await;
    let before = claims();
    script.acquires_silent.store(false, Ordering::SeqCst);
    // The first pause lasts for twice the least one at most.
    sleep(RETRY_PAUSE_MIN * 5 / 2).await;
    assert_eq!(claims(), before + 1, "after pauses of a second");
    script.entries_vanish.store(false, Ordering::SeqCst);
    assert!(in_time(waiting).await.unwrap().unwrap().is_held());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn hold_that_the_store_cannot_pin_is_refused_without_a_claim() {
    let backend = Scripted::new(Lifetime::Session);
    let lock = backend.client().await.lock(NAME).unwrap().hold_at_least(TTL);
    assert_eq!(kind(in_time(lock.acquire()).await), ErrorKind::Unsupported);
    assert_eq!(backend.script.claims.load(Ordering::SeqCst), 0);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn old_renewal_takes_nothing_from_session_and_hold() {
    let backend = Scripted::new(Lifetime::Session);
    let client = backend.client().await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    sleep(client.ttl() * 2).await;
    let heartbeats = || backend.script.heartbeats.load(Ordering::SeqCst);
    let before = heartbeats();
    backend.script.renewals_are_old.store(true, Ordering::SeqCst);
    eventually(TTL, "an old answer", || heartbeats() > before).await;
    assert!(guard.is_held(), "{:?}", guard.check());
    assert_eq!(client.status().current(), Status::Connected);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn late_failure_of_a_heartbeat_does_not_put_the_next_one_off() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    let interval = client.ttl() / 3;
    script.heartbeats_wait.store(true, Ordering::SeqCst);
    script.silent.store(true, Ordering::SeqCst);
    sleep(interval * 19 / 10).await;
    assert_eq!(script.heartbeats.load(Ordering::SeqCst), 1, "sent after one interval");
    script.heartbeat_answers.notify_one();
    sleep(interval / 5).await;
    assert_eq!(script.heartbeats.load(Ordering::SeqCst), 2, "sent after two intervals");
    script.silent.store(false, Ordering::SeqCst);
    script.heartbeat_answers.notify_one();
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn failed_heartbeat_of_a_short_ttl_is_repeated_after_the_least_pause() {
    let server = MemoryServer::new();
    // A fourth of its interval is half of the least pause.
    let builder = LockClient::builder(server.backend()).ttl(RETRY_PAUSE_MIN * 6).clock(Clock::tokio());
    let client = builder.build().await.unwrap();
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    server.lose_replies(usize::MAX);
    in_time(guard.lost()).await;
    assert_eq!(server.renewed_claims(), 4, "at 100, 150, 200 and 250 of 295 ms");
    server.lose_replies(0);
}
