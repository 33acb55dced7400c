//! Callers that block, on real backends: threads that share locks, without any runtime.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are not recognised as tests")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
};

use lockkit::{
    ErrorKind,
    blocking::{Client, Guard, Lock, LockAll, SetGuard, connect},
};
use lockkit_testbed::HANG;

const THREADS: u64 = 12;
const ROUNDS: u64 = 40;

/// Counts under one lock in many threads, which share two clients: two holders at once would lose an increment.
fn threads_count(url: &str) {
    let counter = Arc::new(AtomicU64::new(0));
    let clients = [connect(url).unwrap(), connect(url).unwrap()];
    let (done, finished) = mpsc::channel();
    for number in 0..THREADS {
        let (client, counter, done) =
            (clients[number as usize % 2].clone(), Arc::clone(&counter), done.clone());
        thread::spawn(move || {
            let lock = client.lock("counter").unwrap();
            let mut last = None;
            for _ in 0..ROUNDS {
                let guard = lock.acquire().unwrap();
                assert!(Some(guard.token()) > last, "tokens rise");
                last = Some(guard.token());
                let seen = counter.load(Ordering::SeqCst);
                thread::yield_now();
                counter.store(seen + 1, Ordering::SeqCst);
                // Some are released in the background.
                if seen % 2 == 0 { guard.release().unwrap() } else { drop(guard) }
            }
            done.send(()).unwrap();
        });
    }
    for _ in 0..THREADS {
        finished.recv_timeout(HANG).expect("no thread hangs or panics");
    }
    assert_eq!(counter.load(Ordering::SeqCst), THREADS * ROUNDS);
    for client in clients {
        client.close().unwrap();
    }
}

#[test]
fn threads_count_in_memory() {
    threads_count("memory:blocking-count");
}

#[cfg(feature = "file")]
#[test]
fn threads_count_with_files() {
    let folder = tempfile::tempdir().unwrap();
    threads_count(&format!("file://{}", folder.path().display()));
}

#[test]
fn closed_client_leaves_no_lock_behind() {
    let (one, other) =
        (connect("memory:blocking-close?ttl=60s").unwrap(), connect("memory:blocking-close").unwrap());
    let guard = one.lock_all(["a", "b"]).unwrap().acquire().unwrap();
    assert!(other.lock("b").unwrap().try_acquire().unwrap().is_none());
    one.close().unwrap();
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    assert!(other.lock_all(["b", "a"]).unwrap().try_acquire().unwrap().is_some(), "not after the ttl");
}

#[test]
fn types_can_be_shared_between_threads() {
    fn is_shared<T: Send + Sync + 'static>() {}
    fn is_cloned<T: Clone>() {}
    is_shared::<(Client, Lock, LockAll)>();
    is_shared::<(Guard, SetGuard)>();
    is_cloned::<(Client, Lock, LockAll)>();
}

#[test]
fn mistakes_in_a_url_are_reported_before_a_thread_starts() {
    for url in ["", "memory:?ttl=soon", "consul://127.0.0.1"] {
        assert_eq!(connect(url).unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
    }
}

#[tokio::test]
async fn connect_is_refused_inside_a_runtime() {
    assert_eq!(connect("memory:").unwrap_err().kind(), ErrorKind::Unsupported);
}
