//! Waiters: queues within one client, polling between processes, and claims that give up.

use std::{
    fs,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use lockkit_core::{
    Clock, ErrorKind, LockName, Metadata, Result,
    backend::{Acquired, Backend, Claim, ClaimControl, Grant, Session},
};
use lockkit_file::{FileBackend, FileConfig};
use rustix::fs::inotify;
use tokio::task::JoinHandle;

use crate::{
    child::{Child, NAME},
    client, soon,
};

async fn session(folder: &tempfile::TempDir) -> Arc<dyn Session> {
    let backend = FileBackend::new(FileConfig::new(folder.path()).unwrap());
    backend.open_session(Duration::MAX, Clock::boot()).await.unwrap()
}

fn claim(wait: bool, control: &ClaimControl) -> Claim {
    Claim::new(LockName::new(NAME).unwrap(), wait, Metadata::of_this_process(None), control)
}

async fn granted(session: &dyn Session) -> Grant {
    match soon("a grant", session.acquire(claim(true, &ClaimControl::new()))).await.unwrap() {
        Acquired::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

/// Starts a waiter. Returns once it has found the lock held.
async fn waiting(session: &Arc<dyn Session>) -> JoinHandle<Result<Acquired>> {
    let control = ClaimControl::new();
    let (session, claim) = (Arc::clone(session), claim(true, &control));
    let waiter = tokio::spawn(async move { session.acquire(claim).await });
    soon("the first attempt", async {
        while !control.was_contended() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    waiter
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_two_clients_exclude_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let clients = [client(folder.path()).await, client(folder.path()).await];
    let inside = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..60)
        .map(|number| {
            let (lock, inside) = (clients[number % 2].lock(NAME).unwrap(), Arc::clone(&inside));
            tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                assert!(!inside.swap(true, Ordering::SeqCst), "two inside");
                tokio::task::yield_now().await;
                inside.store(false, Ordering::SeqCst);
                guard.release().await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        soon("a turn", task).await.unwrap();
    }
}

#[tokio::test]
async fn wait_that_times_out_returns_none_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let client = client(folder.path()).await;
    let mut child = Child::holder(folder.path());
    child.held().await;
    let lock = client.lock(NAME).unwrap();
    // Long enough for the first attempt on a busy machine. One of the two polls, the other queues behind it.
    let wait = Duration::from_secs(5);
    let (first, second) = tokio::join!(lock.acquire_timeout(wait), lock.acquire_timeout(wait));
    assert!(first.unwrap().is_none() && second.unwrap().is_none());
    child.release().await;
    assert!(lock.try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn waiters_that_give_up_end_and_the_next_one_polls() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder).await;
    let mut child = Child::holder(folder.path());
    child.held().await;
    let (poller, queued) = (ClaimControl::new(), ClaimControl::new());
    let mut polling = pin!(session.acquire(claim(true, &poller)));
    let mut waiting = pin!(session.acquire(claim(true, &queued)));
    let mut next = pin!(granted(&*session));
    soon("the first attempt", async {
        while !poller.was_contended() {
            tokio::select! {
                biased;
                _ = &mut polling => panic!("the child holds it"),
                _ = &mut waiting => panic!("another waiter is before it"),
                _ = &mut next => panic!("two waiters are before it"),
                () = tokio::task::yield_now() => {}
            }
        }
    })
    .await;
    queued.give_up();
    assert!(matches!(soon("the end of the wait", waiting).await.unwrap(), Acquired::GaveUp));
    assert!(queued.was_contended(), "it counts as contended, because another waiter was before it");
    poller.give_up();
    assert!(matches!(soon("the end of the wait", polling).await.unwrap(), Acquired::GaveUp));
    child.release().await;
    next.await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_behind_a_local_holder_does_not_poll() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder).await;
    let Acquired::Granted(held) = session.acquire(claim(true, &ClaimControl::new())).await.unwrap() else {
        panic!("the lock is free")
    };
    let mut next = pin!(session.acquire(claim(true, &ClaimControl::new())));
    tokio::select! {
        biased;
        _ = &mut next => panic!("it is held"),
        () = tokio::time::sleep(Duration::from_millis(100)) => {}
    }
    session.release(&held).await.unwrap();
    let released = tokio::time::Instant::now();
    assert!(matches!(next.await, Ok(Acquired::Granted(_))));
    assert_eq!(released.elapsed(), Duration::ZERO, "there was a pause between release and grant");
}

#[tokio::test]
async fn a_try_does_not_wait_for_the_local_queue() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder).await;
    let held = granted(&*session).await;
    let control = ClaimControl::new();
    let busy = soon("an answer", session.acquire(claim(false, &control))).await.unwrap();
    assert!(matches!(busy, Acquired::GaveUp) && control.was_contended());
    session.release(&held).await.unwrap();
    session.release(&held).await.expect("a release is idempotent");
    let free = session.acquire(claim(false, &ClaimControl::new())).await.unwrap();
    assert!(matches!(free, Acquired::Granted(grant) if grant.token() > held.token()));
}

#[tokio::test]
async fn waiters_for_many_locks_take_few_threads() {
    const LOCKS: usize = 200;
    // Five permanent ones, and a few for the reads that come once a second for each lock: one runs, others have just
    // ended.
    const THREADS_MAX: usize = 5 + 10;
    let folder = tempfile::tempdir().unwrap();
    let client = client(folder.path()).await;
    let mut guards = Vec::new();
    for number in 0..LOCKS {
        guards.push(client.lock(format!("many {number}")).unwrap().acquire().await.unwrap());
    }
    let mut child = Child::waiter_for_many(folder.path(), LOCKS);
    let (threads, processor) = (child.line().await, child.line().await);
    println!("{LOCKS} locks waited for: {threads}, {processor} ms in 3 s");
    let threads: usize = threads.strip_prefix("threads ").unwrap().parse().unwrap();
    assert!(threads <= THREADS_MAX, "{threads} threads");
}

#[tokio::test]
async fn a_waiter_keeps_its_file_open_while_it_polls() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder).await;
    let mut child = Child::holder(folder.path());
    child.held().await;
    let waiter = waiting(&session).await;
    let events = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&events, folder.path(), inotify::WatchFlags::OPEN).unwrap();
    // Long enough for dozens of polls and more than one check of the name.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let mut buffer = [std::mem::MaybeUninit::uninit(); 1 << 14];
    let mut events = inotify::Reader::new(&events, &mut buffer);
    assert!(events.next().is_err(), "a file was opened");
    child.release().await;
    assert!(matches!(soon("a grant", waiter).await.unwrap(), Ok(Acquired::Granted(_))));
}

#[tokio::test]
async fn waiter_reopens_a_file_that_was_moved_deleted_or_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder).await;
    let (lock_file, other) = (folder.path().join("orders%2F42.lock"), folder.path().join("other"));
    session.release(&granted(&*session).await).await.unwrap();
    for change in ["moved", "deleted", "replaced"] {
        let held = fs::File::open(&lock_file).unwrap();
        held.lock().unwrap();
        let waiter = waiting(&session).await;
        match change {
            "moved" => fs::rename(&lock_file, &other).unwrap(),
            "deleted" => fs::remove_file(&lock_file).unwrap(),
            _ => {
                fs::copy(&lock_file, &other).unwrap();
                fs::rename(&other, &lock_file).unwrap();
            }
        }
        match soon(change, waiter).await.unwrap().unwrap() {
            Acquired::Granted(grant) => session.release(&grant).await.unwrap(),
            other => panic!("{other:?}"),
        }
        drop(held);
    }
}

#[tokio::test]
async fn a_late_release_does_not_touch_the_next_grant() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder).await;
    let first = granted(&*session).await;
    session.release(&first).await.unwrap();
    let _second = granted(&*session).await;
    session.release(&first).await.unwrap();
    let busy = session.acquire(claim(false, &ClaimControl::new())).await.unwrap();
    assert!(matches!(busy, Acquired::GaveUp));
}

#[tokio::test]
async fn release_frees_the_lock_despite_other_handles() {
    let folder = tempfile::tempdir().unwrap();
    let backend = FileBackend::new(FileConfig::new(folder.path()).unwrap());
    let session = backend.open_session(Duration::MAX, Clock::boot()).await.unwrap();
    let name = LockName::new(NAME).unwrap();
    assert!(backend.locked_file(&name).unwrap().is_none());
    let held = granted(&*session).await;
    let _handle = backend.locked_file(&name).unwrap().unwrap();
    session.release(&held).await.unwrap();
    assert!(backend.locked_file(&name).unwrap().is_none());
    granted(&*session).await;
}

#[tokio::test]
async fn closing_frees_everything_and_ends_every_wait() {
    let folder = tempfile::tempdir().unwrap();
    let (session, other) = (session(&folder).await, session(&folder).await);
    let held = granted(&*session).await;
    let mut waiting = pin!(session.acquire(claim(true, &ClaimControl::new())));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    session.close().await.unwrap();
    assert_eq!(soon("the end of the wait", waiting).await.unwrap_err().kind(), ErrorKind::Closed);
    let next = granted(&*other).await;
    other.release(&next).await.unwrap();
    let late = session.acquire(claim(false, &ClaimControl::new())).await;
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Closed);
    granted(&*other).await;
    session.release(&held).await.unwrap();
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_future_that_is_dropped_after_any_poll_leaves_the_lock_free() {
    let folder = tempfile::tempdir().unwrap();
    let (dropping, other) = (session(&folder).await, session(&folder).await);
    for polls in 0..8 {
        let mut acquire = Box::pin(dropping.acquire(claim(true, &ClaimControl::new())));
        let mut answer = Poll::Pending;
        for _ in 0..polls {
            answer = acquire.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if answer.is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(acquire);
        if let Poll::Ready(Ok(Acquired::Granted(grant))) = answer {
            dropping.release(&grant).await.unwrap();
        }
        let next = granted(&*other).await;
        other.release(&next).await.unwrap();
    }
}

#[tokio::test]
async fn a_dropped_session_frees_its_locks() {
    let folder = tempfile::tempdir().unwrap();
    let (dropped, other) = (session(&folder).await, session(&folder).await);
    granted(&*dropped).await;
    drop(dropped);
    granted(&*other).await;
}

#[test]
fn a_runtime_that_ends_frees_its_locks() {
    let folder = tempfile::tempdir().unwrap();
    let run = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let first = run();
    let (client_of_first, guard) = first.block_on(async {
        let client = client(folder.path()).await;
        let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
        (client, guard)
    });
    drop(first);
    assert!(!guard.is_held());
    drop((guard, client_of_first));
    run().block_on(async {
        let lock = client(folder.path()).await.lock(NAME).unwrap();
        assert!(lock.try_acquire().await.unwrap().is_some());
    });
}
