//! Records: written by the holder, read by everybody, and still there after sessions and processes.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockkit_core::{
    Error, ErrorKind, LockName,
    backend::{Grant, Session},
};

use crate::{
    child::{Child, NAME},
    grant, session, soon,
};

const LOCK_FILE: &str = "orders%2F42.lock";
const RECORD_FILE: &str = "orders%2F42.record";

async fn read(session: &dyn Session) -> Result<Option<String>, Error> {
    session.records().unwrap().read(&LockName::new(NAME).unwrap()).await
}

async fn write(session: &dyn Session, grant: &Grant, record: &str) -> Result<bool, Error> {
    session.records().unwrap().write(grant, record, Duration::ZERO).await
}

/// Returns the names of files that are neither lock, holder nor record files.
fn other_files(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !name.starts_with("orders%2F42.")).collect()
}

#[tokio::test]
async fn record_outlives_its_hold_and_its_session() {
    let folder = tempfile::tempdir().unwrap();
    let (writing, reading) = (session(folder.path()).await, session(folder.path()).await);
    assert_eq!(read(&*reading).await.unwrap(), None);
    let held = grant(&*writing, None).await;
    for record in ["first", "", "a longer one\nwith a second line\n"] {
        assert!(write(&*writing, &held, record).await.unwrap());
        assert_eq!(read(&*reading).await.unwrap().as_deref(), Some(record));
    }
    let modes = [LOCK_FILE, RECORD_FILE].map(|file| fs::metadata(folder.path().join(file)).unwrap().mode());
    assert_eq!(modes[0], modes[1]);
    writing.close().await.unwrap();
    let last = read(&*session(folder.path()).await).await.unwrap();
    assert_eq!(last.as_deref(), Some("a longer one\nwith a second line\n"));
    assert_eq!(other_files(folder.path()), [""; 0]);
}

#[tokio::test]
async fn record_of_a_stale_holder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (stale, newer) = (session(folder.path()).await, session(folder.path()).await);
    let old = grant(&*stale, None).await;
    assert!(write(&*stale, &old, "old").await.unwrap());
    stale.release(&old).await.unwrap();
    let held = grant(&*newer, None).await;
    assert!(!write(&*stale, &old, "stale").await.unwrap());
    assert_eq!(read(&*newer).await.unwrap().as_deref(), Some("old"));
    assert!(write(&*newer, &held, "new").await.unwrap());

    fs::remove_file(folder.path().join(LOCK_FILE)).unwrap();
    let held_again = grant(&*stale, None).await;
    assert!(!write(&*newer, &held, "of a lost hold").await.unwrap());
    assert_eq!(read(&*newer).await.unwrap().as_deref(), Some("new"));
    assert!(write(&*stale, &held_again, "newest").await.unwrap());
}

#[tokio::test]
async fn record_of_a_writer_that_is_killed_is_complete_and_not_older_than_acknowledged() {
    const KILLS: usize = 5;
    let folder = tempfile::tempdir().unwrap();
    let reading = session(folder.path()).await;
    for kill in 0..KILLS {
        let mut child = Child::writer(folder.path());
        let mut acknowledged = 0;
        while acknowledged < 10 + kill {
            acknowledged = child.line().await.parse().unwrap();
        }
        child.kill().await;
        let record = read(&*reading).await.unwrap().unwrap();
        let (number, filling) = record.split_once(' ').unwrap();
        let number: usize = number.parse().unwrap();
        assert!(number >= acknowledged, "{number} after {acknowledged}");
        assert_eq!(filling.len(), number % 5000);
        // What a crash leaves is no record, and has a name that shows it.
        assert!(other_files(folder.path()).iter().all(|name| name.starts_with(".new-")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_never_see_a_part_of_a_record() {
    // Each is synced, so there are not many.
    const WRITES: usize = 50;
    let folder = tempfile::tempdir().unwrap();
    let writing = session(folder.path()).await;
    let held = grant(&*writing, None).await;
    assert!(write(&*writing, &held, "").await.unwrap());
    let (reader, stop) = (session(folder.path()).await, Arc::new(AtomicBool::new(false)));
    let (stopped, seen) = (Arc::clone(&stop), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&seen);
    let reading = tokio::spawn(async move {
        let mut lengths = BTreeSet::new();
        while !stopped.load(Ordering::Relaxed) {
            let record = read(&*reader).await.unwrap().expect("it never has no name");
            assert!(record.bytes().all(|byte| usize::from(byte) == record.len() % 10 + 48), "{record}");
            lengths.insert(record.len());
            count.store(lengths.len(), Ordering::Relaxed);
        }
    });
    let mut number = 0;
    // On a busy machine, the reader may miss many of them.
    while number < WRITES || seen.load(Ordering::Relaxed) <= WRITES / 5 {
        assert!(!reading.is_finished(), "the reader has failed");
        number += 1;
        let length = number * 7919 % 50_000;
        let record = (length % 10).to_string().repeat(length);
        assert!(write(&*writing, &held, &record).await.unwrap());
    }
    stop.store(true, Ordering::Relaxed);
    soon("the reader", reading).await.unwrap();
}

#[tokio::test]
async fn foreign_record_file_is_an_error_and_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (path, elsewhere) = (folder.path().join(RECORD_FILE), folder.path().join("orders%2F42.elsewhere"));
    let session = session(folder.path()).await;
    let held = grant(&*session, None).await;
    let both_fail_with = async |kind| {
        for error in [read(&*session).await.unwrap_err(), write(&*session, &held, "x").await.unwrap_err()] {
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(RECORD_FILE), "{error}");
            assert_eq!(error.lock().map(LockName::as_str), Some(NAME));
        }
    };
    for content in [String::new(), "precious".into(), "7\n".into(), "x".repeat(100_000)] {
        fs::write(&path, &content).unwrap();
        both_fail_with(ErrorKind::Unexpected).await;
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
    fs::rename(&path, &elsewhere).unwrap();
    fs::hard_link(&elsewhere, &path).unwrap();
    both_fail_with(ErrorKind::Denied).await;
    fs::remove_file(&path).unwrap();
    symlink(&elsewhere, &path).unwrap();
    both_fail_with(ErrorKind::Denied).await;
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    both_fail_with(ErrorKind::Unexpected).await;
    fs::remove_dir(&path).unwrap();
    assert!(write(&*session, &held, "mine").await.unwrap());
    assert_eq!(other_files(folder.path()), [""; 0]);
}

#[tokio::test]
async fn record_that_is_too_long_is_refused() {
    const LONGEST: usize = 64 * 1024;
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path()).await;
    let held = grant(&*session, None).await;
    let longest = "x".repeat(LONGEST);
    assert!(write(&*session, &held, &longest).await.unwrap());
    let error = write(&*session, &held, &format!("{longest}x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert_eq!(read(&*session).await.unwrap(), Some(longest));
    // What follows the longest record is seen.
    let path = folder.path().join(RECORD_FILE);
    fs::write(&path, fs::read_to_string(&path).unwrap() + "x").unwrap();
    let error = read(&*session).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
}
