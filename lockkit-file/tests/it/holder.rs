//! Inspections: who holds a lock.

use std::{fs, os::unix::fs::symlink};

use lockkit_core::LockClient;
use lockkit_file::{FileBackend, FileConfig, INSPECTED_DATA_CHARS_MAX};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::{
    child::{Child, NAME},
    client,
};

#[tokio::test]
async fn inspection_shows_the_holder_while_it_holds() {
    let folder = tempfile::tempdir().unwrap();
    let looking = client(folder.path()).await;
    assert_eq!(looking.inspect(NAME).await.unwrap(), Default::default());

    let backend = FileBackend::new(FileConfig::new(folder.path()).unwrap());
    let holding = LockClient::builder(backend).label("nightly \"backup\"").build().await.unwrap();
    let guard = holding.lock(NAME).unwrap().acquire().await.unwrap();
    let found = looking.inspect(NAME).await.unwrap();
    let holder = found.holder.unwrap();
    assert_eq!(holder.entry, "orders%2F42.holder");
    assert_eq!(holder.token, Some(guard.token()));
    let metadata = holder.metadata.unwrap();
    assert_eq!((metadata.pid, metadata.label.as_deref()), (std::process::id(), Some("nightly \"backup\"")));
    assert_eq!(found.waiters, []);

    guard.release().await.unwrap();
    assert_eq!(looking.inspect(NAME).await.unwrap().holder, None);
}

#[tokio::test]
async fn inspection_does_not_show_a_killed_holder() {
    let folder = tempfile::tempdir().unwrap();
    let looking = client(folder.path()).await;
    let mut child = Child::holder(folder.path());
    let token = child.held().await;
    let holder = looking.inspect(NAME).await.unwrap().holder.unwrap();
    assert_eq!(holder.token.map(|token| token.get()), Some(token));
    child.kill().await;
    assert_eq!(looking.inspect(NAME).await.unwrap().holder, None);
}

#[tokio::test]
async fn inspection_never_makes_a_try_fail() {
    let folder = tempfile::tempdir().unwrap();
    let lock = client(folder.path()).await.lock(NAME).unwrap();
    let looking = client(folder.path()).await;
    let inspections = tokio::spawn(async move {
        loop {
            let _ = tokio::join!(looking.inspect(NAME), looking.inspect(NAME), looking.inspect(NAME));
        }
    });
    for round in 0..200 {
        let guard = lock.try_acquire().await.unwrap().unwrap_or_else(|| panic!("busy in round {round}"));
        guard.release().await.unwrap();
    }
    inspections.abort();
}

/// A reader has the file locked for a moment, too.
#[tokio::test]
async fn one_inspection_is_no_holder_to_another() {
    let folder = tempfile::tempdir().unwrap();
    let client = client(folder.path()).await;
    client.lock(NAME).unwrap().acquire().await.unwrap().release().await.unwrap();
    let reader = fs::File::open(folder.path().join("orders%2F42.holder")).unwrap();
    reader.try_lock_shared().unwrap();
    assert_eq!(client.inspect(NAME).await.unwrap().holder, None);
}

#[tokio::test]
async fn foreign_content_of_a_holder_file_is_only_shown() {
    let folder = tempfile::tempdir().unwrap();
    let lock = client(folder.path()).await.lock(NAME).unwrap();
    let looking = client(folder.path()).await;
    let path = folder.path().join("orders%2F42.holder");
    let _guard = lock.acquire().await.unwrap();
    let long = "x".repeat(INSPECTED_DATA_CHARS_MAX);
    for (foreign, shown) in [
        (&b""[..], None),
        (b"\xff\xfe", Some("\u{fffd}\u{fffd}")),
        (b"7\n{}", Some("7\n{}")),
        (b"7\n", Some("7\n")),
        (b"no number\n{}", Some("no number\n{}")),
        (&[b'x'; 100_000], Some(&*long)),
    ] {
        fs::write(&path, foreign).unwrap();
        let holder = looking.inspect(NAME).await.unwrap().holder.unwrap();
        assert_eq!((holder.token, holder.metadata), (None, None), "{foreign:?}");
        assert_eq!(holder.data.as_deref(), shown);
    }
}

#[tokio::test]
async fn unusable_holder_file_does_not_prevent_a_grant() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("orders%2F42.holder")).unwrap();
    let lock = client(folder.path()).await.lock(NAME).unwrap();
    let _guard = lock.acquire().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert_eq!(client(folder.path()).await.inspect(NAME).await.unwrap().holder, None);
}

#[tokio::test]
async fn foreign_holder_file_is_replaced_and_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let (holder_file, elsewhere) =
        (folder.path().join("orders%2F42.holder"), folder.path().join("elsewhere"));
    let lock = client(folder.path()).await.lock(NAME).unwrap();
    let looking = client(folder.path()).await;
    for content in ["", "precious", "7", "7\n{}\n"] {
        fs::write(&elsewhere, content).unwrap();
        fs::rename(&elsewhere, &holder_file).unwrap();
        let opened = fs::File::open(&holder_file).unwrap();
        let guard = lock.acquire().await.unwrap();
        let holder = looking.inspect(NAME).await.unwrap().holder.unwrap();
        assert_eq!(holder.token, Some(guard.token()), "{content:?}");
        assert_eq!(std::io::read_to_string(opened).unwrap(), content);
        guard.release().await.unwrap();
    }
}

/// It cannot be opened. Otherwise inspections would show no holder for as long as it is there.
#[tokio::test]
async fn link_in_place_of_the_holder_file_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let client = client(folder.path()).await;
    symlink("elsewhere", folder.path().join("orders%2F42.holder")).unwrap();
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    assert_eq!(client.inspect(NAME).await.unwrap().holder.unwrap().token, Some(guard.token()));
    assert!(!folder.path().join("elsewhere").exists(), "it was followed");
}

#[tokio::test]
async fn locked_holder_file_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let lock = client(folder.path()).await.lock(NAME).unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    let kept = fs::File::open(folder.path().join("orders%2F42.holder")).unwrap();
    kept.try_lock().unwrap();
    let guard = lock.acquire().await.unwrap();
    let holder = client(folder.path()).await.inspect(NAME).await.unwrap().holder.unwrap();
    assert_eq!(holder.token, Some(guard.token()));
}

#[tokio::test]
async fn pipe_as_a_holder_file_does_not_block_an_inspection() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("orders%2F42.holder");
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let inspected = client(folder.path()).await.inspect(NAME).await;
    // A thread that waits for the other end of the pipe would keep this test from its end.
    let _other_end = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    assert_eq!(inspected.unwrap().holder, None);
}
