//! Wakers that call back into the client while a hold ends.

use std::{
    future::Future,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    task::{Context, Wake, Waker},
    time::Duration,
};

use crate::checked::on_paused_clock;
use crate::common::{NAME, TTL, client, lock_of_new_client, settle, suspendable_clock};
use crate::scripted::Scripted;
use lockkit_core::{Lock, LockClient, LockGuard, Owner, backend::Lifetime, memory::MemoryServer};
use tokio::time::advance;

/// A waker may read a guard, or be the last owner of a task that holds one.
#[test]
fn waker_that_reads_the_guard_does_not_deadlock() {
    struct Looks(Weak<LockGuard>);
    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            if let Some(guard) = self.0.upgrade() {
                assert!(!guard.is_held());
            }
        }
    }
    let (done, waited) = mpsc::channel();
    std::thread::spawn(move || {
        on_paused_clock(async {
            let server = MemoryServer::new();
            let guard = Arc::new(client(&server).await.lock(NAME).unwrap().acquire().await.unwrap());
            let waker = Arc::new(Looks(Arc::downgrade(&guard))).into();
            let mut lost = Box::pin(guard.lost());
            assert!(lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            advance(TTL).await;
            assert!(!guard.is_held());
        });
        done.send(()).unwrap();
    });
    waited.recv_timeout(Duration::from_secs(30)).expect("no deadlock");
}

/// A waker may also acquire the same lock again before it returns. It runs in the call that first sees the deadline.
#[test]
fn a_waker_that_acquires_again_does_not_deadlock() {
    struct Acquires(Lock, AtomicBool);
    impl Wake for Acquires {
        fn wake(self: Arc<Self>) {
            self.1.store(true, Ordering::SeqCst);
            let mut acquire = Box::pin(self.0.acquire());
            let _ = acquire.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
    }
    let (done, waited) = mpsc::channel();
    std::thread::spawn(move || {
        on_paused_clock(async {
            for is_try in [false, true] {
                let (clock, ahead_ms) = suspendable_clock();
                let client = LockClient::builder(MemoryServer::new().backend()).ttl(TTL).clock(clock);
                let lock = client.build().await.unwrap().lock(NAME).unwrap().reentrant(&Owner::new());
                let guard = lock.acquire().await.unwrap();
                let acquires = Arc::new(Acquires(lock.clone(), AtomicBool::new(false)));
                let waker = Arc::clone(&acquires).into();
                let mut lost = Box::pin(guard.lost());
                assert!(lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                // Past the deadline, which no task has noticed: the acquire is the first to see it, and runs the waker.
                ahead_ms.store(TTL.as_millis() as u64, Ordering::SeqCst);
                assert!(!acquires.1.load(Ordering::SeqCst));
                if is_try {
                    let _ = lock.try_acquire().await.unwrap();
                } else {
                    assert!(lock.acquire().await.unwrap().is_held());
                }
                assert!(acquires.1.load(Ordering::SeqCst));
            }
        });
        done.send(()).unwrap();
    });
    waited.recv_timeout(Duration::from_secs(30)).expect("no deadlock");
}

/// A waker that panics ends no task that other holds need.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn panicking_waker_of_one_hold_stops_no_clock_check_of_others() {
    struct PanicsOnce(AtomicBool);
    impl Wake for PanicsOnce {
        fn wake(self: Arc<Self>) {
            assert!(self.0.swap(true, Ordering::SeqCst), "a waker of a test panics");
        }
    }
    let server = MemoryServer::new();
    let client = client(&server).await;
    let lock = |name: &str, seconds| client.lock(name).unwrap().max_hold(Duration::from_secs(seconds));
    let watched = lock(NAME, 1).acquire().await.unwrap();
    let _forgotten = lock("forgotten", 3).acquire().await.unwrap();
    let panics = Arc::new(PanicsOnce(AtomicBool::new(false)));
    let waker = Arc::clone(&panics).into();
    let mut lost = Box::pin(watched.lost());
    // Outside a runtime it has no timer, which would also call the waker.
    let polled = std::thread::scope(|scope| {
        scope.spawn(|| lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending()).join()
    });
    assert!(polled.unwrap());
    let others = lock_of_new_client(&server).await;
    assert!(others.acquire_timeout(TTL).await.unwrap().is_some(), "the hold whose waker panics is released");
    let forgotten = self::client(&server).await.lock("forgotten").unwrap();
    assert!(forgotten.acquire_timeout(TTL).await.unwrap().is_some(), "the forgotten hold ends");
    assert!(panics.0.load(Ordering::SeqCst), "it was called");
}

/// The store does not confirm the release: its confirmation is not what wakes them.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn loss_that_the_store_reports_wakes_its_waiters_at_once() {
    let backend = Scripted::new(Lifetime::Hold);
    let guard = Arc::new(backend.client().await.lock(NAME).unwrap().acquire().await.unwrap());
    let waiting = [Arc::clone(&guard), guard].map(|guard| tokio::spawn(async move { guard.lost().await }));
    settle().await;
    backend.script.silent.store(true, Ordering::SeqCst);
    backend.script.lose_grant.notify_one();
    settle().await;
    assert!(waiting.iter().all(|waiting| waiting.is_finished()), "woken by the report, not by a timer");
}
