use std::os::unix::fs::symlink;

use lockkit_core::{
    LockName, Metadata,
    backend::{ClaimControl, Renewal},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::*;
use crate::{
    acquire::{AttemptOutcome, EarlyEnd, YIELD_PAUSE},
    lock_file::{LockFile, TakeOutcome},
};

fn session(folder: &tempfile::TempDir) -> Arc<FileSession> {
    Arc::new(FileSession::new(Arc::new(Folder::new(folder.path())), Disk::new(), Clock::boot()))
}

fn claim(control: &ClaimControl) -> Claim {
    Claim::new(LockName::new("a").unwrap(), true, Metadata::of_this_process(None), control)
}

async fn granted(session: &FileSession) -> Grant {
    match session.acquire(claim(&ClaimControl::new())).await.unwrap() {
        Acquired::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

/// Starts a waiter; returns once it has found the lock held.
async fn waiter(session: &Arc<FileSession>, control: &ClaimControl) -> JoinHandle<EarlyEnd> {
    let (waiting, claim) = (Arc::clone(session), claim(control));
    let waiter = tokio::spawn(async move { waiting.acquire(claim).await });
    while !control.was_contended() {
        tokio::task::yield_now().await;
    }
    waiter
}

/// Lets a waiter poll a file that another client has locked, and ends its wait. Returns its result.
async fn ends_a_poll(end: impl AsyncFnOnce(&FileSession, &ClaimControl)) -> EarlyEnd {
    let folder = tempfile::tempdir().unwrap();
    let (holding, waiting, control) = (session(&folder), session(&folder), ClaimControl::new());
    let _held = granted(&holding).await;
    let waiter = waiter(&waiting, &control).await;
    let start = Instant::now();
    end(&waiting, &control).await;
    let over = waiter.await.unwrap();
    // Paused time advances only when all tasks are idle, so the waiter has not slept through a single pause.
    assert_eq!(start.elapsed(), Duration::ZERO);
    over
}

#[tokio::test(start_paused = true)]
async fn polling_waiter_gives_up_at_once() {
    let over = ends_a_poll(async |_: &FileSession, control: &ClaimControl| control.give_up()).await;
    assert!(matches!(over, Ok(Acquired::GaveUp)), "{over:?}");
}

#[tokio::test(start_paused = true)]
async fn close_ends_a_polling_waiter_at_once() {
    let close = async |session: &FileSession, _: &ClaimControl| session.close().await.unwrap();
    assert_eq!(ends_a_poll(close).await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_poll_follows_each_pause() {
    const PAUSE: Duration = Duration::from_millis(100);
    let folder = tempfile::tempdir().unwrap();
    let (holding, waiting, control) = (session(&folder), session(&folder), ClaimControl::new());
    let _held = granted(&holding).await;
    let claim = claim(&control);
    let Ok(AttemptOutcome::Busy(file)) = waiting.attempt(&claim, None).await else {
        panic!("the lock is held")
    };
    let mut taken = 0;
    let mut pauses = std::iter::repeat_with(|| {
        taken += 1;
        PAUSE
    });
    let polling = waiting.poll(&claim, file, &mut pauses);
    assert!(timeout(PAUSE * 5 / 2, polling).await.is_err(), "it is held");
    assert_eq!(taken, 3);
}

#[tokio::test(start_paused = true)]
async fn local_queue_yields_to_other_processes() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let held = granted(&session).await;
    let waiter = waiter(&session, &ClaimControl::new()).await;
    tokio::time::advance(crate::local_queue::STREAK_MAX).await;
    let released = Instant::now();
    session.release(&held).await.unwrap();
    assert!(matches!(waiter.await.unwrap(), Ok(Acquired::Granted(_))));
    assert!(released.elapsed() >= YIELD_PAUSE, "{:?}", released.elapsed());
}

#[tokio::test]
async fn grant_after_the_close_is_released() {
    let folder = tempfile::tempdir().unwrap();
    let (closing, other) = (session(&folder), session(&folder));
    let tried = closing.attempt(&claim(&ClaimControl::new()), None).await;
    let Ok(AttemptOutcome::Granted(grant, hold)) = tried else { panic!("{tried:?}") };
    closing.close().await.unwrap();
    assert_eq!(closing.keep(grant, hold).unwrap_err().kind(), ErrorKind::Closed);
    assert!(closing.holds().is_empty());
    granted(&other).await;
}

/// The path to the file becomes a link to itself. (Missing permissions would do the same, but not for root.)
#[tokio::test(start_paused = true)]
async fn hold_whose_file_cannot_be_checked_is_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let deeper = folder.path().join("deeper");
    std::fs::create_dir(&deeper).unwrap();
    let attempt = LockFile::take(&Folder::new(&deeper), &deeper.join("a.lock"), None).unwrap();
    let TakeOutcome::Locked(lock, token) = attempt else { panic!("{attempt:?}") };
    let location = Arc::clone(lock.location());
    let grant = Grant::new(&claim(&ClaimControl::new()), token, session.clock.now());
    session.holds().insert(grant.claim(), Hold::new(lock, None));
    std::fs::rename(&deeper, folder.path().join("moved")).unwrap();
    symlink("deeper", &deeper).unwrap();
    location.is_current().unwrap_err();
    let heartbeat = session.renew(&[grant]).await;
    assert!(matches!(heartbeat.session, Renewal::Renewed { .. }), "{heartbeat:?}");
    assert!(matches!(heartbeat.holds[..], [(_, Renewal::Unknown(_))]), "{heartbeat:?}");
}
