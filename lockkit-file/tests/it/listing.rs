//! What an operator asks of a folder: which locks are held, and the end of a hold, which files do not offer.

use std::{cell::Cell, fs, path::Path, time::Duration};

use lockkit_core::{
    ErrorKind, Proposal,
    backend::{Admin, Backend, Page},
};
use lockkit_file::{FileBackend, FileConfig};

use crate::{
    child::{Child, NAME},
    client, grant, metadata, session, soon,
};

fn backend(folder: &Path) -> FileBackend {
    FileBackend::new(FileConfig::new(folder).unwrap())
}

async fn page(folder: &Path, prefix: &str, after: Option<&str>, limit: usize) -> Page {
    let backend = backend(folder);
    assert!(backend.info().powers.list);
    backend.list(prefix, after, limit).await.unwrap()
}

/// Returns all listed locks, as name or as file, and the number of pages.
async fn listed(folder: &Path, prefix: &str, limit: usize) -> (Vec<String>, usize) {
    let (mut locks, mut pages, mut after) = (Vec::new(), 0, None);
    loop {
        let page = page(folder, prefix, after.as_deref(), limit).await;
        assert!(page.locks.len() <= limit, "{page:?}");
        let shown = |lock: lockkit_core::backend::ListedLock| {
            lock.name.map_or(format!("file {}", lock.entry), String::from)
        };
        locks.extend(page.locks.into_iter().map(shown));
        pages += 1;
        match page.next {
            None => return (locks, pages),
            next => after = next,
        }
    }
}

#[tokio::test]
async fn list_shows_the_locks_that_are_held_page_by_page() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (client(folder.path()).await, client(folder.path()).await);
    let (upper, long) = ("ORDERS/2", "y".repeat(1000));
    let mut guards = Vec::new();
    for (index, name) in ["a", NAME, "orders/7", "nul", ".x", upper, &long].into_iter().enumerate() {
        let client = if index % 2 == 0 { &one } else { &other };
        guards.push(client.lock(name).unwrap().acquire().await.unwrap());
    }
    // Released, and never held.
    one.lock("orders/8").unwrap().acquire().await.unwrap().release().await.unwrap();
    for file in ["orders%2F9.lock", "notes.txt", ".lock"] {
        fs::write(folder.path().join(file), "").unwrap();
    }
    // Another program's, whose name this library never writes.
    fs::write(folder.path().join("Theirs.lock"), "").unwrap();
    let theirs = fs::File::create(folder.path().join("Theirs.holder")).unwrap();
    theirs.try_lock().unwrap();
    let (all, pages) = listed(folder.path(), "", 3).await;
    let expected = [".x", upper, "nul", "file Theirs", "a", NAME, "orders/7"];
    assert_eq!((&all[..7], all.len(), pages), (&expected.map(str::to_owned)[..], 8, 3));
    assert!(all[7].starts_with("file yyy"), "{all:?}");
    for limit in [1, 2, 1000] {
        assert_eq!(listed(folder.path(), "", limit).await.0, all, "{limit}");
    }
    assert_eq!(listed(folder.path(), "orders", 1).await.0, [NAME, "orders/7"]);
    assert_eq!(listed(folder.path(), "ORDERS/", 9).await, (vec![upper.to_owned()], 1));
    assert_eq!(listed(folder.path(), "yy", 9).await.0, all[7..]);
    assert_eq!(listed(folder.path(), "z", 9).await, (Vec::new(), 1));
    assert_eq!(page(folder.path(), "", None, 0).await.locks.len(), 1, "a page without a lock has no end");
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert_eq!(listed(folder.path(), "", 9).await.0, ["file Theirs"]);
}

#[tokio::test]
async fn lock_of_a_killed_process_is_not_listed() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Child::holder(folder.path());
    child.held().await;
    assert_eq!(listed(folder.path(), "", 9).await.0, [NAME]);
    child.kill().await;
    assert_eq!(listed(folder.path(), "", 9).await.0, [""; 0]);
}

/// Each value of a leader is a new file, which replaces the earlier one.
#[tokio::test(flavor = "multi_thread")]
async fn leader_is_listed_while_it_proclaims() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path()).await;
    let held = grant(&*session, Some(Proposal::new("0", 1))).await;
    let (place, rounds) = (folder.path().to_owned(), Cell::new(0));
    let proclaiming = async {
        let mut number = 1;
        // On a busy machine, a list takes as long as many of them.
        while number < 200 || rounds.get() < 2 {
            number += 1;
            let value = metadata(Some(Proposal::new("x", number)));
            assert!(session.elections().unwrap().proclaim(&held, &value).await.unwrap());
        }
    };
    let listing = async {
        loop {
            assert_eq!(soon("a list", listed(&place, "orders", 9)).await.0, [NAME]);
            rounds.set(rounds.get() + 1);
        }
    };
    tokio::select! {
        () = proclaiming => {}
        () = listing => {}
    }
}

#[tokio::test]
async fn lock_whose_holder_file_cannot_be_opened_is_listed_and_its_inspection_says_why() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("orders%2F42.lock"), "").unwrap();
    std::os::unix::fs::symlink("elsewhere", folder.path().join("orders%2F42.holder")).unwrap();
    assert_eq!(listed(folder.path(), "", 9).await.0, [NAME]);
    let error = backend(folder.path()).inspect(&NAME.parse().unwrap()).await.unwrap_err();
    assert!(error.to_string().contains("symbolic link"), "{error}");
}

#[tokio::test]
async fn missing_folder_has_no_locks_and_a_file_is_none() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("locks");
    assert_eq!(listed(&folder, "", 9).await, (Vec::new(), 1));
    let error = backend(&folder).list("", Some("a/b"), 9).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    fs::write(&folder, "").unwrap();
    let error = backend(&folder).list("", None, 9).await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::InvalidConfig, "list locks"), "{error}");
}

#[tokio::test]
async fn break_is_refused_with_the_process_to_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Child::holder(folder.path());
    child.held().await;
    let operator = client(folder.path()).await;
    assert!(!operator.info().powers.break_lock);
    let holder = operator.inspect(NAME).await.unwrap().holder.unwrap();
    let pid = holder.metadata.as_ref().unwrap().pid;
    let error = operator.break_lock(NAME, &holder).await.unwrap_err();
    assert_eq!((error.kind(), error.lock().unwrap().as_str()), (ErrorKind::Unsupported, NAME));
    let remedy = format!("end process {pid} on this host, the lock is then free at once");
    assert!(error.to_string().contains(&remedy), "{error}");
    assert!(operator.lock(NAME).unwrap().try_acquire().await.unwrap().is_none(), "it is held on");
    // What the message says.
    child.kill().await;
    let guard = operator.lock(NAME).unwrap().try_acquire().await.unwrap();
    guard.expect("free at once").release().await.unwrap();
    // Another program's.
    let theirs = fs::OpenOptions::new().write(true).open(folder.path().join("orders%2F42.holder")).unwrap();
    theirs.set_len(0).unwrap();
    theirs.try_lock().unwrap();
    let holder = operator.inspect(NAME).await.unwrap().holder.unwrap();
    let error = operator.break_lock(NAME, &holder).await.unwrap_err();
    assert!(error.to_string().contains("orders%2F42.holder\" (`fuser` shows it)"), "{error}");
    tokio::time::timeout(Duration::from_secs(30), operator.close()).await.unwrap().unwrap();
}
