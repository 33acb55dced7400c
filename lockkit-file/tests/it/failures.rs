//! Faulty folders and files; each has a clear error.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    time::Duration,
};

use lockkit_core::{
    Clock, Error, ErrorKind, LockName, Metadata,
    backend::{Backend, Claim, ClaimControl},
};
use lockkit_file::{FileBackend, FileConfig};
use rustix::fs::{CWD, FileType, Mode, inotify, mknodat};

use crate::{
    child::{Child, NAME},
    client, try_client,
};

const LOCK_FILE: &str = "orders%2F42.lock";

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// Creates a folder whose files other users can reach.
fn reachable() -> (tempfile::TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    set_mode(parent.path(), 0o755);
    let folder = parent.path().join("locks");
    fs::create_dir(&folder).unwrap();
    (parent, folder)
}

async fn acquire_error(folder: &Path) -> Error {
    let error = client(folder).await.lock(NAME).unwrap().acquire().await.unwrap_err();
    assert_eq!(error.lock().map(LockName::as_str), Some(NAME));
    error
}

#[tokio::test]
async fn missing_folder_is_created_for_its_user_only() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("deep/er");
    drop(client(&folder).await.lock(NAME).unwrap().acquire().await.unwrap());
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&folder.join(LOCK_FILE)), 0o600);
}

#[tokio::test]
async fn lock_files_of_a_shared_folder_are_shared_whatever_the_umask() {
    let (_parent, folder) = reachable();
    set_mode(&folder, 0o1777);
    let mut child = Child::unprivileged(&folder);
    child.held().await;
    assert_eq!(mode(&folder.join(LOCK_FILE)), 0o666);
    assert!(client(&folder).await.lock(NAME).unwrap().try_acquire().await.unwrap().is_none());
    child.release().await;
    let mut again = Child::holder(&folder);
    again.held().await;
    again.release().await;
    let mut child = Child::unprivileged(&folder);
    child.held().await;
}

#[tokio::test]
async fn new_files_are_complete_before_they_are_named() {
    let folder = tempfile::tempdir().unwrap();
    set_mode(folder.path(), 0o777);
    let events = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).unwrap();
    let unfinished = inotify::WatchFlags::CREATE | inotify::WatchFlags::ATTRIB | inotify::WatchFlags::MODIFY;
    inotify::add_watch(&events, folder.path(), unfinished).unwrap();
    let client = client(folder.path()).await;
    drop(client.lock(NAME).unwrap().acquire().await.unwrap());
    let mut buffer = [std::mem::MaybeUninit::uninit(); 1 << 14];
    let mut events = inotify::Reader::new(&events, &mut buffer);
    let mut seen = Vec::new();
    while let Ok(event) = events.next() {
        seen.push((event.file_name().unwrap().to_str().unwrap().to_owned(), event.events()));
    }
    assert!(!seen.is_empty(), "files were made");
    for (name, event) in seen {
        // Otherwise other processes could open it before it has its permissions or its content.
        assert!(name.starts_with(".new-"), "{event:?} of {name}");
    }
    assert_eq!(
        (mode(&folder.path().join(LOCK_FILE)), fs::read_dir(folder.path()).unwrap().count()),
        (0o666, 2)
    );
}

#[tokio::test]
async fn files_with_the_right_permissions_are_left_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    set_mode(folder.path(), 0o777);
    let lock = client(folder.path()).await.lock(NAME).unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    let events = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&events, folder.path(), inotify::WatchFlags::ATTRIB).unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    let mut buffer = [std::mem::MaybeUninit::uninit(); 1 << 14];
    let mut events = inotify::Reader::new(&events, &mut buffer);
    assert!(events.next().is_err(), "each grant changes permissions");
    set_mode(&folder.path().join(LOCK_FILE), 0o644);
    lock.acquire().await.unwrap().release().await.unwrap();
    assert!(events.next().is_ok(), "it sees such a change");
}

#[tokio::test]
async fn a_folder_that_is_not_writable_is_denied() {
    let (_parent, folder) = reachable();
    set_mode(&folder, 0o555);
    let answer = Child::unprivileged(&folder).line().await;
    set_mode(&folder, 0o755);
    assert!(answer.starts_with("error Denied: open lock folder"), "{answer}");
    assert!(answer.contains(folder.to_str().unwrap()), "{answer}");
    assert!(answer.contains("create it as `install -d -g GROUP -m 2770 FOLDER` does"), "{answer}");
}

#[tokio::test]
async fn folder_that_is_not_readable_is_denied_before_a_file_is_made() {
    let (_parent, folder) = reachable();
    set_mode(&folder, 0o333);
    let answer = Child::unprivileged(&folder).line().await;
    set_mode(&folder, 0o755);
    assert!(answer.starts_with("error Denied: open lock folder"), "{answer}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "a file was made");
}

#[tokio::test]
async fn a_lock_file_that_is_not_writable_is_denied() {
    let (_parent, folder) = reachable();
    set_mode(&folder, 0o777);
    fs::write(folder.join(LOCK_FILE), "").unwrap();
    set_mode(&folder.join(LOCK_FILE), 0o444);
    let answer = Child::unprivileged(&folder).line().await;
    assert!(answer.starts_with("error Denied: ") && answer.contains(LOCK_FILE), "{answer}");
}

#[tokio::test]
async fn a_full_disk_is_unavailable_and_costs_no_token() {
    let folder = tempfile::tempdir().unwrap();
    let lock = client(folder.path()).await.lock(NAME).unwrap();
    drop(lock.acquire().await.unwrap());
    let before = fs::read(folder.path().join(LOCK_FILE)).unwrap();
    let answer = Child::without_room(folder.path()).line().await;
    assert!(answer.starts_with("error Unavailable: ") && answer.contains("no space left"), "{answer}");
    assert_eq!(fs::read(folder.path().join(LOCK_FILE)).unwrap(), before);
    assert!(lock.try_acquire().await.unwrap().is_some(), "the failed attempt holds nothing");
}

#[tokio::test]
async fn file_instead_of_the_folder_is_an_invalid_configuration() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("locks");
    fs::write(&path, "").unwrap();
    for folder in [path.clone(), path.join("deeper")] {
        let error = try_client(&folder).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        let text = error.to_string();
        assert!(text.contains("is a file or below one: name a folder"), "{text}");
        assert!(text.contains(folder.to_str().unwrap()), "{text}");
    }
}

#[tokio::test]
async fn a_symbolic_link_is_never_followed() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = folder.path().join("elsewhere");
    symlink(&elsewhere, folder.path().join(LOCK_FILE)).unwrap();
    let dangling = acquire_error(folder.path()).await;
    assert_eq!(dangling.kind(), ErrorKind::Denied, "{dangling}");
    fs::write(&elsewhere, "precious").unwrap();
    let error = acquire_error(folder.path()).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(format!("{error:#}").contains("symbolic link"), "{error:#}");
    assert_eq!(fs::read(&elsewhere).unwrap(), b"precious");
}

#[tokio::test]
async fn irregular_file_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(LOCK_FILE);
    fs::create_dir(&path).unwrap();
    assert_eq!(acquire_error(folder.path()).await.kind(), ErrorKind::Unexpected);
    fs::remove_dir(&path).unwrap();
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let error = acquire_error(folder.path()).await;
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
}

#[tokio::test]
async fn damaged_token_record_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(LOCK_FILE);
    drop(client(folder.path()).await.lock(NAME).unwrap().acquire().await.unwrap());
    let good = fs::read_to_string(&path).unwrap();
    for damaged in
        [good.replace("1 0", "1 1"), good[..20].to_owned(), good.clone() + "\n", "\0".repeat(good.len())]
    {
        fs::write(&path, &damaged).unwrap();
        let error = acquire_error(folder.path()).await;
        assert_eq!(error.kind(), ErrorKind::Unexpected, "{damaged:?}");
        assert!(error.to_string().contains(LOCK_FILE), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), damaged, "nothing was written");
    }
    fs::write(&path, &good).unwrap();
    drop(client(folder.path()).await.lock(NAME).unwrap().acquire().await.unwrap());
}

#[tokio::test]
async fn an_empty_lock_file_is_replaced_and_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(LOCK_FILE);
    // Left by a crash of an older version, or moved here by somebody.
    fs::write(&path, "").unwrap();
    let opened = fs::File::open(&path).unwrap();
    let first = client(folder.path()).await.lock(NAME).unwrap().acquire().await.unwrap();
    assert_eq!(opened.metadata().unwrap().len(), 0);
    let other = client(folder.path()).await.lock(NAME).unwrap();
    assert!(other.try_acquire().await.unwrap().is_none());
    let token = first.token();
    first.release().await.unwrap();
    assert!(other.try_acquire().await.unwrap().unwrap().token() > token);
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_lock_file_is_granted_to_one_of_many_clients() {
    const ROUNDS: usize = 50;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(LOCK_FILE);
    let locks = [0; 4].map(|_| client(folder.path()));
    let mut clients = Vec::new();
    for client in locks {
        clients.push(client.await);
    }
    for _ in 0..ROUNDS {
        fs::write(folder.path().join("empty"), "").unwrap();
        fs::rename(folder.path().join("empty"), &path).unwrap();
        let tries = clients
            .iter()
            .map(|client| client.lock(NAME).unwrap())
            .map(|lock| tokio::spawn(async move { lock.try_acquire().await.unwrap() }));
        let mut guards = Vec::new();
        for tried in tries.collect::<Vec<_>>() {
            guards.extend(tried.await.unwrap());
        }
        assert_eq!(guards.len(), 1);
        guards.pop().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn deleted_folder_is_unavailable() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("locks");
    let backend = FileBackend::new(FileConfig::new(&folder).unwrap());
    // Without a keeper, which would reopen the session and create the folder again.
    let session = backend.open_session(Duration::MAX, Clock::boot()).await.unwrap();
    fs::remove_dir_all(&folder).unwrap();
    for wait in [true, false] {
        let name = LockName::new(NAME).unwrap();
        let claim = Claim::new(name, wait, Metadata::of_this_process(None), &ClaimControl::new());
        let error = session.acquire(claim).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("was deleted"), "{error}");
    }
    let missing = backend.admin().unwrap().inspect(&LockName::new(NAME).unwrap()).await.unwrap();
    assert_eq!(missing.holder, None);
}
