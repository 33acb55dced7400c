//! What a backend may do and the memory server never does: late grants, sessions that end at once, hangs, panics.

mod common;
#[path = "common/scripted.rs"]
mod scripted;

use std::{future::Future, sync::atomic::Ordering, time::Duration};

use common::{NAME, TTL, client, eventually, in_time, kind, settle};
use lockkit_core::{
    ErrorKind, Lock, LockClient, LockGuard, Owner, Result, Status,
    backend::Lifetime,
    limits::{RELEASE_ANSWER_MAX, TRY_ANSWER_MAX, WAITERS_PER_CLIENT_MAX},
    memory::MemoryServer,
};
use scripted::Scripted;
use tokio::time::{Instant, advance, sleep};

#[tokio::test(start_paused = true)]
async fn a_grant_of_a_session_that_has_ended_meanwhile_is_not_handed_out() {
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

/// The guard of a new client whose first grant is so long on its way.
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

#[tokio::test(start_paused = true)]
async fn a_grant_whose_deadline_has_passed_is_released_although_its_session_lives() {
    let backend = Scripted::new(Lifetime::Hold);
    let guard = granted_after(&backend, TTL * 2).await.unwrap();
    assert!(guard.is_held());
    assert_eq!((u64::from(guard.token()), backend.script.releases.load(Ordering::SeqCst)), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_late_is_renewed_at_once() {
    let backend = Scripted::new(Lifetime::Hold);
    // Its deadline comes before the next beat, which is due a ttl after the session's begin.
    let guard = granted_after(&backend, TTL * 9 / 10).await.unwrap();
    sleep(TTL * 3).await;
    assert!(guard.is_held(), "{:?}", guard.check());
    assert_eq!(u64::from(guard.token()), 1);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_lives_on_behind_a_dead_hold_is_abandoned() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    script.holds_unknown.store(true, Ordering::SeqCst);
    guard.lost().await;
    eventually(TTL, "the session is closed", || script.closed.load(Ordering::SeqCst) == 1).await;
    eventually(TTL, "there is a new one", || client.status().current() == Status::Connected).await;
}

#[tokio::test(start_paused = true)]
async fn sessions_that_end_at_once_are_opened_with_pauses() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    script.flapping.store(true, Ordering::SeqCst);
    script.lose_session.notify_one();
    for _ in 0..20 {
        settle().await;
    }
    let opened = script.opened.load(Ordering::SeqCst);
    assert!(opened <= 3, "{opened} sessions without any time having passed");
    script.flapping.store(false, Ordering::SeqCst);
    eventually(TTL, "connected again", || client.status().current() == Status::Connected).await;
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_open_took_its_ttl_is_renewed_before_it_is_used() {
    for lifetime in [Lifetime::Session, Lifetime::Hold] {
        let backend = Scripted::new(lifetime);
        let script = &backend.script;
        script.open_takes_ms.store(2 * TTL.as_millis() as u64, Ordering::SeqCst);
        let client = backend.client().await;
        let guard = in_time(client.lock(NAME).unwrap().acquire()).await.unwrap();
        sleep(TTL * 3).await;
        assert!(guard.is_held());
        assert_eq!(script.opened.load(Ordering::SeqCst), 1, "the first session lives");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_old_when_it_is_open_and_not_renewed_is_replaced() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    script.open_takes_ms.store(TTL.as_millis() as u64 / 2, Ordering::SeqCst);
    script.silent.store(true, Ordering::SeqCst);
    script.lose_session.notify_one();
    eventually(TTL * 3, "a third session", || script.opened.load(Ordering::SeqCst) == 3).await;
    assert_eq!(client.status().current(), Status::Lost, "the second one was not used");
    script.silent.store(false, Ordering::SeqCst);
    eventually(TTL * 3, "connected again", || client.status().current() == Status::Connected).await;
    eventually(TTL * 3, "the others are closed", || script.closed.load(Ordering::SeqCst) >= 2).await;
    // Of the first session of a client it is told at once.
    script.silent.store(true, Ordering::SeqCst);
    let build = LockClient::builder(backend.clone()).ttl(TTL).clock(lockkit_core::Clock::tokio()).build();
    assert_eq!(kind(build.await), ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn close_is_bounded_while_a_session_is_being_opened() {
    let backend = Scripted::new(Lifetime::Session);
    let client = backend.client().await;
    backend.script.open_hangs.store(true, Ordering::SeqCst);
    backend.script.lose_session.notify_one();
    eventually(TTL, "opening", || backend.script.opened.load(Ordering::SeqCst) == 2).await;
    let lock = client.lock(NAME).unwrap();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    settle().await;
    let start = Instant::now();
    let (closed, waited) = tokio::join!(client.close(), async {
        let answer = waiter.await.unwrap();
        (kind(answer), start.elapsed())
    });
    assert_eq!(kind(closed), ErrorKind::Unavailable, "a session may have been opened");
    assert!(start.elapsed() <= TTL + Duration::from_millis(10), "{:?}", start.elapsed());
    assert_eq!(waited.0, ErrorKind::Closed);
    assert!(waited.1 < Duration::from_millis(10), "answered at once: {:?}", waited.1);
}

#[tokio::test(start_paused = true)]
async fn close_does_not_forget_the_session_that_was_just_lost() {
    for answers in [false, true] {
        let backend = Scripted::new(Lifetime::Session);
        let script = &backend.script;
        let client = backend.client().await;
        script.silent.store(true, Ordering::SeqCst);
        script.lose_session.notify_one();
        eventually(TTL, "lost", || client.status().current() == Status::Lost).await;
        let start = Instant::now();
        let (closed, ()) = tokio::join!(client.close(), async {
            tokio::time::sleep(TTL / 2).await;
            script.silent.store(!answers, Ordering::SeqCst);
        });
        assert_eq!(closed.is_ok(), answers, "{closed:?}");
        assert_eq!(script.closed.load(Ordering::SeqCst), u64::from(answers));
        assert!(start.elapsed() <= TTL + Duration::from_millis(10), "{:?}", start.elapsed());
    }
}

/// The old session is still on its way out when the client closes, and so is the one that is being opened.
#[tokio::test(start_paused = true)]
async fn close_takes_one_ttl_while_a_lost_session_is_being_opened_again() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    script.unclosable.store(1, Ordering::SeqCst);
    script.open_takes_ms.store(TTL.as_millis() as u64 * 9 / 10, Ordering::SeqCst);
    script.lose_session.notify_one();
    eventually(TTL, "opening", || script.opened.load(Ordering::SeqCst) == 2).await;
    let start = Instant::now();
    assert_eq!(kind(client.close().await), ErrorKind::Unavailable);
    assert!(start.elapsed() <= TTL + Duration::from_millis(10), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn holds_with_lifetimes_of_their_own_end_alone_and_the_client_goes_on() {
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
    eventually(TTL, "it is given back", || tried() > 0).await;
    sleep(client.ttl() * 2).await;
    let tries = tried();
    sleep(client.ttl() * 2).await;
    assert_eq!(tried(), tries, "nobody releases for ever what has ended by itself");
    script.silent.store(false, Ordering::SeqCst);
    eventually(TTL, "connected", || client.status().current() == Status::Connected).await;
    let next = lock.acquire().await.unwrap();
    sleep(TTL * 3).await;
    assert!(next.is_held());
    assert_eq!(script.opened.load(Ordering::SeqCst), 1, "the session was never replaced");
    client.close().await.unwrap();
    assert_eq!(kind(next.release().await), ErrorKind::Lost);
    assert_eq!(script.releases.load(Ordering::SeqCst), 1, "given back before the session ended");
}

#[tokio::test(start_paused = true)]
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

#[tokio::test(start_paused = true)]
async fn a_panic_while_opening_does_not_leave_the_client_dead() {
    let backend = Scripted::new(Lifetime::Session);
    let client = backend.client().await;
    backend.script.open_panics.store(true, Ordering::SeqCst);
    backend.script.lose_session.notify_one();
    eventually(TTL, "lost", || client.status().current() == Status::Lost).await;
    eventually(TTL, "connected again", || client.status().current() == Status::Connected).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_watching_the_session_costs_that_session_only() {
    let backend = Scripted::new(Lifetime::Session);
    let client = backend.client().await;
    let lock = client.lock(NAME).unwrap();
    let guard = lock.acquire().await.unwrap();
    backend.script.lost_panics.store(true, Ordering::SeqCst);
    backend.script.lose_session.notify_one();
    assert_eq!(in_time(guard.lost()).await.kind(), ErrorKind::Lost);
    eventually(TTL, "connected again", || client.status().current() == Status::Connected).await;
    assert!(in_time(lock.acquire()).await.unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_panicked_is_tried_again_and_an_acquire_that_panicked_ends_its_session() {
    for in_release in [false, true] {
        let backend = Scripted::new(Lifetime::Session);
        let script = &backend.script;
        let client = backend.client().await;
        let lock = client.lock(NAME).unwrap();
        if in_release {
            let guard = lock.acquire().await.unwrap();
            script.release_panics.store(true, Ordering::SeqCst);
            guard.release().await.expect("tried again");
            assert_eq!(script.releases.load(Ordering::SeqCst), 1);
        } else {
            script.acquire_panics.store(true, Ordering::SeqCst);
            assert_eq!(kind(lock.acquire().await), ErrorKind::Unexpected);
            eventually(TTL, "the session is closed", || script.closed.load(Ordering::SeqCst) == 1).await;
        }
        assert!(lock.acquire().await.unwrap().is_held(), "the client goes on");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_deadline_passed_in_a_pause_is_lost_although_beats_keep_failing() {
    let backend = Scripted::new(Lifetime::Session);
    let (client, script) = (backend.client().await, &backend.script);
    script.open_hangs.store(true, Ordering::SeqCst);
    // They are answered at once, and come more often than the clock is looked at for its own sake.
    script.silent.store(true, Ordering::SeqCst);
    settle().await;
    advance(TTL * 2).await;
    eventually(TTL, "lost", || client.status().current() == Status::Lost).await;
}

#[tokio::test(start_paused = true)]
async fn a_try_does_not_meet_an_attempt_that_its_owner_has_given_up() {
    let server = MemoryServer::new();
    let lock = client(&server).await.lock(NAME).unwrap().reentrant(&Owner::new());
    server.hold_requests();
    assert_eq!(kind(lock.acquire_timeout(Duration::from_millis(10)).await), ErrorKind::Unavailable);
    let start = Instant::now();
    assert_eq!(kind(lock.try_acquire().await), ErrorKind::Unavailable, "nobody said busy");
    assert!(start.elapsed() <= TRY_ANSWER_MAX + Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn attempts_that_are_still_being_withdrawn_count_against_the_limit() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    server.hold_requests();
    for _ in 0..WAITERS_PER_CLIENT_MAX {
        let lock = client.lock(NAME).unwrap();
        let task = tokio::spawn(async move { lock.acquire().await });
        tokio::task::yield_now().await;
        task.abort();
    }
    settle().await;
    let refused = client.lock(NAME).unwrap().acquire_timeout(TTL / 100).await.unwrap_err();
    assert!(refused.to_string().contains("are waiting already"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn the_granted_ttl_is_known_also_between_two_sessions() {
    let backend = Scripted::new(Lifetime::Session);
    let client = backend.client().await;
    let granted = client.ttl();
    assert!(granted > TTL);
    backend.script.open_hangs.store(true, Ordering::SeqCst);
    backend.script.lose_session.notify_one();
    eventually(TTL, "lost", || client.status().current() == Status::Lost).await;
    assert_eq!(client.ttl(), granted);
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_a_hold_although_no_task_has_run() {
    let server = MemoryServer::new();
    let lock = client(&server).await.lock(NAME).unwrap().max_hold(TTL / 3);
    let guard = lock.acquire().await.unwrap();
    assert!(guard.remaining() <= TTL / 3);
    advance(TTL / 2).await;
    assert!(!guard.is_held());
    assert!(guard.check().unwrap_err().to_string().contains("max_hold"));
}

#[test]
fn a_build_dropped_while_its_thread_starts_leaves_no_thread() {
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
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let begun = build.as_mut().poll(&mut context).is_pending();
        std::thread::sleep(Duration::from_millis(200));
        begun
    };
    // A thread that is quicker than this one has finished at the first look.
    while !begin_and_drop() {}
    let start = std::time::Instant::now();
    while threads() > 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "the thread lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A waker may look at a guard, or be the last owner of a task that holds one.
#[test]
fn a_waker_that_looks_at_the_guard_does_not_deadlock() {
    struct Looks(std::sync::Weak<LockGuard>);
    impl std::task::Wake for Looks {
        fn wake(self: std::sync::Arc<Self>) {
            if let Some(guard) = self.0.upgrade() {
                assert!(!guard.is_held());
            }
        }
    }
    let (done, waited) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let server = MemoryServer::new();
            let guard =
                std::sync::Arc::new(client(&server).await.lock(NAME).unwrap().acquire().await.unwrap());
            let waker = std::sync::Arc::new(Looks(std::sync::Arc::downgrade(&guard))).into();
            let mut lost = Box::pin(guard.lost());
            assert!(lost.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
            advance(TTL).await;
            assert!(!guard.is_held());
        });
        done.send(()).unwrap();
    });
    waited.recv_timeout(Duration::from_secs(30)).expect("no deadlock");
}

/// A waker may also acquire the same lock again before it returns.
#[test]
fn a_waker_that_acquires_again_does_not_deadlock() {
    struct Acquires(Lock);
    impl std::task::Wake for Acquires {
        fn wake(self: std::sync::Arc<Self>) {
            let mut acquire = Box::pin(self.0.acquire());
            let _ = acquire.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        }
    }
    let (done, waited) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let lock = client(&MemoryServer::new()).await.lock(NAME).unwrap().reentrant(&Owner::new());
            let guard = lock.acquire().await.unwrap();
            let waker = std::sync::Arc::new(Acquires(lock.clone())).into();
            let mut lost = Box::pin(guard.lost());
            assert!(lost.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
            // Past the deadline, which no task has noticed: the acquire is the first look, and wakes who waits for it.
            advance(TTL).await;
            assert!(lock.acquire().await.unwrap().is_held());
        });
        done.send(()).unwrap();
    });
    waited.recv_timeout(Duration::from_secs(30)).expect("no deadlock");
}
