//! Cancel safety: a caller's future may be dropped at any point and leaves nothing behind.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Duration,
};

use crate::common::{NAME, TTL, client, eventually, lock_of_new_client, name, settle};
use lockkit_core::{Clock, LockClient, memory::MemoryServer};

pub(crate) fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls an acquire `steps` times, with one turn of the other tasks after each, and drops it. Returns whether it was
/// complete by then.
pub(crate) async fn drop_after(acquire: impl Future, steps: usize) -> bool {
    let mut acquire = pin!(acquire);
    for _ in 0..steps {
        if poll_once(acquire.as_mut()).is_ready() {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

/// Like [`drop_after`], with a server that answers each request one step after it was sent.
pub(crate) async fn drop_after_slow(server: &MemoryServer, acquire: impl Future, steps: usize) -> bool {
    let mut acquire = pin!(acquire);
    for _ in 0..steps {
        server.hold_requests();
        if poll_once(acquire.as_mut()).is_ready() {
            return true;
        }
        tokio::task::yield_now().await;
        server.deliver_requests();
    }
    false
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn an_uncontended_acquire_dropped_at_every_point_leaves_nothing() {
    for (is_slow, points) in [(false, 2), (true, 4)] {
        let mut answered = false;
        let mut steps = 0;
        while !answered {
            let server = MemoryServer::new();
            let lock = lock_of_new_client(&server).await;
            answered = match is_slow {
                true => drop_after_slow(&server, lock.acquire(), steps).await,
                false => drop_after(lock.acquire(), steps).await,
            };
            server.deliver_requests();
            eventually(TTL / 2, "the entry is gone", || server.is_empty()).await;
            assert!(lock.try_acquire().await.unwrap().is_some(), "free again after {steps} polls");
            steps += 1;
            assert!(steps < 1_000);
        }
        assert!(steps >= points, "the acquire was seen at {steps} points only");
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn an_acquire_dropped_at_every_point_of_a_slow_request_leaves_nothing() {
    for delivered_at in 0..12 {
        for dropped_at in 0..12 {
            let server = MemoryServer::new();
            let lock = lock_of_new_client(&server).await;
            server.hold_requests();
            {
                let mut acquire = pin!(lock.acquire());
                for step in 0..dropped_at {
                    if step == delivered_at {
                        server.deliver_requests();
                    }
                    if poll_once(acquire.as_mut()).is_ready() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
            server.deliver_requests();
            eventually(TTL / 2, "the entry is gone", || server.is_empty()).await;
        }
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_waiting_acquire_dropped_at_every_point_leaves_no_waiter() {
    for steps in 0..40 {
        let server = MemoryServer::new();
        let holder = lock_of_new_client(&server).await.acquire().await.unwrap();
        let waiting = lock_of_new_client(&server).await;
        assert!(!drop_after(waiting.acquire(), steps).await);
        eventually(TTL / 2, "no waiter is left", || server.inspect(&name()).waiters.is_empty()).await;
        assert!(holder.is_held());
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn an_acquire_dropped_around_the_handoff_leaves_no_hold() {
    let mut answered = false;
    let mut steps = 0;
    while !answered {
        let server = MemoryServer::new();
        let holder = lock_of_new_client(&server).await.acquire().await.unwrap();
        let waiting = lock_of_new_client(&server).await;
        {
            let mut acquire = pin!(waiting.acquire());
            assert!(poll_once(acquire.as_mut()).is_pending());
            settle().await;
            drop(holder);
            answered = drop_after(acquire, steps).await;
        }
        eventually(TTL / 2, "the entry is gone", || server.is_empty()).await;
        steps += 1;
        assert!(steps < 1_000);
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn an_acquire_dropped_while_its_request_is_held_back_leaves_nothing() {
    let server = MemoryServer::new();
    let lock = lock_of_new_client(&server).await;
    server.hold_requests();
    assert!(!drop_after(lock.acquire(), 5).await);
    settle().await;
    assert!(server.held_requests() > 0, "the request is on its way");
    server.deliver_requests();
    eventually(TTL / 2, "the late grant is given back", || server.is_empty()).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn acquire_whose_replies_are_lost_finds_its_entry() {
    let server = MemoryServer::new();
    let lock = lock_of_new_client(&server).await;
    server.lose_replies(3);
    let guard = lock.acquire().await.unwrap();
    let seen = server.inspect(&name());
    assert_eq!(seen.holder.and_then(|holder| holder.token), Some(guard.token()));
    assert!(seen.waiters.is_empty(), "one entry only");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_build_that_is_dropped_closes_the_session_it_opened() {
    let server = MemoryServer::new();
    for steps in 0..12 {
        let build = LockClient::builder(server.backend()).ttl(TTL).clock(Clock::tokio()).build();
        drop_after(build, steps).await;
    }
    eventually(TTL / 2, "no session is left", || server.sessions() == 0).await;
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn a_timeout_answers_in_time_and_leaves_no_waiter() {
    let server = MemoryServer::new();
    let holder = lock_of_new_client(&server).await.acquire().await.unwrap();
    let waiting = lock_of_new_client(&server).await;
    let start = tokio::time::Instant::now();
    assert!(waiting.acquire_timeout(Duration::from_millis(200)).await.unwrap().is_none());
    assert!(start.elapsed() < Duration::from_millis(250));
    eventually(TTL / 2, "no waiter is left", || server.inspect(&name()).waiters.is_empty()).await;
    holder.release().await.unwrap();
    assert!(waiting.acquire_timeout(Duration::from_millis(200)).await.unwrap().is_some());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn dropping_one_of_two_waiting_tasks_does_not_disturb_the_other() {
    let server = MemoryServer::new();
    let holder = lock_of_new_client(&server).await.acquire().await.unwrap();
    let client = client(&server).await;
    let (one, other) = (client.lock(NAME).unwrap(), client.lock(NAME).unwrap());
    let stays = tokio::spawn(async move { one.acquire().await });
    settle().await;
    assert!(!drop_after(other.acquire(), 20).await);
    drop(holder);
    assert!(stays.await.unwrap().unwrap().is_held());
}
