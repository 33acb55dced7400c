//! Sessions that end at once, open slowly or are lost: how the keeper replaces and closes them.

use std::{sync::atomic::Ordering, time::Duration};

use crate::common::{NAME, TTL, eventually, in_time, kind, settle, tasks};
use crate::scripted::Scripted;
use lockkit_core::{
    Clock, ErrorKind, LockClient, Status,
    backend::Lifetime,
    lease::validity,
    limits::{CLOSE_ANSWER_MAX, RETRY_PAUSE_MAX},
};
use tokio::time::{Instant, advance, sleep, timeout};

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn session_of_a_dead_hold_is_closed() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    script.holds_unknown.store(true, Ordering::SeqCst);
    guard.lost().await;
    eventually(TTL, "the session is closed", || script.closed.load(Ordering::SeqCst) == 1).await;
    eventually(TTL, "there is a new one", || client.status().current() == Status::Connected).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn sessions_that_end_at_once_are_reopened_with_pauses() {
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

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn session_that_took_its_ttl_to_open_is_renewed_before_use() {
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

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn session_that_opens_late_and_is_not_renewed_is_replaced() {
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
    // A failure of the first session of a client is returned at once.
    script.silent.store(true, Ordering::SeqCst);
    let build = LockClient::builder(backend.clone()).ttl(TTL).clock(Clock::tokio()).build();
    assert_eq!(kind(build.await), ErrorKind::Unavailable);
}

/// The renewal before its use shows that the server has ended it.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn session_that_opens_late_and_is_gone_gets_no_claim() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    script.open_takes_ms.store(TTL.as_millis() as u64 / 2, Ordering::SeqCst);
    script.session_gone.store(true, Ordering::SeqCst);
    script.lose_session.notify_one();
    eventually(TTL, "lost", || client.status().current() == Status::Lost).await;
    let lock = client.lock(NAME).unwrap();
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    eventually(TTL * 3, "a third session", || script.opened.load(Ordering::SeqCst) == 3).await;
    assert_eq!(script.claims.load(Ordering::SeqCst), 0, "the second one was not used");
    script.session_gone.store(false, Ordering::SeqCst);
    assert!(in_time(acquiring).await.unwrap().unwrap().is_held());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn session_past_its_deadline_is_lost_although_heartbeats_keep_failing() {
    let backend = Scripted::new(Lifetime::Session);
    let (client, script) = (backend.client().await, &backend.script);
    script.open_hangs.store(true, Ordering::SeqCst);
    // Heartbeats fail at once, so they come more often than the task checks the clock by itself.
    script.silent.store(true, Ordering::SeqCst);
    settle().await;
    advance(TTL * 2).await;
    eventually(TTL, "lost", || client.status().current() == Status::Lost).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn granted_ttl_is_known_between_two_sessions() {
    let backend = Scripted::new(Lifetime::Session);
    let client = backend.client().await;
    let granted = client.ttl();
    assert!(granted > TTL);
    backend.script.open_hangs.store(true, Ordering::SeqCst);
    backend.script.lose_session.notify_one();
    eventually(TTL, "lost", || client.status().current() == Status::Lost).await;
    assert_eq!(client.ttl(), granted);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
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

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn close_also_closes_a_session_that_was_just_lost() {
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

/// A new session is open, and the client closes it at once.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn close_waits_for_a_lost_session_that_is_still_being_closed() {
    for answers in [false, true] {
        let backend = Scripted::new(Lifetime::Session);
        let script = &backend.script;
        let client = backend.client().await;
        script.unclosable.store(1, Ordering::SeqCst);
        script.lose_session.notify_one();
        eventually(TTL, "a new session", || script.opened.load(Ordering::SeqCst) == 2).await;
        eventually(TTL, "it is used", || client.status().current() == Status::Connected).await;
        let start = Instant::now();
        let (closed, ()) = tokio::join!(client.close(), async {
            sleep(TTL / 2).await;
            script.unclosable.store(u64::from(!answers), Ordering::SeqCst);
        });
        assert_eq!(closed.is_ok(), answers, "{closed:?}");
        assert_eq!(script.closed.load(Ordering::SeqCst), 1 + u64::from(answers));
        assert!(start.elapsed() <= TTL + Duration::from_millis(10), "{:?}", start.elapsed());
    }
}

/// Two lost sessions are still being closed: the second one does not replace the first.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn close_waits_for_each_lost_session() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    script.unclosable.store(1, Ordering::SeqCst);
    for lost in 1..=2 {
        script.lose_session.notify_one();
        eventually(TTL, "a new session", || script.opened.load(Ordering::SeqCst) == lost + 1).await;
        eventually(TTL, "it is used", || client.status().current() == Status::Connected).await;
    }
    assert_eq!(script.closed.load(Ordering::SeqCst), 1, "the second one");
    assert_eq!(kind(client.close().await), ErrorKind::Unavailable);
    assert_eq!(script.closed.load(Ordering::SeqCst), 2, "the open one");
}

/// The lost session must have expired while the client closes, and its close is given up.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn close_waits_for_the_open_session_although_a_lost_one_is_given_up() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    script.unclosable.store(1, Ordering::SeqCst);
    script.lose_session.notify_one();
    // It was opened just now, and expires after two ttls.
    let before_its_end = Duration::from_secs(1);
    sleep(client.ttl() * 2 - before_its_end).await;
    assert_eq!((script.opened.load(Ordering::SeqCst), client.status().current()), (2, Status::Connected));
    script.silent.store(true, Ordering::SeqCst);
    let closing = async {
        let closed = client.close().await;
        (kind(closed), script.closed.load(Ordering::SeqCst))
    };
    let (closed, ()) = tokio::join!(closing, async {
        // The last close of the lost session is tried at most a pause after its end.
        sleep(before_its_end + RETRY_PAUSE_MAX + TTL / 30).await;
        script.silent.store(false, Ordering::SeqCst);
    });
    assert_eq!(closed, (ErrorKind::Unavailable, 1), "the open one is closed");
}

/// The server has ended it by itself since then.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn close_says_nothing_of_a_lost_session_that_expired_long_ago() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    script.unclosable.store(1, Ordering::SeqCst);
    script.lose_session.notify_one();
    sleep(client.ttl() * 2 + RETRY_PAUSE_MAX * 2).await;
    assert_eq!((script.opened.load(Ordering::SeqCst), client.status().current()), (2, Status::Connected));
    client.close().await.unwrap();
    assert_eq!(script.closed.load(Ordering::SeqCst), 1, "the open one");
}

/// When the client closes, the old session is still being closed and the new one is being opened.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn close_takes_one_ttl_while_a_lost_session_is_reopened() {
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

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn session_that_opens_while_its_client_closes_is_closed() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    script.open_takes_ms.store(TTL.as_millis() as u64 / 2, Ordering::SeqCst);
    script.lose_session.notify_one();
    eventually(TTL, "opening", || script.opened.load(Ordering::SeqCst) == 2).await;
    in_time(client.close()).await.unwrap();
    assert_eq!(script.closed.load(Ordering::SeqCst), 2, "the lost session and the one that was being opened");
}

/// The session must have expired, so its close is not retried: one refusal is the result, before any time limit.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn close_after_a_long_outage_is_an_error_if_the_store_does_not_confirm_it() {
    let backend = Scripted::new(Lifetime::Hold);
    let client = backend.client().await;
    backend.script.silent.store(true, Ordering::SeqCst);
    sleep(client.ttl() * 3).await;
    let start = Instant::now();
    assert_eq!(kind(client.close().await), ErrorKind::Unavailable);
    assert!(start.elapsed() <= Duration::from_millis(10), "{:?}", start.elapsed());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn late_session_whose_renewal_is_not_answered_is_given_up_after_an_interval() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    let (ttl, takes) = (client.ttl(), TTL / 2);
    script.open_takes_ms.store(takes.as_millis() as u64, Ordering::SeqCst);
    script.heartbeats_wait.store(true, Ordering::SeqCst);
    let start = Instant::now();
    script.lose_session.notify_one();
    eventually(TTL * 9, "a third session", || script.opened.load(Ordering::SeqCst) == 3).await;
    // Two pauses before a retry are shorter than this.
    let most = takes + ttl / 3 + TTL / 10;
    assert!(start.elapsed() <= most, "{:?}", start.elapsed());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn claims_that_give_up_without_a_session_leave_no_task() {
    let backend = Scripted::new(Lifetime::Session);
    let client = backend.client().await;
    backend.script.open_hangs.store(true, Ordering::SeqCst);
    backend.script.lose_session.notify_one();
    eventually(TTL, "lost", || client.status().current() == Status::Lost).await;
    let (lock, before) = (client.lock(NAME).unwrap(), tasks());
    for _ in 0..10 {
        timeout(Duration::from_millis(1), lock.acquire()).await.unwrap_err();
    }
    settle().await;
    assert!(tasks() <= before, "{} tasks are left", tasks() - before);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn close_does_not_wait_for_the_renewal_of_a_late_session() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    let client = backend.client().await;
    script.open_takes_ms.store(TTL.as_millis() as u64 / 2, Ordering::SeqCst);
    script.heartbeats_wait.store(true, Ordering::SeqCst);
    script.lose_session.notify_one();
    eventually(TTL, "it is being renewed", || script.heartbeats.load(Ordering::SeqCst) == 1).await;
    let start = Instant::now();
    client.close().await.unwrap();
    assert!(start.elapsed() <= Duration::from_millis(10), "{:?}", start.elapsed());
    script.heartbeat_answers.notify_one();
}

/// Where holds have no lifetime, nothing expires while a session opens slowly.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn session_without_a_lifetime_is_not_renewed_before_it_is_used() {
    let backend = Scripted::new(Lifetime::Process);
    backend.script.open_takes_ms.store(TTL.as_millis() as u64, Ordering::SeqCst);
    backend.script.heartbeats_wait.store(true, Ordering::SeqCst);
    let client = backend.client().await;
    assert_eq!(client.status().current(), Status::Connected);
    assert_eq!(backend.script.opened.load(Ordering::SeqCst), 1);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn idle_session_is_lost_exactly_at_its_deadline() {
    let backend = Scripted::new(Lifetime::Session);
    let start = Instant::now();
    let client = backend.client().await;
    backend.script.silent.store(true, Ordering::SeqCst);
    backend.script.open_hangs.store(true, Ordering::SeqCst);
    let mut status = client.status();
    while status.changed().await != Status::Lost {}
    let late = start.elapsed().abs_diff(validity(client.ttl()));
    assert!(late < Duration::from_millis(10), "{:?} of {:?}", start.elapsed(), client.ttl());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn close_of_a_session_that_opened_too_late_is_retried() {
    let backend = Scripted::new(Lifetime::Session);
    let script = &backend.script;
    script.open_takes_ms.store(1_000, Ordering::SeqCst);
    let builder = LockClient::builder(backend.clone()).ttl(TTL).clock(Clock::tokio());
    let client = builder.build_lazy().await.unwrap();
    settle().await;
    assert_eq!(script.opened.load(Ordering::SeqCst), 1);
    script.silent.store(true, Ordering::SeqCst);
    let (closed, ()) = tokio::join!(client.close(), async {
        sleep(Duration::from_secs(2)).await;
        script.silent.store(false, Ordering::SeqCst);
    });
    closed.unwrap();
    assert_eq!(script.closed.load(Ordering::SeqCst), 1);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn close_of_a_long_session_has_a_limit_of_its_own() {
    let backend = Scripted::new(Lifetime::Session);
    let builder = LockClient::builder(backend.clone()).ttl(CLOSE_ANSWER_MAX * 10).clock(Clock::tokio());
    let client = builder.build().await.unwrap();
    backend.script.silent.store(true, Ordering::SeqCst);
    let start = Instant::now();
    assert_eq!(kind(client.close().await), ErrorKind::Unavailable);
    assert!(start.elapsed() <= Duration::from_millis(30_010), "{:?}", start.elapsed());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn close_takes_the_granted_ttl_if_that_is_shorter() {
    let backend = Scripted::new(Lifetime::Session);
    backend.script.ttl_is_halved.store(true, Ordering::SeqCst);
    let client = backend.client().await;
    backend.script.silent.store(true, Ordering::SeqCst);
    let start = Instant::now();
    assert_eq!(kind(client.close().await), ErrorKind::Unavailable);
    assert!(start.elapsed() <= TTL / 2 + Duration::from_millis(10), "{:?}", start.elapsed());
}
