mod slow_disk;

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
};

use backon::BackoffBuilder;
use lockkit_core::{
    LockName, Metadata,
    backend::{ClaimControl, Renewal},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::*;
use super::{
    acquire::{LockingOutcome, NoGrant, POLL, POLL_PAUSE_MAX, POLL_PAUSE_MIN, YIELD_PAUSE},
    powers::LEADER_POLL_PAUSE,
};
use crate::{
    disk::CHANGES_MAX,
    lock_file::{LockFile, TakeOutcome},
};

fn session(folder: &tempfile::TempDir) -> Arc<FileSession> {
    Arc::new(FileSession::new(Arc::new(Folder::new(folder.path())), Disk::new(), Clock::boot()))
}

fn claim(control: &ClaimControl) -> Claim {
    claim_of("a", control)
}

fn claim_of(name: &str, control: &ClaimControl) -> Claim {
    Claim::new(LockName::new(name).unwrap(), true, Metadata::of_this_process(None), control)
}

async fn granted(session: &FileSession) -> Grant {
    granted_lock(session, "a").await
}

async fn granted_lock(session: &FileSession, name: &str) -> Grant {
    match session.acquire(claim_of(name, &ClaimControl::new())).await.unwrap() {
        Acquired::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

/// Starts a waiter; returns once it has found the lock held.
async fn waiter(session: &Arc<FileSession>, control: &ClaimControl) -> JoinHandle<NoGrant> {
    let (waiting, claim) = (Arc::clone(session), claim(control));
    let waiter = tokio::spawn(async move { waiting.acquire(claim).await });
    while !control.was_contended() {
        tokio::task::yield_now().await;
    }
    waiter
}

/// Lets a waiter poll a file that another client has locked, and ends its wait. Returns its result.
async fn ends_a_poll(end: impl AsyncFnOnce(&FileSession, &ClaimControl)) -> NoGrant {
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

/// Polls a lock that is held for this time.
async fn poll_held_lock(time: Duration, pauses: &mut impl Iterator<Item = Duration>) {
    let folder = tempfile::tempdir().unwrap();
    let (holding, waiting, control) = (session(&folder), session(&folder), ClaimControl::new());
    let _held = granted(&holding).await;
    let claim = claim(&control);
    let Ok(LockingOutcome::Busy(file)) = waiting.attempt(&claim, None).await else {
        panic!("the lock is held")
    };
    assert!(timeout(time, waiting.poll(&claim, file, pauses)).await.is_err(), "it is held");
}

#[tokio::test(start_paused = true)]
async fn a_poll_follows_each_pause() {
    const PAUSE: Duration = Duration::from_millis(100);
    let mut taken = 0;
    let mut pauses = std::iter::repeat_with(|| {
        taken += 1;
        PAUSE
    });
    poll_held_lock(PAUSE * 5 / 2, &mut pauses).await;
    assert_eq!(taken, 3);
}

/// Before the first check whether the file still has its name.
#[tokio::test(start_paused = true)]
async fn waiter_polls_twenty_times_a_second() {
    let mut polls = 0;
    let mut pauses = POLL.build().inspect(|_| polls += 1);
    poll_held_lock(Duration::from_millis(900), &mut pauses).await;
    assert!(polls >= 20, "{polls}");
}

#[tokio::test(start_paused = true)]
async fn local_queue_yields_to_other_processes() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let held = granted(&session).await;
    let waiter = waiter(&session, &ClaimControl::new()).await;
    tokio::time::advance(crate::session::local_queue::STREAK_MAX).await;
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
    let Ok(LockingOutcome::Granted(grant, hold)) = tried else { panic!("{tried:?}") };
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

/// Time stands still while a file is read: no heartbeat takes too long.
#[tokio::test(start_paused = true)]
async fn released_hold_is_gone_and_its_session_is_renewed() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let (released, held) = (granted_lock(&session, "a").await, granted_lock(&session, "b").await);
    session.release(&released).await.unwrap();
    let renewals = session.renew(&[released, held]).await;
    assert!(matches!(renewals.session, Renewal::Renewed { .. }), "{renewals:?}");
    let [(_, released), (_, held)] = &renewals.holds[..] else { panic!("{renewals:?}") };
    assert!(matches!(released, Renewal::Gone) && matches!(held, Renewal::Renewed { .. }), "{renewals:?}");
}

#[tokio::test(start_paused = true)]
async fn file_in_place_of_the_folder_ends_session_and_holds() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("locks");
    std::fs::create_dir(&path).unwrap();
    let session = FileSession::new(Arc::new(Folder::new(&path)), Disk::new(), Clock::boot());
    let held = granted(&session).await;
    std::fs::remove_dir_all(&path).unwrap();
    std::fs::write(&path, "").unwrap();
    let renewals = session.renew(&[held]).await;
    assert!(matches!(renewals.session, Renewal::Gone), "{renewals:?}");
    assert!(matches!(renewals.holds[..], [(_, Renewal::Gone)]), "{renewals:?}");
}

/// The folder becomes a link to itself.
#[tokio::test(start_paused = true)]
async fn session_whose_folder_cannot_be_checked_is_unknown() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("locks");
    fs::create_dir(&path).unwrap();
    let session = FileSession::new(Arc::new(Folder::new(&path)), Disk::new(), Clock::boot());
    let held = granted(&session).await;
    fs::rename(&path, parent.path().join("moved")).unwrap();
    symlink("locks", &path).unwrap();
    let renewals = session.renew(&[held]).await;
    assert!(matches!(renewals.session, Renewal::Unknown(_)), "{renewals:?}");
    assert!(matches!(renewals.holds[..], [(_, Renewal::Unknown(_))]), "{renewals:?}");
}

#[tokio::test(start_paused = true)]
async fn close_is_confirmed_once_every_change_has_ended() {
    const HOLDS: usize = 4;
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let mut changes = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let grant = granted_lock(&session, name).await;
        let files = Arc::clone(session.holds()[&grant.claim()].files());
        changes.push(files.change().await.unwrap());
    }
    let start = Instant::now();
    for ended in 0..HOLDS {
        assert_eq!(session.close().await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(session.holds().len(), HOLDS - ended, "a hold was forgotten before its lock was free");
        drop(changes.pop());
    }
    assert!(start.elapsed() < (HOLDS as u32 + 1) * ANSWER_MAX, "the changes do not wait side by side");
    session.close().await.unwrap();
    let other = FileSession::new(Arc::new(Folder::new(folder.path())), Disk::new(), Clock::boot());
    granted_lock(&other, "a").await;
}

#[tokio::test(start_paused = true)]
async fn release_is_confirmed_once_a_change_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let held = granted(&session).await;
    let files = Arc::clone(session.holds()[&held.claim()].files());
    let change = files.change().await.unwrap();
    for _ in 0..2 {
        let error = session.release(&held).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "the file is still locked");
        assert_eq!((error.operation(), error.lock()), ("release", Some(held.name())), "{error}");
    }
    drop(change);
    session.release(&held).await.unwrap();
    granted(&session).await;
}

#[tokio::test(start_paused = true)]
async fn claim_that_waits_for_a_thread_gives_up_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (session, control) = (session(&folder), ClaimControl::new());
    let mut taken = Vec::new();
    for _ in 0..CHANGES_MAX {
        taken.push(session.disk.change("test").await.unwrap());
    }
    let mut acquiring = std::pin::pin!(session.acquire(claim(&control)));
    assert!(timeout(Duration::from_secs(1), &mut acquiring).await.is_err(), "no thread is left");
    control.give_up();
    let over = timeout(Duration::from_secs(1), acquiring).await.expect("it waits for the thread");
    assert!(matches!(over, Ok(Acquired::GaveUp)), "{over:?}");
}

#[tokio::test]
async fn closed_session_is_gone_although_its_folder_exists() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let grant = granted(&session).await;
    session.close().await.unwrap();
    let renewals = session.renew(&[grant]).await;
    assert!(matches!(renewals.session, Renewal::Gone), "{renewals:?}");
    assert!(matches!(renewals.holds[..], [(_, Renewal::Gone)]), "{renewals:?}");
}

#[tokio::test]
async fn each_file_of_a_lock_has_the_permissions_of_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let session = session(&folder);
    let grant = granted(&session).await;
    assert!(session.records().unwrap().write(&grant, "done", Duration::ZERO).await.unwrap());
    let mode = |file: &str| fs::metadata(folder.path().join(file)).unwrap().permissions().mode() & 0o777;
    for file in ["a.lock", "a.holder", "a.record"] {
        assert_eq!(mode(file), 0o666, "{file}");
    }
    session.release(&grant).await.unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o770)).unwrap();
    let next = granted(&session).await;
    for file in ["a.lock", "a.holder"] {
        assert_eq!(mode(file), 0o660, "{file} does not follow its folder");
    }
    session.release(&next).await.unwrap();
}

#[test]
fn poll_pauses_grow_and_have_jitter_of_up_to_their_length() {
    const PAUSES: usize = 40;
    let pauses = || POLL.build().take(PAUSES).collect::<Vec<_>>();
    let (one, other) = (pauses(), pauses());
    let mut shortest = POLL_PAUSE_MIN;
    for pause in &one {
        assert!((shortest..=shortest * 2).contains(pause), "{pause:?} of {shortest:?}");
        shortest = shortest.mul_f64(1.5).min(POLL_PAUSE_MAX);
    }
    assert_ne!(one, other, "two waiters would poll at the same moments");
}

/// Its readers would take it for one that has resigned.
#[tokio::test]
async fn leader_whose_proclaim_fails_keeps_its_earlier_file_locked() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let proposing = |number: u64| {
        let proposal = lockkit_core::Proposal::new(number.to_string(), number);
        Metadata::of_this_process(None).with_proposal(proposal)
    };
    let claim = Claim::new(LockName::new("a").unwrap(), true, proposing(1), &ClaimControl::new());
    let Ok(Acquired::Granted(grant)) = session.acquire(claim).await else { panic!("it is free") };
    let holder = folder.path().join("a.holder");
    let earlier = fs::File::open(&holder).unwrap();
    // No file replaces a folder.
    fs::remove_file(&holder).unwrap();
    fs::create_dir(&holder).unwrap();
    session.elections().unwrap().proclaim(&grant, &proposing(2)).await.unwrap_err();
    let locked = earlier.try_lock_shared();
    assert!(matches!(locked, Err(fs::TryLockError::WouldBlock)), "{locked:?}");
}

#[tokio::test(start_paused = true)]
async fn observer_looks_once_per_pause_also_after_it_was_late() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let mut watch = session.elections().unwrap().watch(&LockName::new("a").unwrap()).await.unwrap();
    let start = Instant::now();
    watch.changed().await;
    assert_eq!(start.elapsed(), LEADER_POLL_PAUSE);
    tokio::time::advance(LEADER_POLL_PAUSE * 10).await;
    watch.changed().await;
    let late = Instant::now();
    watch.changed().await;
    assert_eq!(late.elapsed(), LEADER_POLL_PAUSE, "the looks that it missed came in a burst");
}

#[tokio::test(start_paused = true)]
async fn observer_looks_four_times_a_second() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let mut watch = session.elections().unwrap().watch(&LockName::new("a").unwrap()).await.unwrap();
    let start = Instant::now();
    for _ in 0..4 {
        watch.changed().await;
    }
    assert_eq!(start.elapsed(), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn lock_from_another_client_begins_a_new_streak() {
    let folder = tempfile::tempdir().unwrap();
    let (holding, session) = (session(&folder), session(&folder));
    let held = granted(&holding).await;
    let polling = waiter(&session, &ClaimControl::new()).await;
    let queued = waiter(&session, &ClaimControl::new()).await;
    tokio::time::sleep(crate::session::local_queue::STREAK_MAX * 2).await;
    holding.release(&held).await.unwrap();
    let Ok(Acquired::Granted(first)) = polling.await.unwrap() else { panic!("it is free") };
    let released = Instant::now();
    session.release(&first).await.unwrap();
    assert!(matches!(queued.await.unwrap(), Ok(Acquired::Granted(_))));
    assert_eq!(released.elapsed(), Duration::ZERO, "it paused at the begin of its streak");
}
