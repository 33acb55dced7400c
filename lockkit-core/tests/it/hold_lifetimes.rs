//! What ends a hold: its own lifetime, its release only, or `max_hold`.

use std::{sync::atomic::Ordering, time::Duration};

use crate::common::{NAME, TTL, client, eventually, kind};
use crate::scripted::Scripted;
use lockkit_core::{ErrorKind, Status, backend::Lifetime, limits::RELEASE_ANSWER_MAX, memory::MemoryServer};
use tokio::time::{Instant, advance, sleep};

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn holds_with_own_lifetimes_end_alone() {
    let backend = Scripted::new(Lifetime::Hold);
    let script = &backend.script;
    let client = backend.client().await;
    let lock = client.lock(NAME).unwrap();
    let guard = lock.acquire().await.unwrap();
    sleep(TTL * 3).await;
    assert!(guard.is_held(), "renewed");
    script.silent.store(true, Ordering::SeqCst);
    let start = Instant::now();
    assert_eq!(guard.lost().await.kind(), ErrorKind::Lost);
    assert!(start.elapsed() <= client.ttl());
    let tried = || script.releases_tried.load(Ordering::SeqCst);
    eventually(TTL, "the hold is released", || tried() > 0).await;
    sleep(client.ttl() * 2).await;
    let tries = tried();
    sleep(client.ttl() * 2).await;
    assert_eq!(tried(), tries, "retries of the release have ended");
    script.silent.store(false, Ordering::SeqCst);
    eventually(TTL, "connected", || client.status().current() == Status::Connected).await;
    let next = lock.acquire().await.unwrap();
    sleep(TTL * 3).await;
    assert!(next.is_held());
    assert_eq!(script.opened.load(Ordering::SeqCst), 1, "the session was never replaced");
    client.close().await.unwrap();
    assert_eq!(kind(next.release().await), ErrorKind::Lost);
    assert_eq!(script.releases.load(Ordering::SeqCst), 1, "released before the session ended");
}

/// The store answers for the session, but not for the hold, as a cluster of which one master fails. It does so again after
/// the second regular heartbeat; the third one would come after the deadline.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn hold_without_an_answer_is_renewed_before_the_next_regular_heartbeat() {
    for lifetime in [Lifetime::Session, Lifetime::Hold] {
        let backend = Scripted::new(lifetime);
        let client = backend.client().await;
        let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
        let interval = client.ttl() / 3;
        backend.script.holds_unknown.store(true, Ordering::SeqCst);
        sleep(interval * 5 / 2).await;
        backend.script.holds_unknown.store(false, Ordering::SeqCst);
        sleep(interval * 2).await;
        assert!(guard.is_held(), "{lifetime:?}: {:?}", guard.check());
    }
}

/// Each hold, in whichever order a heartbeat carries them.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn one_hold_of_two_without_an_answer_brings_the_next_heartbeat_forward() {
    let backend = Scripted::new(Lifetime::Hold);
    let script = &backend.script;
    let client = backend.client().await;
    let _guards = [
        client.lock("a").unwrap().acquire().await.unwrap(),
        client.lock("b").unwrap().acquire().await.unwrap(),
    ];
    let interval = client.ttl() / 3;
    let heartbeats = || script.heartbeats.load(Ordering::SeqCst);
    for name in ["a", "b"] {
        *script.unknown_hold.lock().unwrap() = Some(name);
        let before = heartbeats();
        eventually(TTL, "a heartbeat", || heartbeats() > before).await;
        *script.unknown_hold.lock().unwrap() = None;
        sleep(interval / 2).await;
        assert_eq!(heartbeats(), before + 2, "{name}");
    }
}

/// The answer to a heartbeat comes after the release.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn released_hold_without_an_answer_brings_no_heartbeat_forward() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let interval = client.ttl() / 3;
    script.holds_unknown.store(true, Ordering::SeqCst);
    script.heartbeats_wait.store(true, Ordering::SeqCst);
    sleep(interval * 11 / 10).await;
    assert_eq!(script.heartbeats.load(Ordering::SeqCst), 1, "sent after one interval");
    guard.release().await.unwrap();
    script.heartbeat_answers.notify_one();
    sleep(interval / 2).await;
    assert_eq!(script.heartbeats.load(Ordering::SeqCst), 1, "the next one is due after two intervals");
}

/// Nothing ends there without an answer, so nothing is asked sooner.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn hold_without_a_lifetime_is_asked_for_at_regular_heartbeats_only() {
    let backend = Scripted::new(Lifetime::Process);
    let _guard = backend.client().await.lock(NAME).unwrap().acquire().await.unwrap();
    backend.script.holds_unknown.store(true, Ordering::SeqCst);
    sleep(TTL + TTL / 6).await;
    assert_eq!(backend.script.heartbeats.load(Ordering::SeqCst), 3);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn holds_without_a_lifetime_end_by_release_only() {
    let backend = Scripted::new(Lifetime::Process);
    let script = &backend.script;
    let client = backend.client().await;
    let lock = client.lock(NAME).unwrap();
    let guard = lock.acquire().await.unwrap();
    let bounded = lock.clone().max_hold(TTL * 5).acquire().await.unwrap();
    assert_eq!(guard.remaining(), Duration::MAX);
    assert!(bounded.remaining() <= TTL * 5);
    script.silent.store(true, Ordering::SeqCst);
    sleep(TTL * 100).await;
    assert!(guard.is_held() && !bounded.is_held());
    assert_eq!(client.status().current(), Status::Connected);
    let start = Instant::now();
    assert_eq!(kind(guard.release().await), ErrorKind::Unavailable);
    assert!(start.elapsed() <= RELEASE_ANSWER_MAX + Duration::from_millis(10));
    script.silent.store(false, Ordering::SeqCst);
    eventually(TTL, "released", || script.releases.load(Ordering::SeqCst) == 2).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn max_hold_ends_a_hold_although_no_task_has_run() {
    let server = MemoryServer::new();
    let lock = client(&server).await.lock(NAME).unwrap().max_hold(TTL / 3);
    let guard = lock.acquire().await.unwrap();
    assert!(guard.remaining() <= TTL / 3);
    advance(TTL / 2).await;
    assert!(!guard.is_held());
    assert!(guard.check().unwrap_err().to_string().contains("max_hold"));
}
