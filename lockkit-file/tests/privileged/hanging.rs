//! A disk that hangs costs few threads, and no hold is lost.

use std::{path::Path, sync::Arc, time::Duration};

use lockkit_conformance::direct::HANG;
use lockkit_core::{
    Clock, ErrorKind, LockName, Metadata,
    backend::{Acquired, Backend, Claim, ClaimControl, Renewal, Session},
};
use lockkit_file::{FileBackend, FileConfig};
use tokio::task::JoinHandle;

use crate::{
    Test,
    fuse::Fuse,
    process::{Process, ROOT, say},
};

pub(crate) const TESTS: &[Test] = &[("disk_that_hangs_costs_one_thread_per_client", one_thread_per_client)];

/// Locks that one client holds, and for which the other one waits.
const LOCKS: usize = 50;

/// Renewals of each client while the disk hangs.
const RENEWALS: usize = 5;

/// New locks that are tried while the disk hangs.
const TRIES: usize = 40;

/// Maximum number of concurrent attempts at locks of one client.
const TRIES_AT_ONCE_MAX: usize = 16;

fn one_thread_per_client() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("locks");
    std::fs::create_dir(&folder).unwrap();
    let mut process = Process::start(ROOT, &["meet a hanging disk".as_ref(), folder.as_ref()]);
    assert_eq!(process.line(), "ready");
    let fuse = Fuse::hanging(&folder);
    process.send("it hangs");
    let stuck =
        |line: String| line.strip_prefix("stuck ").unwrap_or_else(|| panic!("{line}")).parse::<usize>();
    let renewing = stuck(process.line()).unwrap();
    assert!((1..=2).contains(&renewing), "{renewing} threads after {RENEWALS} renewals of two clients");
    let trying = stuck(process.line()).unwrap();
    assert!(trying <= 2 + TRIES_AT_ONCE_MAX, "{trying} threads after {TRIES} tries");
    assert_eq!(process.line(), "closed");
    drop(fuse);
    process.send("it is back");
    assert_eq!(process.line(), "all granted");
}

/// The body of the child process.
pub(crate) async fn meet_a_hanging_disk(folder: &Path) {
    let (holding, waiting, trying) = (session(folder).await, session(folder).await, session(folder).await);
    let mut held = Vec::new();
    for number in 0..LOCKS {
        match holding.acquire(claim(&format!("held {number}"), true, &ClaimControl::new())).await.unwrap() {
            Acquired::Granted(grant) => held.push(grant),
            other => panic!("{other:?}"),
        }
    }
    let mut waiters = Vec::new();
    for number in 0..LOCKS {
        waiters.push(start_waiting(&waiting, &format!("held {number}")).await);
    }
    say("ready");
    wait_for_line();
    for _ in 0..RENEWALS {
        let (one, other) = tokio::join!(holding.renew(&held), waiting.renew(&[]));
        assert!(matches!(one.session, Renewal::Unknown(_)) && matches!(other.session, Renewal::Unknown(_)));
    }
    say(&format!("stuck {}", stuck_threads()));
    let mut tries = Vec::new();
    for number in 0..TRIES {
        let (session, claim) =
            (Arc::clone(&trying), claim(&format!("tried {number}"), false, &ClaimControl::new()));
        tries.push(tokio::spawn(async move { session.acquire(claim).await }));
    }
    // Long enough for all of them to reach the disk. (A count that is too small fails nothing.)
    tokio::time::sleep(Duration::from_secs(2)).await;
    say(&format!("stuck {}", stuck_threads()));
    // No attempt waits for its thread once its session is closed.
    trying.close().await.unwrap();
    for tried in tries {
        let ended = tokio::time::timeout(HANG, tried).await.unwrap().unwrap();
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
    }
    say("closed");
    wait_for_line();
    for grant in &held {
        holding.release(grant).await.unwrap();
    }
    for waiter in waiters {
        let granted = tokio::time::timeout(HANG, waiter).await.unwrap().unwrap();
        assert!(matches!(granted, Ok(Acquired::Granted(_))), "{granted:?}");
    }
    say("all granted");
}

async fn session(folder: &Path) -> Arc<dyn Session> {
    let backend = FileBackend::new(FileConfig::new(folder).unwrap());
    backend.open_session(Duration::MAX, Clock::boot()).await.unwrap()
}

fn claim(name: &str, wait: bool, control: &ClaimControl) -> Claim {
    Claim::new(LockName::new(name).unwrap(), wait, Metadata::of_this_process(None), control)
}

async fn start_waiting(session: &Arc<dyn Session>, name: &str) -> JoinHandle<lockkit_core::Result<Acquired>> {
    let control = ClaimControl::new();
    let (session, claim) = (Arc::clone(session), claim(name, true, &control));
    let waiter = tokio::spawn(async move { session.acquire(claim).await });
    while !control.was_contended() {
        tokio::task::yield_now().await;
    }
    waiter
}

/// Waits for a line from the parent.
fn wait_for_line() {
    std::io::stdin().lines().next().unwrap().unwrap();
}

/// Counts the threads of this process that wait for a disk: those in state D.
fn stuck_threads() -> usize {
    let states = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|task| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).ok()?;
        // The name of the program, in brackets, may contain anything.
        Some(stat.rsplit_once(") ")?.1.starts_with('D'))
    });
    states.filter(|is_stuck| *is_stuck).count()
}
