//! Holds whose files are deleted or replaced.

use std::{fs, os::unix::fs::symlink};

use lockkit_core::{ErrorKind, Status};

use crate::{child::NAME, client, soon};

const LOCK_FILE: &str = "orders%2F42.lock";

#[tokio::test]
async fn a_hold_whose_file_was_deleted_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let client = client(folder.path()).await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let neighbour = client.lock("another").unwrap().acquire().await.unwrap();
    fs::remove_file(folder.path().join(LOCK_FILE)).unwrap();
    assert_eq!(soon("the loss", guard.lost()).await.kind(), ErrorKind::Lost);
    assert!(neighbour.is_held(), "one hold is lost, not the session");
    assert!(client.lock(NAME).unwrap().try_acquire().await.unwrap().unwrap().token() > guard.token());
}

#[tokio::test]
async fn a_hold_whose_file_was_replaced_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let client = client(folder.path()).await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let path = folder.path().join(LOCK_FILE);
    fs::copy(&path, folder.path().join("copy")).unwrap();
    fs::rename(folder.path().join("copy"), &path).unwrap();
    assert_eq!(soon("the loss", guard.lost()).await.kind(), ErrorKind::Lost);
}

/// Others refuse to open it, or get another lock file once it is gone.
#[tokio::test]
async fn a_hold_whose_file_was_replaced_by_a_link_to_it_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let client = client(folder.path()).await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let path = folder.path().join(LOCK_FILE);
    fs::rename(&path, folder.path().join("moved")).unwrap();
    symlink("moved", &path).unwrap();
    assert_eq!(soon("the loss", guard.lost()).await.kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn deleted_folder_ends_the_session_and_is_created_again() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("locks");
    let client = client(&folder).await;
    let mut status = client.status();
    assert_eq!(status.current(), Status::Connected);
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(soon("the loss", guard.lost()).await.kind(), ErrorKind::Lost);
    soon("a new session", async { while status.changed().await != Status::Connected {} }).await;
    let again = client.lock(NAME).unwrap().acquire().await.unwrap();
    assert!(again.token() > guard.token());
    assert!(folder.join(LOCK_FILE).exists());
}
