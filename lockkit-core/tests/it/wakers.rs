//! Wakers that call back into the client while a hold ends.

use std::{
    future::Future,
    sync::{Arc, Weak, mpsc},
    task::{Context, Wake, Waker},
    time::Duration,
};

use crate::common::{NAME, TTL, client};
use lockkit_core::{Lock, LockGuard, Owner, memory::MemoryServer};
use tokio::{runtime::Builder, time::advance};

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
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
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

/// A waker may also acquire the same lock again before it returns.
#[test]
fn a_waker_that_acquires_again_does_not_deadlock() {
    struct Acquires(Lock);
    impl Wake for Acquires {
        fn wake(self: Arc<Self>) {
            let mut acquire = Box::pin(self.0.acquire());
            let _ = acquire.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
    }
    let (done, waited) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let lock = client(&MemoryServer::new()).await.lock(NAME).unwrap().reentrant(&Owner::new());
            let guard = lock.acquire().await.unwrap();
            let waker = Arc::new(Acquires(lock.clone())).into();
            let mut lost = Box::pin(guard.lost());
            assert!(lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            // Past the deadline, which no task has noticed: the acquire is the first to see it, and runs the waker.
            advance(TTL).await;
            assert!(lock.acquire().await.unwrap().is_held());
        });
        done.send(()).unwrap();
    });
    waited.recv_timeout(Duration::from_secs(30)).expect("no deadlock");
}
