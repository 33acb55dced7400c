//! A claim and a release are polled first by their caller. One that the store has not answered by then waits without a
//! task; others are tasks.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use crate::cancel_safety::poll_once;
use crate::{
    checked::Counted,
    common::{NAME, client, lock_of_new_client, settle, tasks},
    scripted::Scripted,
};
use lockkit_core::{Lock, LockGuard, Result, backend::Lifetime, memory::MemoryServer};
use tokio::{runtime::Builder, task::yield_now};

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn answered_acquire_and_release_need_one_poll_and_no_task() {
    let client = client(&MemoryServer::new()).await;
    let lock = client.lock(NAME).unwrap();
    settle().await;
    let before = tasks();
    let Poll::Ready(guard) = poll_once(pin!(lock.acquire())) else { panic!("not within one poll") };
    assert_eq!(tasks(), before);
    assert!(poll_once(pin!(guard.unwrap().release())).is_ready());
    assert_eq!(tasks(), before);
}

/// Counts its wake-ups.
#[derive(Default)]
struct Counts(AtomicUsize);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Wakers of users run any code. The store gets none of them: it may wake while it is locked.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn slow_acquire_and_release_wake_their_caller_once() {
    let server = MemoryServer::new();
    let lock = lock_of_new_client(&server).await;
    let counts = Arc::new(Counts::default());
    let waker = Waker::from(Arc::clone(&counts));
    let mut context = Context::from_waker(&waker);
    let woken = || counts.0.swap(0, Ordering::SeqCst);

    server.hold_requests();
    let mut acquire = pin!(lock.acquire());
    assert!(acquire.as_mut().poll(&mut context).is_pending());
    // The keeper's clone of it, and no other.
    assert_eq!(Arc::strong_count(&counts), 3);
    server.deliver_requests();
    settle().await;
    assert_eq!(woken(), 1);
    let guard = acquire.await.unwrap();

    server.hold_requests();
    let mut release = Box::pin(guard.release());
    assert!(release.as_mut().poll(&mut context).is_pending());
    server.deliver_requests();
    settle().await;
    assert_eq!(woken(), 1);
    release.await.unwrap();
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn try_after_a_dropped_guard_finds_the_lock_free() {
    let lock = lock_of_new_client(&MemoryServer::new()).await;
    for _ in 0..3 {
        drop(lock.acquire().await.unwrap());
        assert!(lock.try_acquire().await.unwrap().is_some());
        settle().await;
    }
}

/// The release hands the lock over to the next waiter: not to the caller that has left before.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn try_after_a_caller_left_and_a_release_finds_the_lock_free() {
    let lock = lock_of_new_client(&MemoryServer::new()).await;
    let guard = lock.acquire().await.unwrap();
    assert!(lock.acquire_timeout(Duration::from_millis(10)).await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_some());
}

/// Workers of such a runtime run the task first that was spawned last.
#[test]
fn workers_send_the_release_of_a_dropped_guard_before_a_try() {
    let _counted = Counted::begin();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let lock = runtime.block_on(lock_of_new_client(&MemoryServer::new()));
    let task = runtime.spawn(async move {
        for round in 0..10 {
            drop(lock.acquire().await.unwrap());
            assert!(lock.try_acquire().await.unwrap().is_some(), "round {round}");
        }
    });
    runtime.block_on(task).unwrap();
}

#[test]
fn workers_send_a_withdrawal_before_a_release_and_a_try() {
    let _counted = Counted::begin();
    // A worker that looks for events wakes the tasks that have yielded, before it has polled all others.
    for event_interval in [61, 3, 7] {
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).event_interval(event_interval).enable_all().build().unwrap();
        let lock = runtime.block_on(lock_of_new_client(&MemoryServer::new()));
        let task = runtime.spawn(async move {
            for round in 0..12 {
                // So that it looks for events at another step in each round.
                for _ in 0..round {
                    yield_now().await;
                }
                let guard = lock.acquire().await.unwrap();
                let token = guard.token().get();
                assert!(lock.acquire_timeout(Duration::from_millis(1)).await.unwrap().is_none());
                guard.release().await.unwrap();
                let next = lock.try_acquire().await.unwrap();
                // The withdrawn claim would have the token in between, from a release that overtakes its withdrawal.
                let next = next.map(|guard| guard.token().get());
                assert_eq!(next, Some(token + 1), "round {round} of {event_interval}");
            }
        });
        runtime.block_on(task).unwrap();
    }
}

/// A task that is spawned after its request takes the next turn from the task of the connection.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn one_answer_is_awaited_without_a_task() {
    let backend = Scripted::new(Lifetime::Hold);
    backend.script.late.store(true, Ordering::SeqCst);
    let client = backend.client().await;
    let locks = [client.lock("a").unwrap(), client.lock("b").unwrap()];
    settle().await;
    let (before, polls) = (tasks(), || backend.script.polls.load(Ordering::SeqCst));
    for _ in 0..2 {
        backend.script.polls.store(0, Ordering::SeqCst);
        let mut first = pin!(locks[0].acquire());
        assert!(poll_once(first.as_mut()).is_pending());
        settle().await;
        assert_eq!((polls(), tasks()), (1, before), "polled by its caller");
        let mut second = pin!(locks[1].acquire());
        assert!(poll_once(second.as_mut()).is_pending());
        settle().await;
        assert_eq!((polls(), tasks()), (3, before + 1), "one waits already");
        backend.script.grants.notify_waiters();
        first.await.unwrap().release().await.unwrap();
        second.await.unwrap().release().await.unwrap();
        settle().await;
        assert_eq!((polls(), tasks()), (5, before));
    }
}

/// Polls an acquire when it is woken.
struct Acquires(Mutex<Pin<Box<dyn Future<Output = Result<LockGuard>> + Send>>>);

impl Acquires {
    fn new(lock: Lock) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Box::pin(async move { lock.acquire().await }))))
    }
}

impl Wake for Acquires {
    fn wake(self: Arc<Self>) {
        assert!(poll_once(self.0.lock().unwrap().as_mut()).is_pending());
    }
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn acquire_that_starts_within_the_poll_of_another_is_granted() {
    let backend = Scripted::new(Lifetime::Hold);
    backend.script.late.store(true, Ordering::SeqCst);
    let client = backend.client().await;
    let other = Acquires::new(client.lock("b").unwrap());
    let lock = client.lock("a").unwrap();
    settle().await;
    *backend.script.first_poll.lock().unwrap() = Some(Arc::clone(&other).into());
    let mut acquire = pin!(lock.acquire());
    assert!(poll_once(acquire.as_mut()).is_pending());
    settle().await;
    backend.script.grants.notify_waiters();
    acquire.await.unwrap().release().await.unwrap();
    settle().await;
    let Poll::Ready(granted) = poll_once(other.0.lock().unwrap().as_mut()) else { panic!("not granted") };
    assert!(granted.unwrap().is_held());
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn loop_of_answered_acquires_lets_other_tasks_run() {
    const TURNS_MAX: u32 = 1_000;
    let lock = lock_of_new_client(&MemoryServer::new()).await;
    let has_run = Arc::new(AtomicBool::new(false));
    let other = Arc::clone(&has_run);
    tokio::spawn(async move { other.store(true, Ordering::SeqCst) });
    let mut turns = 0;
    while turns < TURNS_MAX && !has_run.load(Ordering::SeqCst) {
        lock.acquire().await.unwrap().release().await.unwrap();
        turns += 1;
    }
    assert!(has_run.load(Ordering::SeqCst), "no other task has run");
}

/// Other tasks run while one tries again and again, the heartbeat among them.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn loop_of_tries_that_are_answered_at_once_lets_other_tasks_run() {
    let server = MemoryServer::new();
    let _held = lock_of_new_client(&server).await.acquire().await.unwrap();
    let lock = lock_of_new_client(&server).await;
    settle().await;
    let other = tokio::spawn(async {});
    for _ in 0..1_000 {
        assert!(lock.try_acquire().await.unwrap().is_none());
    }
    assert!(other.is_finished());
}

/// As above, after the guards were acquired.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn loop_of_answered_releases_lets_other_tasks_run() {
    let client = client(&MemoryServer::new()).await;
    let mut guards = Vec::new();
    for number in 0..1_000 {
        guards.push(client.lock(format!("lock {number}")).unwrap().acquire().await.unwrap());
    }
    settle().await;
    let other = tokio::spawn(async {});
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert!(other.is_finished());
}

/// The task that makes the first polls lets others run in between, the heartbeat among them.
#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn releases_of_many_dropped_guards_let_other_tasks_run() {
    const GUARDS: u64 = 1_000;
    let backend = Scripted::new(Lifetime::Hold);
    let client = backend.client().await;
    let mut guards = Vec::new();
    for number in 0..GUARDS {
        guards.push(client.lock(format!("lock {number}")).unwrap().acquire().await.unwrap());
    }
    settle().await;
    drop(guards);
    let script = Arc::clone(&backend.script);
    let other = tokio::spawn(async move { script.releases.load(Ordering::SeqCst) });
    assert!(other.await.unwrap() < GUARDS, "all were sent before it ran");
}
