//! A disk that hangs, or whose threads are all busy.

use std::{future::poll_fn, pin::pin, task::Poll};

use lockkit_core::backend::Admin;

use super::*;
use crate::{FileBackend, FileConfig};

/// Polls a file that another client has locked, while the disk hangs, with this pause between two polls. Ends after
/// `time`, or with the poll. Returns the number of polls, and the result of the poll.
async fn polls_of_a_hanging_disk(
    pause: Duration,
    time: Duration,
    control: &ClaimControl,
    end: impl AsyncFnOnce(&FileSession),
) -> (u32, Option<std::result::Result<bool, NoGrant>>) {
    let folder = tempfile::tempdir().unwrap();
    let (holding, waiting) = (session(&folder), session(&folder));
    let _held = granted(&holding).await;
    let claim = claim(control);
    let Ok(LockingOutcome::Busy(file)) = waiting.attempt(&claim, None).await else {
        panic!("the lock is held")
    };
    let _hangs = waiting.disk.hang();
    let mut polls = 0;
    let mut pauses = std::iter::repeat_with(|| {
        polls += 1;
        pause
    });
    let polling = async {
        let polling = timeout(time, waiting.poll(&claim, file, &mut pauses));
        let (polled, ()) = tokio::join!(polling, end(&waiting));
        polled
    };
    let polled = match polling.await {
        Ok(Ok(locked)) => Some(Ok(locked.is_some())),
        Ok(Err(end)) => Some(Err(end)),
        Err(_) => None,
    };
    (polls, polled)
}

#[tokio::test(start_paused = true)]
async fn poll_goes_on_while_the_disk_hangs_and_checks_the_name_once_per_second() {
    let (pause, time) = (Duration::from_millis(100), Duration::from_millis(8_050));
    let (polls, ended) =
        polls_of_a_hanging_disk(pause, time, &ClaimControl::new(), async |_: &FileSession| {}).await;
    assert!(ended.is_none(), "a check that fails says nothing: {ended:?}");
    // A second of polls, and a second in which the check waits for the disk.
    assert!((40..=45).contains(&polls), "{polls}");
}

#[tokio::test(start_paused = true)]
async fn claim_that_waits_for_a_check_of_its_file_ends_at_once() {
    // The first check begins after a second.
    let (pause, checking) = (Duration::from_millis(100), Duration::from_millis(1_500));
    let control = ClaimControl::new();
    let start = Instant::now();
    let give_up = async |_: &FileSession| {
        tokio::time::sleep(checking).await;
        control.give_up();
    };
    let (_, ended) = polls_of_a_hanging_disk(pause, checking * 2, &control, give_up).await;
    assert!(matches!(ended, Some(Err(Ok(Acquired::GaveUp)))), "{ended:?}");
    assert_eq!(start.elapsed(), checking);
    let start = Instant::now();
    let close = async |session: &FileSession| {
        tokio::time::sleep(checking).await;
        session.close().await.unwrap();
    };
    let (_, ended) = polls_of_a_hanging_disk(pause, checking * 2, &ClaimControl::new(), close).await;
    let Some(Err(Err(error))) = ended else { panic!("{ended:?}") };
    assert_eq!((error.kind(), start.elapsed()), (ErrorKind::Closed, checking));
}

/// Otherwise the lock would be taken after the call has returned. The lock is free, so the attempt gets it.
#[tokio::test]
async fn claim_that_gives_up_awaits_its_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let (session, control) = (session(&folder), ClaimControl::new());
    let mut acquiring = pin!(session.acquire(claim(&control)));
    let first = poll_fn(|context| Poll::Ready(acquiring.as_mut().poll(context))).await;
    assert!(first.is_pending(), "the attempt is under way");
    control.give_up();
    let acquired = acquiring.await.unwrap();
    assert!(matches!(acquired, Acquired::Granted(_)), "{acquired:?}");
}

#[tokio::test(start_paused = true)]
async fn reads_of_a_disk_that_hangs_fail_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let held = granted(&session).await;
    let _hangs = session.disk.hang();
    let start = Instant::now();
    let renewals = session.renew(&[held]).await;
    assert!(matches!(renewals.session, Renewal::Unknown(_)), "{renewals:?}");
    assert_eq!(start.elapsed(), crate::HEARTBEAT);
    let (start, name) = (Instant::now(), LockName::new("a").unwrap());
    let error = session.elections().unwrap().leader(&name).await.unwrap_err();
    assert_eq!((error.kind(), start.elapsed()), (ErrorKind::Unavailable, ANSWER_MAX));
    let start = Instant::now();
    let error = session.records().unwrap().read(&name).await.unwrap_err();
    assert_eq!((error.kind(), start.elapsed()), (ErrorKind::Unavailable, ANSWER_MAX));
    assert_eq!((error.operation(), error.lock()), ("read record", Some(&name)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn disk_that_hangs_is_noticed_after_ten_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let _hangs = session.disk.hang();
    let start = Instant::now();
    session.elections().unwrap().leader(&LockName::new("a").unwrap()).await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn operators_of_a_disk_that_hangs_get_an_error_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let backend = FileBackend::new(FileConfig::new(folder.path()).unwrap());
    let _hangs = backend.disk.hang();
    let (start, name) = (Instant::now(), LockName::new("a").unwrap());
    let error = backend.inspect(&name).await.unwrap_err();
    assert_eq!((error.kind(), start.elapsed()), (ErrorKind::Unavailable, ANSWER_MAX));
    assert_eq!((error.operation(), error.lock()), ("inspect", Some(&name)), "{error}");
    let start = Instant::now();
    let error = backend.list("", None, 1).await.unwrap_err();
    assert_eq!((error.kind(), start.elapsed()), (ErrorKind::Unavailable, ANSWER_MAX));
}

#[tokio::test(start_paused = true)]
async fn change_that_waits_for_another_one_fails_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let held = granted(&session).await;
    let files = Arc::clone(session.holds()[&held.claim()].files());
    let _change = files.change().await.unwrap();
    let start = Instant::now();
    let error = session.records().unwrap().write(&held, "1", Duration::ZERO).await.unwrap_err();
    assert_eq!((error.kind(), start.elapsed()), (ErrorKind::Unavailable, ANSWER_MAX));
    assert_eq!((error.operation(), error.lock()), ("write record", Some(held.name())), "{error}");
}

#[tokio::test(start_paused = true)]
async fn release_does_not_wait_for_a_change_that_waits_for_a_thread() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(&folder);
    let held = granted(&session).await;
    let mut taken = Vec::new();
    for _ in 0..CHANGES_MAX {
        taken.push(session.disk.change("test").await.unwrap());
    }
    let mut writing = session.records().unwrap().write(&held, "1", Duration::ZERO);
    let start = Instant::now();
    assert!(timeout(Duration::from_millis(1), &mut writing).await.is_err(), "no thread is left");
    timeout(Duration::from_millis(1), session.release(&held)).await.expect("it waits").unwrap();
    assert_eq!(start.elapsed(), Duration::from_millis(1));
    taken.clear();
    assert!(!writing.await.unwrap(), "written after the release");
}
