//! Work under a lock: what its caller gets if the lock is lost.
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::common::{NAME, TTL, in_time, lock_of_new_client, name, suspendable_clock};
use lockkit_core::{ErrorKind, Lock, LockClient, RunError, memory::MemoryServer};

/// Returns a lock whose work can move the clock past every deadline while it does not await.
async fn suspendable_lock() -> (Lock, Arc<AtomicU64>) {
    let (clock, suspended_ms) = suspendable_clock();
    let client =
        LockClient::builder(MemoryServer::new().backend()).ttl(TTL).clock(clock).build().await.unwrap();
    (client.lock(NAME).unwrap(), suspended_ms)
}

fn suspend(suspended_ms: &AtomicU64) {
    suspended_ms.store(3 * TTL.as_millis() as u64, Ordering::SeqCst);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn work_that_finished_after_the_loss_keeps_its_outcome() {
    let (lock, suspended_ms) = suspendable_lock().await;
    let work = async || {
        suspend(&suspended_ms);
        "payment booked"
    };
    let guard = lock.acquire().await.unwrap();
    match guard.run(work()).await {
        Err(RunError::Finished { outcome, lost }) => {
            assert_eq!((outcome, lost.kind()), ("payment booked", ErrorKind::Lost));
        }
        other => panic!("{other:?}"),
    }
    drop(guard);
    suspended_ms.store(0, Ordering::SeqCst);
    let (lock, suspended_ms) = suspendable_lock().await;
    let finished = lock.run(async |_| suspend(&suspended_ms)).await.unwrap_err();
    assert!(matches!(finished, RunError::Finished { outcome: (), .. }), "{finished:?}");
    let text = format!("{finished:#}");
    assert!(text.starts_with("the work finished, after the lock had been lost: hold"), "{text}");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn work_that_awaits_at_the_loss_is_stopped() {
    let server = MemoryServer::new();
    let lock = lock_of_new_client(&server).await;
    let stopped = lock.run(async |_| {
        server.expire_holder(&name());
        // Only the loss wakes it.
        std::future::pending::<()>().await;
    });
    let start = tokio::time::Instant::now();
    match in_time(stopped).await {
        Err(RunError::Stopped(error)) => assert_eq!(error.kind(), ErrorKind::Lost),
        other => panic!("{other:?}"),
    }
    // The loss woke it, not the time limit of this test.
    assert!(start.elapsed() < TTL);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn work_that_wakes_after_the_deadline_is_stopped_before_any_timer_fires() {
    let (lock, suspended_ms) = suspendable_lock().await;
    let guard = lock.acquire().await.unwrap();
    let stopped = guard.run(async {
        suspend(&suspended_ms);
        tokio::task::yield_now().await;
        "payment booked"
    });
    assert!(matches!(stopped.await, Err(RunError::Stopped(_))));
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn work_whose_lock_is_not_acquired_is_not_started() {
    let client = crate::common::client(&MemoryServer::new()).await;
    let lock = client.lock(NAME).unwrap();
    client.close().await.unwrap();
    let refused = lock.run(async |_| panic!("begun")).await.unwrap_err();
    assert!(matches!(refused, RunError::Stopped(_)));
    assert_eq!(refused.into_error().kind(), ErrorKind::Closed);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn work_of_a_busy_lock_is_not_started() {
    let server = MemoryServer::new();
    let (lock, other) = (lock_of_new_client(&server).await, lock_of_new_client(&server).await);
    let holder = other.acquire().await.unwrap();
    assert!(lock.try_run(async |_| panic!("begun")).await.unwrap().is_none());
    let (start, timeout) = (tokio::time::Instant::now(), TTL / 10);
    assert!(lock.run_timeout(timeout, async |_| panic!("begun")).await.unwrap().is_none());
    assert!(start.elapsed() >= timeout);
    drop(holder);
    // Longer than the time limit, which is for the lock only.
    let slow = async |guard: &lockkit_core::LockGuard| {
        tokio::time::sleep(timeout * 2).await;
        guard.token()
    };
    let token = lock.run_timeout(timeout, slow).await.unwrap().unwrap();
    assert_eq!(server.inspect(&name()).holder, None, "released when the call returns");
    assert!(lock.try_run(async |guard| guard.token()).await.unwrap().unwrap() > token);
    assert_eq!(server.inspect(&name()).holder, None, "released when the call returns");
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn work_of_a_try_is_stopped_at_the_loss() {
    let server = MemoryServer::new();
    let lock = lock_of_new_client(&server).await;
    let endless = async |_: &lockkit_core::LockGuard| {
        server.expire_holder(&name());
        std::future::pending::<()>().await;
    };
    for stopped in [in_time(lock.try_run(endless)).await, in_time(lock.run_timeout(TTL, endless)).await] {
        assert!(matches!(&stopped, Err(RunError::Stopped(lost)) if lost.is_lost()), "{stopped:?}");
    }
    server.hold_requests();
    for silent in [lock.try_run(async |_| ()).await, lock.run_timeout(TTL / 100, async |_| ()).await] {
        assert_eq!(silent.unwrap_err().into_error().kind(), ErrorKind::Unavailable);
    }
}
