//! Grants that arrive when their session has ended, or their deadline has nearly passed.

use std::{sync::atomic::Ordering, time::Duration};

use crate::common::{NAME, TTL, eventually, settle};
use crate::scripted::Scripted;
use lockkit_core::{LockGuard, Result, Status, backend::Lifetime};
use tokio::time::sleep;

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn grant_of_an_ended_session_is_not_returned() {
    for lifetime in [Lifetime::Session, Lifetime::Hold] {
        let backend = Scripted::new(lifetime);
        let script = &backend.script;
        let client = backend.client().await;
        script.late.store(true, Ordering::SeqCst);
        let lock = client.lock(NAME).unwrap();
        let acquiring = tokio::spawn(async move { lock.acquire().await });
        settle().await;
        script.lose_session.notify_one();
        eventually(TTL, "a new session", || client.status().current() == Status::Connected).await;
        settle().await;
        script.late.store(false, Ordering::SeqCst);
        script.grants.notify_one();
        let guard = acquiring.await.unwrap().unwrap();
        assert!(guard.is_held());
        assert_eq!(u64::from(guard.token()), 2, "a claim of the new session");
    }
}

/// Returns the guard of a new client whose first grant takes `delay` to arrive.
async fn granted_after(backend: &Scripted, delay: Duration) -> Result<LockGuard> {
    let script = &backend.script;
    let lock = backend.client().await.lock(NAME)?;
    script.late.store(true, Ordering::SeqCst);
    let (guard, ()) = tokio::join!(lock.acquire(), async {
        sleep(delay).await;
        script.late.store(false, Ordering::SeqCst);
        script.grants.notify_one();
    });
    guard
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn late_grant_is_released_although_its_session_lives() {
    let backend = Scripted::new(Lifetime::Hold);
    let guard = granted_after(&backend, TTL * 2).await.unwrap();
    assert!(guard.is_held());
    assert_eq!((u64::from(guard.token()), backend.script.releases.load(Ordering::SeqCst)), (2, 1));
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn late_grant_is_renewed_at_once() {
    for lifetime in [Lifetime::Session, Lifetime::Hold] {
        let backend = Scripted::new(lifetime);
        // Its deadline comes before the next heartbeat, which is due a ttl after the session was opened.
        let guard = granted_after(&backend, TTL * 9 / 10).await.unwrap();
        sleep(TTL * 3).await;
        assert!(guard.is_held(), "{lifetime:?}: {:?}", guard.check());
        assert_eq!((u64::from(guard.token()), backend.script.opened.load(Ordering::SeqCst)), (1, 1));
    }
}

/// Its deadline comes before the first regular heartbeat that carries it, and would cost the session.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn grant_whose_pin_took_long_is_renewed_at_once() {
    let backend = Scripted::with_pins(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    let interval = client.ttl() / 3;
    let other = client.lock("other").unwrap().acquire().await.unwrap();
    script.pin_takes_ms.store((interval * 22 / 10).as_millis() as u64, Ordering::SeqCst);
    sleep(interval * 95 / 100).await;
    let pinned = client.lock(NAME).unwrap().hold_at_least(TTL).acquire().await.unwrap();
    sleep(client.ttl() * 2).await;
    assert!(pinned.is_held() && other.is_held(), "{:?}", (pinned.check(), other.check()));
    assert_eq!((u64::from(pinned.token()), script.opened.load(Ordering::SeqCst)), (2, 1));
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn grant_that_took_more_than_a_heartbeat_interval_is_renewed_at_once() {
    let backend = Scripted::new(Lifetime::Hold);
    let script = &backend.script;
    let client = backend.client().await;
    // The next regular heartbeat is due after two intervals.
    let delay = client.ttl() / 3 + Duration::from_millis(100);
    script.late.store(true, Ordering::SeqCst);
    let lock = client.lock(NAME).unwrap();
    let (guard, before) = tokio::join!(lock.acquire(), async {
        sleep(delay).await;
        let before = script.heartbeats.load(Ordering::SeqCst);
        script.grants.notify_one();
        before
    });
    settle().await;
    assert!(guard.unwrap().is_held());
    assert_eq!(script.heartbeats.load(Ordering::SeqCst), before + 1);
}

/// A lease at ZooKeeper counts from a quarter of its ttl ago at best: no grant there is late because of that.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn grant_that_many_heartbeats_can_still_renew_requests_none() {
    let backend = Scripted::with_heartbeats(Lifetime::Session, 10);
    let script = &backend.script;
    let client = backend.client().await;
    script.late.store(true, Ordering::SeqCst);
    let lock = client.lock(NAME).unwrap();
    let (guard, before) = tokio::join!(lock.acquire(), async {
        sleep(client.ttl() / 2 + Duration::from_millis(100)).await;
        let before = script.heartbeats.load(Ordering::SeqCst);
        script.grants.notify_one();
        before
    });
    let guard = guard.unwrap();
    settle().await;
    assert_eq!(script.heartbeats.load(Ordering::SeqCst), before);
    sleep(client.ttl() * 2).await;
    assert!(guard.is_held(), "{:?}", guard.check());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn heartbeat_requested_during_a_pending_one_that_fails_is_not_put_off() {
    let backend = Scripted::new(Lifetime::Hold);
    let script = &backend.script;
    let client = backend.client().await;
    script.late.store(true, Ordering::SeqCst);
    script.heartbeats_wait.store(true, Ordering::SeqCst);
    let lock = client.lock(NAME).unwrap();
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    // The first heartbeat is pending then.
    sleep(client.ttl() / 3 + Duration::from_millis(100)).await;
    script.grants.notify_one();
    let guard = acquiring.await.unwrap().unwrap();
    settle().await;
    assert_eq!(script.heartbeats.load(Ordering::SeqCst), 1);
    script.silent.store(true, Ordering::SeqCst);
    script.heartbeat_answers.notify_one();
    settle().await;
    assert_eq!(script.heartbeats.load(Ordering::SeqCst), 2);
    drop(guard);
}
