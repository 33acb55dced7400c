//! Files with a second name (hard links), which must never be written.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockkit_core::{
    Clock, ErrorKind, LockName, Metadata,
    backend::{Acquired, Backend, Claim, ClaimControl},
};
use lockkit_file::{FileBackend, FileConfig};

use crate::{
    child::{Child, NAME},
    client, soon,
};

const LOCK_FILE: &str = "orders%2F42.lock";
const HOLDER_FILE: &str = "orders%2F42.holder";

/// Creates a folder for locks, and a file outside of it for tests to link into it.
fn folder_and_victim(content: &str) -> (tempfile::TempDir, std::path::PathBuf, std::path::PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let (folder, victim) = (parent.path().join("locks"), parent.path().join("victim"));
    fs::create_dir(&folder).unwrap();
    fs::write(&victim, content).unwrap();
    (parent, folder, victim)
}

#[tokio::test]
async fn nothing_is_written_to_a_file_that_is_linked_as_the_holder_file() {
    let (_parent, folder, victim) = folder_and_victim("precious");
    fs::hard_link(&victim, folder.join(HOLDER_FILE)).unwrap();
    let _guard = client(&folder).await.lock(NAME).unwrap().acquire().await.unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

#[tokio::test]
async fn nothing_is_written_to_an_empty_file_that_is_linked_as_the_lock_file() {
    let (_parent, folder, victim) = folder_and_victim("");
    fs::hard_link(&victim, folder.join(LOCK_FILE)).unwrap();
    let error = client(&folder).await.lock(NAME).unwrap().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("hard link") && error.to_string().contains(LOCK_FILE), "{error}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "");
}

#[tokio::test]
async fn lock_file_linked_while_a_waiter_polls_is_not_written() {
    let (parent, folder, _) = folder_and_victim("");
    let mut child = Child::holder(&folder);
    child.held().await;
    let before = fs::read(folder.join(LOCK_FILE)).unwrap();
    let backend = FileBackend::new(FileConfig::new(&folder).unwrap());
    let session = backend.open_session(Duration::MAX, Clock::boot()).await.unwrap();
    let control = ClaimControl::new();
    let claim = Claim::new(LockName::new(NAME).unwrap(), true, Metadata::of_this_process(None), &control);
    let waiter = tokio::spawn(async move { session.acquire(claim).await });
    soon("the first poll", async {
        while !control.was_contended() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    fs::hard_link(folder.join(LOCK_FILE), parent.path().join("second name")).unwrap();
    child.release().await;
    let error = soon("an answer", waiter).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(fs::read(folder.join(LOCK_FILE)).unwrap(), before);
}

/// Time stands still while a file is read: no heartbeat takes too long.
#[tokio::test(start_paused = true)]
async fn a_hold_survives_a_second_name_of_its_file() {
    let (parent, folder, _) = folder_and_victim("");
    let backend = FileBackend::new(FileConfig::new(&folder).unwrap());
    let session = backend.open_session(Duration::MAX, Clock::boot()).await.unwrap();
    let name = LockName::new(NAME).unwrap();
    let claim = Claim::new(name, true, Metadata::of_this_process(None), &ClaimControl::new());
    let Acquired::Granted(held) = session.acquire(claim).await.unwrap() else { panic!("it is free") };
    fs::hard_link(folder.join(LOCK_FILE), parent.path().join("second name")).unwrap();
    let heartbeat = session.renew(std::slice::from_ref(&held)).await;
    assert!(
        matches!(heartbeat.holds[..], [(_, lockkit_core::backend::Renewal::Renewed { .. })]),
        "{heartbeat:?}"
    );
    session.release(&held).await.unwrap();
}

/// Replaces files of the folder by links to the victim and removes them, in a loop. Returns how often.
fn put_links(folder: &Path, victim: &Path, stop: &AtomicBool) -> usize {
    let link = folder.join("link");
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        for name in [HOLDER_FILE, LOCK_FILE] {
            fs::hard_link(victim, &link).unwrap();
            fs::rename(&link, folder.join(name)).unwrap();
            // A rename between two names of the same file does nothing.
            let _ = fs::remove_file(&link);
            let _ = fs::remove_file(folder.join(name));
            count += 1;
        }
    }
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn links_that_come_and_go_never_lead_to_a_write() {
    const TRIES: usize = 1000;
    let (_parent, folder, victim) = folder_and_victim("");
    let lock = client(&folder).await.lock(NAME).unwrap();
    let inode = fs::metadata(&victim).unwrap().ino();
    let stop = Arc::new(AtomicBool::new(false));
    let linker = {
        let (folder, victim, stop) = (folder.clone(), victim.clone(), Arc::clone(&stop));
        tokio::task::spawn_blocking(move || put_links(&folder, &victim, &stop))
    };
    for _ in 0..TRIES {
        // May fail, be granted or be busy: a lock file that others keep replacing excludes nobody.
        drop(lock.try_acquire().await);
    }
    stop.store(true, Ordering::Relaxed);
    assert!(linker.await.unwrap() > 0);
    let found = fs::metadata(&victim).unwrap();
    assert_eq!((found.len(), found.ino()), (0, inode), "the victim was written");
}
