//! Releases that the store refuses or does not confirm: no lock is held forever by them, and they cost few tasks.

use std::{sync::atomic::Ordering, time::Duration};

use crate::common::{NAME, TTL, eventually, in_time, kind, settle, tasks};
use crate::scripted::Scripted;
use lockkit_core::{
    Clock, ErrorKind, LockClient, Status,
    backend::Lifetime,
    limits::{RELEASE_ANSWER_MAX, RELEASE_WORKERS_MAX, RELEASES_UNCONFIRMED_MAX},
};
use tokio::time::{Instant, sleep};

/// Returns a store that refuses releases from now on, and a client of it.
async fn refusing(lifetime: Lifetime) -> (Scripted, LockClient) {
    let backend = Scripted::new(lifetime);
    let client = backend.client().await;
    backend.script.releases_refused.store(true, Ordering::SeqCst);
    (backend, client)
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_release_that_is_refused_for_a_ttl_ends_its_session() {
    let (backend, client) = refusing(Lifetime::Session).await;
    let script = &backend.script;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let neighbour = client.lock("neighbour").unwrap().acquire().await.unwrap();
    let mut status = client.status();
    let start = Instant::now();
    assert_eq!(kind(in_time(guard.release()).await), ErrorKind::Denied, "the caller gets the reason");
    assert!(start.elapsed() >= client.ttl(), "the session survives if the permission is restored in time");
    assert!(start.elapsed() <= client.ttl() + Duration::from_millis(10), "{:?}", start.elapsed());
    let reason = in_time(neighbour.lost()).await.to_string();
    assert!(reason.contains("a release was not confirmed"), "{reason}");
    while in_time(status.changed()).await != Status::Lost {}
    eventually(TTL, "the session is closed", || script.closed.load(Ordering::SeqCst) == 1).await;
    eventually(TTL, "there is a new one", || client.status().current() == Status::Connected).await;
}

/// The caller is answered before the ttl has passed, or after it.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn release_at_a_closed_session_does_not_say_that_the_client_is_closed() {
    for ttl in [TTL, RELEASE_ANSWER_MAX * 6] {
        let backend = Scripted::new(Lifetime::Session);
        let client =
            LockClient::builder(backend.clone()).ttl(ttl).clock(Clock::tokio()).build().await.unwrap();
        let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
        backend.script.releases_find_closed.store(true, Ordering::SeqCst);
        assert_eq!(kind(in_time(guard.release()).await), ErrorKind::Unavailable, "ttl {ttl:?}");
        backend.script.releases_find_closed.store(false, Ordering::SeqCst);
    }
}

/// The guard is dropped, or only its `max_hold` ends it: no caller waits for the outcome.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn refused_release_without_a_waiting_caller_ends_its_session() {
    for forgotten in [false, true] {
        let (backend, client) = refusing(Lifetime::Session).await;
        let lock = client.lock(NAME).unwrap();
        let start = Instant::now();
        let guard = lock.max_hold(if forgotten { TTL } else { TTL * 100 }).acquire().await.unwrap();
        let _forgotten = forgotten.then_some(guard);
        let closed = || backend.script.closed.load(Ordering::SeqCst) == 1;
        eventually(TTL * 4, "the session is closed", closed).await;
        assert!(start.elapsed() >= client.ttl());
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn permission_restored_in_time_keeps_the_session() {
    let (backend, client) = refusing(Lifetime::Session).await;
    let neighbour = client.lock("neighbour").unwrap().acquire().await.unwrap();
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let released = tokio::spawn(guard.release());
    sleep(TTL / 2).await;
    backend.script.releases_refused.store(false, Ordering::SeqCst);
    in_time(released).await.unwrap().unwrap();
    sleep(TTL * 3).await;
    assert!(neighbour.is_held());
    assert_eq!(backend.script.opened.load(Ordering::SeqCst), 1, "the session lives");
}

/// More releases than there may be workers, one after the other.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn release_worker_without_work_makes_room_for_the_next() {
    let (backend, client) = refusing(Lifetime::Session).await;
    let (lock, script) = (client.lock(NAME).unwrap(), &backend.script);
    for tries in 0..=RELEASE_WORKERS_MAX as u64 {
        let guard = in_time(lock.acquire()).await.unwrap();
        let released = tokio::spawn(guard.release());
        let refused = || script.releases_tried.load(Ordering::SeqCst) > 2 * tries;
        eventually(TTL, "the release is refused", refused).await;
        script.releases_refused.store(false, Ordering::SeqCst);
        in_time(released).await.unwrap().unwrap();
        script.releases_refused.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn refused_release_ends_with_the_own_lifetime_of_its_hold() {
    let (backend, client) = refusing(Lifetime::Hold).await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let neighbour = client.lock("neighbour").unwrap().acquire().await.unwrap();
    let start = Instant::now();
    assert_eq!(kind(in_time(guard.release()).await), ErrorKind::Denied);
    assert!(start.elapsed() <= client.ttl() + Duration::from_millis(10), "{:?}", start.elapsed());
    let tried = backend.script.releases_tried.load(Ordering::SeqCst);
    sleep(TTL * 3).await;
    assert_eq!(backend.script.releases_tried.load(Ordering::SeqCst), tried, "retries have ended");
    assert!(neighbour.is_held(), "the others are not touched");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn end_of_the_session_ends_an_unconfirmed_release() {
    let (backend, client) = refusing(Lifetime::Session).await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let releasing = tokio::spawn(guard.release());
    sleep(TTL / 2).await;
    let start = Instant::now();
    backend.script.lose_session.notify_one();
    assert_eq!(kind(in_time(releasing).await.unwrap()), ErrorKind::Unavailable);
    assert!(start.elapsed() <= Duration::from_millis(10), "{:?}", start.elapsed());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_withdrawal_that_is_not_confirmed_for_a_ttl_ends_its_session() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    script.acquires_silent.store(true, Ordering::SeqCst);
    script.withdrawals_hang.store(true, Ordering::SeqCst);
    let time_limit = Duration::from_millis(100);
    assert_eq!(kind(client.lock(NAME).unwrap().acquire_timeout(time_limit).await), ErrorKind::Unavailable);
    let start = Instant::now();
    eventually(TTL * 3, "the session is closed", || script.closed.load(Ordering::SeqCst) == 1).await;
    assert!(start.elapsed().abs_diff(client.ttl()) <= Duration::from_millis(20), "{:?}", start.elapsed());
    script.acquires_silent.store(false, Ordering::SeqCst);
    assert!(in_time(client.lock(NAME).unwrap().acquire()).await.unwrap().is_held(), "the client still works");
}

/// Its entry ends by itself, without the session.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn unconfirmed_withdrawal_of_a_hold_with_its_own_lifetime_ends_no_session() {
    let backend = Scripted::new(Lifetime::Hold);
    let script = &backend.script;
    let client = backend.client().await;
    let neighbour = client.lock("neighbour").unwrap().acquire().await.unwrap();
    script.acquires_silent.store(true, Ordering::SeqCst);
    script.withdrawals_hang.store(true, Ordering::SeqCst);
    let time_limit = Duration::from_millis(100);
    assert_eq!(kind(client.lock(NAME).unwrap().acquire_timeout(time_limit).await), ErrorKind::Unavailable);
    sleep(client.ttl() * 3).await;
    assert!(neighbour.is_held(), "{:?}", neighbour.check());
    assert_eq!(script.opened.load(Ordering::SeqCst), 1);
}

/// No guard waits for it, and its entry would outlive the session.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn closing_client_waits_for_the_release_of_a_late_grant() {
    let backend = Scripted::new(Lifetime::Hold);
    let (client, script) = (backend.client().await, &backend.script);
    script.late.store(true, Ordering::SeqCst);
    let lock = client.lock(NAME).unwrap();
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    settle().await;
    acquiring.abort();
    sleep(TTL * 2).await;
    script.releases_refused.store(true, Ordering::SeqCst);
    script.grants.notify_one();
    settle().await;
    assert_eq!(script.releases_tried.load(Ordering::SeqCst), 1);
    let (closed, ()) = tokio::join!(client.close(), async {
        sleep(TTL / 60).await;
        script.releases_refused.store(false, Ordering::SeqCst);
    });
    closed.unwrap();
    assert_eq!(script.releases.load(Ordering::SeqCst), 1);
}

/// Otherwise the client closes, and ends its session before the store has confirmed the release.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn guard_is_the_last_handle_of_its_client_until_its_release_is_confirmed() {
    let (backend, client) = refusing(Lifetime::Session).await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    drop(client);
    let (released, ()) = tokio::join!(guard.release(), async {
        sleep(TTL * 2 / 3).await;
        backend.script.releases_refused.store(false, Ordering::SeqCst);
    });
    released.unwrap();
    assert_eq!(backend.script.releases.load(Ordering::SeqCst), 1);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn many_refused_releases_leave_few_tasks_and_are_bounded() {
    const GUARDS: usize = 100_000;
    let (backend, client) = refusing(Lifetime::Session).await;
    let before = tasks();
    let mut guards = Vec::new();
    for number in 0..GUARDS {
        guards.push(client.lock(format!("lock {number}")).unwrap().acquire().await.unwrap());
    }
    drop(guards);
    let tried = || backend.script.releases_tried.load(Ordering::SeqCst);
    eventually(TTL / 2, "all releases were tried", || tried() >= GUARDS as u64).await;
    settle().await;
    let left = tasks() - before;
    assert!(left <= 2 * RELEASE_WORKERS_MAX, "{left} tasks are left");
    const { assert!(GUARDS > RELEASES_UNCONFIRMED_MAX) };
    let refused = client.lock(NAME).unwrap().acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.to_string().contains("not confirmed"), "{refused}");
    // The session is abandoned, with everything in it.
    eventually(TTL * 4, "a new session", || backend.script.opened.load(Ordering::SeqCst) == 2).await;
    assert!(in_time(client.lock(NAME).unwrap().acquire()).await.unwrap().is_held());
    assert!(tasks() - before <= 2 * RELEASE_WORKERS_MAX);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn refused_releases_are_retried_by_no_more_workers_than_their_limit() {
    let (_backend, client) = refusing(Lifetime::Session).await;
    let mut guards = Vec::new();
    for number in 0..2 * RELEASE_WORKERS_MAX {
        guards.push(client.lock(format!("lock {number}")).unwrap().acquire().await.unwrap());
    }
    settle().await;
    let before = tasks();
    drop(guards);
    settle().await;
    assert_eq!(tasks() - before, RELEASE_WORKERS_MAX);
}

/// Twice, because what the first releases leave behind must not prevent the retries of the second ones.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn more_refused_releases_than_workers_are_all_retried() {
    let (backend, client) = refusing(Lifetime::Session).await;
    let script = &backend.script;
    let count = 2 * RELEASE_WORKERS_MAX as u64;
    for round in 1..=2 {
        let mut guards = Vec::new();
        for number in 0..count {
            guards.push(client.lock(format!("lock {number}")).unwrap().acquire().await.unwrap());
        }
        script.releases_refused.store(true, Ordering::SeqCst);
        drop(guards);
        settle().await;
        script.releases_refused.store(false, Ordering::SeqCst);
        let released = || script.releases.load(Ordering::SeqCst) == round * count;
        eventually(TTL / 2, "all are released", released).await;
    }
}
