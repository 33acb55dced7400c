//! Sets of locks that are not acquired: busy, too late, failed, or dropped at any point. Nothing is left.

use std::{future::Future, pin::pin, time::Duration};

use crate::cancel_safety::{drop_after, drop_after_slow, poll_once};
use crate::common::{TTL, client, eventually, kind, settle};
use crate::lock_sets::{NAMES, is_taken, lock_name, set_of};
use lockkit_core::{
    ErrorKind, LockAll,
    limits::{RETRY_PAUSE_MIN, TRY_ANSWER_MAX},
    memory::MemoryServer,
};
use tokio::time::{Instant, sleep};

async fn set_of_new_client(server: &MemoryServer) -> LockAll {
    client(server).await.lock_all(NAMES).unwrap()
}

/// Drops `begin` of a new set after each number of steps, until it completes; `prepare` acts on the server before.
/// Returns the number of steps.
async fn dropped_at_every_step<T, F: Future>(
    prepare: impl AsyncFn(&MemoryServer) -> T,
    begin: impl Fn(LockAll) -> F,
    is_clean: impl Fn(&MemoryServer) -> bool,
) -> usize {
    for steps in 0..1_000 {
        let server = MemoryServer::new();
        let prepared = prepare(&server).await;
        let set = set_of_new_client(&server).await;
        let completed = drop_after_slow(&server, begin(set), steps).await;
        server.deliver_requests();
        eventually(TTL / 2, &format!("nothing is left after {steps} steps"), || is_clean(&server)).await;
        drop(prepared);
        if completed {
            return steps;
        }
    }
    unreachable!("never complete")
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn acquire_dropped_at_every_step_leaves_nothing() {
    let acquire = |set: LockAll| async move { set.acquire().await.map(drop) };
    let steps = dropped_at_every_step(async |_| (), acquire, MemoryServer::is_empty).await;
    assert!(steps > NAMES.len(), "dropped at {steps} points only");
}

/// The server is frozen after each request, so that every lock is at some point requested, but not answered.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn acquire_dropped_between_slow_requests_leaves_nothing() {
    for delivered in 0..NAMES.len() {
        for steps in 0..6 {
            let server = MemoryServer::new();
            let set = set_of_new_client(&server).await;
            {
                let mut acquire = pin!(set.acquire());
                for _ in 0..delivered {
                    server.hold_requests();
                    assert!(!poll_until(acquire.as_mut(), || server.held_requests() > 0).await);
                    server.deliver_requests();
                }
                server.hold_requests();
                for _ in 0..steps {
                    assert!(poll_once(acquire.as_mut()).is_pending());
                    tokio::task::yield_now().await;
                }
            }
            server.deliver_requests();
            eventually(TTL / 2, "nothing is left", || server.is_empty()).await;
        }
    }
}

/// Polls a future, with a turn of the other tasks after each poll, until the condition holds. Returns whether the future
/// was ready before.
async fn poll_until(mut future: std::pin::Pin<&mut impl Future>, is_met: impl Fn() -> bool) -> bool {
    for _ in 0..1_000 {
        if poll_once(future.as_mut()).is_ready() {
            return true;
        }
        tokio::task::yield_now().await;
        if is_met() {
            return false;
        }
    }
    unreachable!("the condition is not met")
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn try_of_a_busy_set_dropped_at_every_step_leaves_nothing() {
    let hold_last =
        async |server: &MemoryServer| client(server).await.lock(NAMES[2]).unwrap().acquire().await.unwrap();
    let tried = |set: LockAll| async move { assert!(set.try_acquire().await.unwrap().is_none()) };
    let only_the_last = |server: &MemoryServer| !is_taken(server, NAMES[0]) && !is_taken(server, NAMES[1]);
    let steps = dropped_at_every_step(hold_last, tried, only_the_last).await;
    assert!(steps > NAMES.len(), "dropped at {steps} points only");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn release_dropped_after_its_first_poll_releases_all() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    for steps in 0..8 {
        let guard = set_of(&client).await;
        drop_after(guard.release(), steps).await;
        eventually(TTL / 2, "all are released", || server.is_empty()).await;
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn acquire_dropped_while_it_waits_leaves_neither_holds_nor_waiters() {
    for busy_name in NAMES {
        for steps in [0, 1, 2, 4, 8, 16, 32] {
            let server = MemoryServer::new();
            let busy = client(&server).await.lock(busy_name).unwrap().acquire().await.unwrap();
            let set = set_of_new_client(&server).await;
            assert!(!drop_after(set.acquire(), steps).await);
            let is_clean = || {
                NAMES.iter().all(|name| {
                    let found = server.inspect(&lock_name(name));
                    found.waiters.is_empty() && (found.holder.is_none() || *name == busy_name)
                })
            };
            eventually(TTL / 2, "only the other holder is left", is_clean).await;
            assert!(busy.is_held());
        }
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn busy_set_is_not_acquired_in_part() {
    let server = MemoryServer::new();
    let busy = client(&server).await.lock(NAMES[2]).unwrap().acquire().await.unwrap();
    let set = set_of_new_client(&server).await;
    let limit = Duration::from_millis(200);
    assert!(set.try_acquire().await.unwrap().is_none());
    assert!(set.acquire_timeout(Duration::ZERO).await.unwrap().is_none());
    let start = Instant::now();
    assert!(set.acquire_timeout(limit).await.unwrap().is_none());
    assert!((limit..limit * 2).contains(&start.elapsed()), "{:?}", start.elapsed());
    let is_clean = || !is_taken(&server, NAMES[0]) && !is_taken(&server, NAMES[1]);
    eventually(TTL / 2, "the first two are released", is_clean).await;
    assert!(server.inspect(&lock_name(NAMES[2])).waiters.is_empty());
    busy.release().await.unwrap();
    assert!(set.acquire_timeout(limit).await.unwrap().unwrap().is_held());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn time_limit_counts_once_for_all_locks() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let part = Duration::from_millis(600);
    let mut held = Vec::new();
    for (number, name) in (1..).zip(NAMES) {
        let guard = client.lock(name).unwrap().acquire().await.unwrap();
        held.push(tokio::spawn(async move {
            sleep(part * number).await;
            guard.release().await.unwrap();
        }));
    }
    let set = set_of_new_client(&server).await;
    let start = Instant::now();
    // Enough for any one of them.
    assert!(set.acquire_timeout(part * 3 / 2).await.unwrap().is_none());
    assert!(start.elapsed() <= part * 3 / 2 + Duration::from_millis(10), "{:?}", start.elapsed());
    for holder in held {
        holder.await.unwrap();
    }
    eventually(TTL / 2, "nothing is left", || server.is_empty()).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn failure_of_one_lock_releases_those_before_it() {
    let server = MemoryServer::new();
    let set = set_of_new_client(&server).await;
    {
        let mut tried = pin!(set.try_acquire());
        server.hold_requests();
        assert!(!poll_until(tried.as_mut(), || server.held_requests() > 0).await);
        // The first one is granted; from now on the server is frozen.
        server.deliver_requests();
        server.hold_requests();
        assert!(is_taken(&server, NAMES[0]));
        let start = Instant::now();
        let failed = tried.await.unwrap_err();
        assert_eq!((failed.kind(), failed.lock()), (ErrorKind::Unavailable, Some(&lock_name(NAMES[1]))));
        assert!(start.elapsed() <= TRY_ANSWER_MAX + Duration::from_millis(10), "one limit for all");
    }
    server.deliver_requests();
    eventually(TTL, "nothing is left", || server.is_empty()).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn set_of_a_closed_client_is_refused() {
    let server = MemoryServer::new();
    let client = client(&server).await;
    let set = client.lock_all(NAMES).unwrap();
    client.close().await.unwrap();
    assert_eq!(kind(set.acquire().await), ErrorKind::Closed);
    settle().await;
    assert!(server.is_empty());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn set_without_patience_sends_one_request_for_a_busy_lock() {
    let server = MemoryServer::new();
    let busy = client(&server).await.lock(NAMES[0]).unwrap().acquire().await.unwrap();
    let set = set_of_new_client(&server).await;
    let before = server.requests();
    assert!(set.acquire_timeout(Duration::ZERO).await.unwrap().is_none());
    settle().await;
    assert_eq!(server.requests() - before, 1, "a try leaves nothing to withdraw");
    assert!(busy.is_held());
}

/// Its locks are lost at once, again and again; the pauses last a second by then.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn set_that_pauses_before_it_starts_again_ends_with_its_client() {
    let client = client(&MemoryServer::new()).await;
    let set = client.lock_all(NAMES).unwrap().max_hold(Duration::ZERO);
    let acquiring = tokio::spawn(async move { set.acquire().await });
    sleep(TTL).await;
    let start = Instant::now();
    client.drain(TTL).await.unwrap();
    assert_eq!(kind(acquiring.await.unwrap()), ErrorKind::Closed);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// The end of the client is also the loss of the locks that the set has already.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn set_without_time_to_start_again_ends_with_its_client() {
    let server = MemoryServer::new();
    let (holding, waiting) = (client(&server).await, client(&server).await);
    let _last = holding.lock(NAMES[2]).unwrap().acquire().await.unwrap();
    let set = waiting.lock_all(NAMES).unwrap();
    let mut acquiring = pin!(set.acquire_timeout(RETRY_PAUSE_MIN / 10));
    let is_waiting = || server.inspect(&lock_name(NAMES[2])).waiters.len() == 1;
    assert!(!poll_until(acquiring.as_mut(), is_waiting).await);
    waiting.close().await.unwrap();
    assert_eq!(kind(acquiring.await), ErrorKind::Closed);
}
