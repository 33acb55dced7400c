//! Minimum hold times, on a paused clock.

use std::{sync::atomic::Ordering, time::Duration};

use crate::common::{
    NAME, TTL, client, deliver_next, eventually, in_time, kind, lock_of_new_client, name, settle,
};
use crate::scripted::Scripted;
use lockkit_core::{
    ErrorKind, Lock, Owner,
    backend::Lifetime,
    limits::{HOLD_AT_LEAST_MAX, RETRY_PAUSE_MAX},
    memory::MemoryServer,
};
use tokio::time::{Instant, sleep, timeout};

const AT_LEAST: Duration = Duration::from_secs(60);

/// Waits for the lock; returns how long that took.
async fn granted_after(lock: &Lock) -> Duration {
    let start = Instant::now();
    let guard = tokio::time::timeout(AT_LEAST * 2, lock.acquire()).await.expect("granted in time").unwrap();
    guard.release().await.unwrap();
    start.elapsed()
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn entry_outlives_release_client_and_session() {
    for end in ["release", "drop", "close", "loss"] {
        let server = MemoryServer::new();
        let holder = client(&server).await;
        let guard = holder.lock(NAME).unwrap().hold_at_least(AT_LEAST).acquire().await.unwrap();
        let start = Instant::now();
        match end {
            "release" => guard.release().await.unwrap(),
            "drop" => drop(guard),
            "close" => holder.close().await.unwrap(),
            _ => assert!(server.expire_holder(&name())),
        }
        granted_after(&lock_of_new_client(&server).await).await;
        let waited = start.elapsed();
        assert!(waited.abs_diff(AT_LEAST) < Duration::from_millis(10), "{end}: {waited:?}");
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_hold_that_lasts_longer_is_released_as_ever() {
    let server = MemoryServer::new();
    let guard = lock_of_new_client(&server).await.hold_at_least(TTL).acquire().await.unwrap();
    sleep(TTL * 3).await;
    assert!(guard.is_held(), "renewed beyond the pin");
    let next = lock_of_new_client(&server).await;
    let next = tokio::spawn(async move { granted_after(&next).await });
    settle().await;
    guard.release().await.unwrap();
    assert_eq!(next.await.unwrap(), Duration::ZERO, "handed over by the release");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_grant_that_no_caller_got_leaves_nothing() {
    // Left before the claim is answered, before its pin is sent, and before the pin is answered.
    for answered in 0..3 {
        let server = MemoryServer::new();
        let lock = lock_of_new_client(&server).await.hold_at_least(AT_LEAST);
        server.hold_requests();
        let waiting = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await }
        });
        for _ in 0..answered.min(1) {
            deliver_next(&server).await;
        }
        if answered == 2 {
            settle().await;
        }
        waiting.abort();
        settle().await;
        server.deliver_requests();
        let waited = granted_after(&lock_of_new_client(&server).await).await;
        assert_eq!(waited, Duration::ZERO, "left after {answered} steps");
        drop(lock);
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_grant_that_vanished_before_its_pin_is_claimed_again() {
    let server = MemoryServer::new();
    let lock = lock_of_new_client(&server).await.hold_at_least(AT_LEAST);
    server.hold_requests();
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    deliver_next(&server).await;
    settle().await;
    server.delete_entries(&name());
    server.deliver_requests();
    let guard = in_time(waiting).await.unwrap();
    assert!(guard.is_held() && server.inspect(&name()).holder.is_some());
    assert_eq!(server.inspect(&name()).holder.unwrap().token, Some(guard.token()));
}

/// The pin is answered after the deadline of its grant, so the grant is released; a new claim must not wait behind it.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn claim_after_a_late_pin_waits_until_the_late_grant_is_released() {
    for lifetime in [Lifetime::Session, Lifetime::Hold] {
        let backend = Scripted::with_pins(lifetime);
        let script = &backend.script;
        script.releases_refused.store(true, Ordering::SeqCst);
        script.pin_takes_ms.store((TTL * 2).as_millis() as u64, Ordering::SeqCst);
        let lock = backend.client().await.lock(NAME).unwrap().hold_at_least(AT_LEAST);
        let acquiring = tokio::spawn(async move { lock.acquire().await });
        eventually(TTL * 3, "released once", || script.releases_tried.load(Ordering::SeqCst) == 1).await;
        script.pin_takes_ms.store(0, Ordering::SeqCst);
        eventually(TTL, "released again", || script.releases_tried.load(Ordering::SeqCst) > 3).await;
        assert_eq!(script.claims.load(Ordering::SeqCst), 1, "{lifetime:?}: a claim behind the late grant");
        script.releases_refused.store(false, Ordering::SeqCst);
        assert!(in_time(acquiring).await.unwrap().unwrap().is_held());
        assert_eq!(script.claims.load(Ordering::SeqCst), 2);
    }
}

/// Its next retry is due after at least 0.8 s.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn end_of_the_session_ends_the_release_of_a_late_pinned_grant() {
    let backend = Scripted::with_pins(Lifetime::Session);
    let script = &backend.script;
    script.releases_refused.store(true, Ordering::SeqCst);
    script.pin_takes_ms.store((TTL * 2).as_millis() as u64, Ordering::SeqCst);
    let lock = backend.client().await.lock(NAME).unwrap().hold_at_least(AT_LEAST);
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    eventually(TTL * 4, "five tries", || script.releases_tried.load(Ordering::SeqCst) == 5).await;
    let start = Instant::now();
    script.lose_session.notify_one();
    assert_eq!(kind(in_time(acquiring).await.unwrap()), ErrorKind::Lost);
    assert!(start.elapsed() <= Duration::from_millis(10), "{:?}", start.elapsed());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn denied_pin_is_an_error_and_its_grant_is_released() {
    pin_that_fails_for_good(ErrorKind::Denied).await;
}

/// The backend offers pins, and the server does not know the request.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn pin_that_the_server_does_not_support_is_an_error_and_its_grant_is_released() {
    pin_that_fails_for_good(ErrorKind::Unsupported).await;
}

async fn pin_that_fails_for_good(error: ErrorKind) {
    let backend = Scripted::with_pins(Lifetime::Session);
    let script = &backend.script;
    *script.pin_failure.lock().unwrap() = Some(error);
    let lock = backend.client().await.lock(NAME).unwrap().hold_at_least(AT_LEAST);
    assert_eq!(kind(in_time(lock.acquire()).await), error);
    assert_eq!((script.claims.load(Ordering::SeqCst), script.releases.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn late_pinned_grant_that_is_never_released_is_an_error_instead_of_a_wait() {
    let backend = Scripted::with_pins(Lifetime::Session);
    backend.script.releases_refused.store(true, Ordering::SeqCst);
    backend.script.pin_takes_ms.store((TTL * 2).as_millis() as u64, Ordering::SeqCst);
    let lock = backend.client().await.lock(NAME).unwrap().hold_at_least(AT_LEAST);
    assert_eq!(kind(in_time(lock.acquire()).await), ErrorKind::Lost);
    assert_eq!(backend.script.claims.load(Ordering::SeqCst), 1);
}

/// Its release is like any other, also after its deadline: it is not retried until the end of a pin that was never sent.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn grant_that_nobody_wants_any_more_is_not_pinned() {
    for delay in [Duration::ZERO, TTL * 2] {
        let backend = Scripted::with_pins(Lifetime::Hold);
        let script = &backend.script;
        let client = backend.client().await;
        let lock = client.lock(NAME).unwrap().hold_at_least(AT_LEAST);
        script.late.store(true, Ordering::SeqCst);
        let acquiring = tokio::spawn(async move { lock.acquire().await });
        settle().await;
        acquiring.abort();
        sleep(delay).await;
        settle().await;
        script.releases_refused.store(true, Ordering::SeqCst);
        script.grants.notify_one();
        settle().await;
        assert_eq!(script.releases_tried.load(Ordering::SeqCst), 1, "{delay:?}");
        sleep(client.ttl() + RETRY_PAUSE_MAX).await;
        let tried = script.releases_tried.load(Ordering::SeqCst);
        script.releases_refused.store(false, Ordering::SeqCst);
        sleep(AT_LEAST).await;
        assert_eq!(script.releases_tried.load(Ordering::SeqCst), tried, "{delay:?}");
        assert_eq!(script.pins.load(Ordering::SeqCst), 0, "{delay:?}");
    }
}

/// The call that waits now wants a pin, and the one that has left did not get one.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn grant_of_a_call_that_left_is_not_shared_without_its_pin() {
    left_then_waits(|lock| lock.hold_at_least(AT_LEAST)).await;
    left_then_waits(|lock| lock).await;
    left_then_waits(|lock| lock.max_hold(TTL / 100)).await;
}

/// Calls of one owner: one with these options that leaves, and one that wants a pin.
async fn left_then_waits(options: fn(Lock) -> Lock) {
    let backend = Scripted::with_pins(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    let lock = client.lock(NAME).unwrap().reentrant(&Owner::new());
    let acquiring = |lock: Lock| tokio::spawn(async move { lock.acquire().await });
    script.late.store(true, Ordering::SeqCst);
    let left = acquiring(options(lock.clone()));
    settle().await;
    left.abort();
    settle().await;
    let waiting = acquiring(lock.hold_at_least(AT_LEAST));
    settle().await;
    script.grants.notify_one();
    settle().await;
    script.late.store(false, Ordering::SeqCst);
    script.grants.notify_one();
    let guard = in_time(waiting).await.unwrap().unwrap();
    assert_eq!(script.pins.load(Ordering::SeqCst), 1);
    assert!(guard.remaining() > TTL / 2, "{:?}", guard.remaining());
}

/// The store has executed the pin, and the end of the session removes nothing.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn pin_without_an_answer_whose_session_ends_is_an_error() {
    let server = MemoryServer::new();
    let lock = lock_of_new_client(&server).await.hold_at_least(AT_LEAST);
    server.hold_requests();
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    deliver_next(&server).await;
    settle().await;
    server.lose_replies(1);
    server.deliver_requests();
    server.hold_requests();
    eventually(TTL * 3, "the session has ended", || server.sessions() == 0 || acquiring.is_finished()).await;
    server.deliver_requests();
    assert_eq!(kind(in_time(acquiring).await.unwrap()), ErrorKind::Lost);
}

/// The hold ends before its caller is polled: nobody had it, so its pin is removed, and nobody gets it.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn hold_that_ends_before_its_caller_looks_is_not_returned_without_its_pin() {
    let server = MemoryServer::new();
    let holder = lock_of_new_client(&server).await.acquire().await.unwrap();
    let lock = lock_of_new_client(&server).await.hold_at_least(AT_LEAST).max_hold(TTL);
    let mut acquiring = Box::pin(lock.acquire());
    assert!(timeout(Duration::from_millis(1), &mut acquiring).await.is_err());
    holder.release().await.unwrap();
    sleep(TTL * 2).await;
    assert!(server.is_empty(), "its pin is removed");
    assert_eq!(kind(acquiring.await), ErrorKind::Lost);
}

/// The client closes before the caller is polled: nobody had the hold, and the end of its session does not end its pin.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn client_that_closes_before_its_caller_looks_leaves_no_pin() {
    let server = MemoryServer::new();
    let holder = lock_of_new_client(&server).await.acquire().await.unwrap();
    let closing = client(&server).await;
    let lock = closing.lock(NAME).unwrap().hold_at_least(AT_LEAST);
    let mut acquiring = Box::pin(lock.acquire());
    assert!(timeout(Duration::from_millis(1), &mut acquiring).await.is_err());
    holder.release().await.unwrap();
    settle().await;
    assert!(server.inspect(&name()).holder.is_some(), "granted");
    closing.close().await.unwrap();
    assert_eq!(granted_after(&lock_of_new_client(&server).await).await, Duration::ZERO);
    assert_eq!(kind(acquiring.await), ErrorKind::Lost);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_time_beyond_the_limit_is_refused() {
    let server = MemoryServer::new();
    let lock = lock_of_new_client(&server).await.hold_at_least(HOLD_AT_LEAST_MAX + Duration::from_secs(1));
    assert_eq!(kind(lock.acquire().await), ErrorKind::InvalidConfig);
    assert!(server.is_empty());
    let longest = lock_of_new_client(&server).await.hold_at_least(HOLD_AT_LEAST_MAX);
    assert!(longest.acquire().await.unwrap().is_held());
}

/// Also where the backend has no pins.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn minimum_time_of_zero_is_none() {
    let backend = Scripted::new(Lifetime::Session);
    let lock = backend.client().await.lock(NAME).unwrap().hold_at_least(Duration::ZERO);
    assert!(lock.acquire().await.unwrap().is_held());
}

/// The caller that the grant was for never takes it; one that re-enters does.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn pin_stays_for_a_caller_that_re_entered() {
    let server = MemoryServer::new();
    let lock = lock_of_new_client(&server).await.hold_at_least(AT_LEAST).reentrant(&Owner::new());
    server.hold_requests();
    let mut first = Box::pin(lock.acquire());
    assert!(timeout(Duration::from_millis(1), &mut first).await.is_err());
    server.deliver_requests();
    settle().await;
    let second = lock.acquire().await.unwrap();
    drop(first);
    let start = Instant::now();
    second.release().await.unwrap();
    granted_after(&lock_of_new_client(&server).await).await;
    assert!(start.elapsed() > AT_LEAST / 2, "{:?}", start.elapsed());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn lock_that_only_its_pin_keeps_has_no_leader() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let guard = client.lock(NAME).unwrap().hold_at_least(AT_LEAST).acquire().await.unwrap();
    let election = client.election(NAME).unwrap();
    assert_eq!(election.leader().await.unwrap().map(|leader| leader.token), Some(guard.token()));
    guard.release().await.unwrap();
    assert_eq!(election.leader().await.unwrap(), None);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn entry_whose_pin_is_over_is_released_instead_of_left() {
    for (held_for, left) in [(AT_LEAST - Duration::from_millis(10), 1), (AT_LEAST, 0)] {
        let backend = Scripted::with_pins(Lifetime::Session);
        let guard =
            backend.client().await.lock(NAME).unwrap().hold_at_least(AT_LEAST).acquire().await.unwrap();
        sleep(held_for).await;
        guard.release().await.unwrap();
        let (was_left, released) = (&backend.script.left, &backend.script.releases);
        assert_eq!((was_left.load(Ordering::SeqCst), released.load(Ordering::SeqCst)), (left, 1 - left));
    }
}

/// The entry stays at least until then; how much longer, the client does not know.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn minimum_time_counts_from_the_sending_of_the_pin() {
    let backend = Scripted::with_pins(Lifetime::Session);
    let script = &backend.script;
    let takes = TTL / 6;
    script.pin_takes_ms.store(takes.as_millis() as u64, Ordering::SeqCst);
    let lock = backend.client().await.lock(NAME).unwrap().hold_at_least(AT_LEAST);
    let guard = lock.acquire().await.unwrap();
    sleep(AT_LEAST - takes / 2).await;
    guard.release().await.unwrap();
    assert_eq!((script.left.load(Ordering::SeqCst), script.releases.load(Ordering::SeqCst)), (0, 1));
}

/// Returns a store that has pinned a grant whose caller had left, and refuses to release it.
async fn refusing_a_grant_that_nobody_got(
    lifetime: Lifetime,
    at_least: Duration,
    pin_takes: Duration,
) -> (Scripted, Lock) {
    let backend = Scripted::with_pins(lifetime);
    backend.script.releases_refused.store(true, Ordering::SeqCst);
    backend.script.pin_takes_ms.store(pin_takes.as_millis() as u64, Ordering::SeqCst);
    let lock = backend.client().await.lock(NAME).unwrap().hold_at_least(at_least);
    timeout(Duration::from_millis(1), lock.acquire()).await.unwrap_err();
    sleep(pin_takes).await;
    settle().await;
    assert_eq!(backend.script.releases_tried.load(Ordering::SeqCst), 1);
    (backend, lock)
}

/// The second pin is answered after the deadline of its grant, and counts from there; the last one ends before the ttl.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn refused_release_of_a_pinned_grant_is_retried_until_its_entry_ends() {
    let (second, ttl) = (Duration::from_secs(1), TTL + Duration::from_secs(1));
    for (at_least, pin_takes, ends_in) in
        [(AT_LEAST, second, AT_LEAST - second), (AT_LEAST, TTL * 2, AT_LEAST), (second * 3, second, ttl)]
    {
        let (backend, _lock) = refusing_a_grant_that_nobody_got(Lifetime::Hold, at_least, pin_takes).await;
        let tried = || backend.script.releases_tried.load(Ordering::SeqCst);
        sleep(ends_in - RETRY_PAUSE_MAX).await;
        let before = tried();
        sleep(RETRY_PAUSE_MAX + Duration::from_millis(10)).await;
        let last = tried();
        assert!(last > before, "given up before {ends_in:?}");
        sleep(TTL * 3).await;
        assert_eq!(tried(), last, "retried after {ends_in:?}");
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn refused_release_of_a_pinned_grant_ends_its_session_after_a_ttl() {
    let second = Duration::from_secs(1);
    let (backend, _lock) = refusing_a_grant_that_nobody_got(Lifetime::Session, AT_LEAST, second).await;
    let (start, ttl) = (Instant::now(), TTL + second);
    eventually(ttl * 2, "a new session", || backend.script.opened.load(Ordering::SeqCst) == 2).await;
    assert!(start.elapsed().abs_diff(ttl) < Duration::from_millis(100), "{:?}", start.elapsed());
}
