//! File systems of several kinds: which are refused, and file systems that change while a client uses them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use lockkit_conformance::direct::HANG;
use lockkit_core::{Error, ErrorKind, LockClient, LockGuard};
use lockkit_file::{FileBackend, FileConfig};
use lockkit_testbed::SmallDisk;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount};
use tempfile::TempDir;

use crate::{Test, fuse::Fuse, process::NAME};

pub(crate) const TESTS: &[Test] = &[
    ("fuse_file_system_is_refused", fuse_is_refused),
    ("file_system_of_unknown_kind_without_a_block_device_is_refused", unknown_is_refused),
    ("fuse_file_system_over_an_open_lock_folder_is_refused", fuse_over_an_open_folder),
    ("file_system_of_unknown_kind_over_a_lock_file_is_refused", unknown_over_a_file),
    ("disk_that_hangs_while_a_client_opens_is_unavailable", hanging_while_opening),
    ("local_file_systems_are_accepted", local_is_accepted),
    ("read_only_remount_denies_locks_until_it_is_undone", read_only_remount),
    ("full_disk_refuses_new_locks_and_ends_no_hold", full_disk),
];

fn folder() -> (TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("locks");
    fs::create_dir(&folder).unwrap();
    (parent, folder)
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let answer = runtime.block_on(async { tokio::time::timeout(HANG, test).await.expect("it hangs") });
    // Does not wait for operations that hang until the unmount.
    runtime.shutdown_background();
    answer
}

async fn client(folder: &Path) -> Result<LockClient, Error> {
    LockClient::builder(FileBackend::new(FileConfig::new(folder)?)).build().await
}

async fn take(folder: &Path) -> Result<LockGuard, Error> {
    client(folder).await?.lock(NAME)?.acquire().await
}

fn fuse_is_refused() {
    let (_parent, folder) = folder();
    let _fuse = Fuse::answering(&folder);
    let error = run(client(&folder)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("FUSE"), "{error}");
}

fn unknown_is_refused() {
    let (_parent, folder) = folder();
    // A file system without a block device that is not in the list of local ones.
    mount("lockkit-test", &folder, c"mqueue", MountFlags::empty(), c"").unwrap();
    let refused = run(client(&folder)).map(drop);
    unmount(&folder, UnmountFlags::DETACH).unwrap();
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("unknown"), "{error}");
}

fn fuse_over_an_open_folder() {
    let (_parent, folder) = folder();
    run(async {
        let client = client(&folder).await.unwrap();
        let held = client.lock(NAME).unwrap().acquire().await.unwrap();
        let _fuse = Fuse::answering(&folder);
        assert_eq!(held.lost().await.kind(), ErrorKind::Lost, "its file has no name any more");
        let error = client.lock("other").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("FUSE"), "{error}");
    });
}

fn unknown_over_a_file() {
    let (parent, folder) = folder();
    let (other, lock_file) = (parent.path().join("other"), folder.join(format!("{NAME}.lock")));
    fs::create_dir(&other).unwrap();
    drop(run(take(&folder)).unwrap());
    mount("lockkit-test", &other, c"mqueue", MountFlags::empty(), c"").unwrap();
    // The queues belong to the namespace of this process: other runs of this test may see the same one.
    let theirs = other.join(format!("lockkit-test-{}", std::process::id()));
    fs::write(&theirs, "").unwrap();
    let bound = mount_bind(&theirs, &lock_file);
    let refused = run(take(&folder)).map(drop);
    unmount(&lock_file, UnmountFlags::DETACH).unwrap();
    fs::remove_file(&theirs).unwrap();
    unmount(&other, UnmountFlags::DETACH).unwrap();
    bound.unwrap();
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("unknown"), "{error}");
}

fn hanging_while_opening() {
    let (_parent, folder) = folder();
    let _fuse = Fuse::hanging(&folder);
    let error = run(client(&folder)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

fn local_is_accepted() {
    for (kind, options) in [(c"tmpfs", c"size=1m"), (c"ramfs", c"")] {
        let (_parent, folder) = folder();
        mount("lockkit-test", &folder, kind, MountFlags::empty(), options).unwrap();
        let taken = run(take(&folder));
        unmount(&folder, UnmountFlags::DETACH).unwrap();
        drop(taken.unwrap_or_else(|error| panic!("{kind:?}: {error}")));
    }
    // As in a container.
    let (parent, folder) = folder();
    let layer = |name: &str| {
        let path = parent.path().join(name);
        fs::create_dir(&path).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let options =
        format!("lowerdir={},upperdir={},workdir={}", layer("lower"), layer("upper"), layer("work"));
    let options = std::ffi::CString::new(options).unwrap();
    mount("lockkit-test", &folder, c"overlay", MountFlags::empty(), options.as_c_str()).unwrap();
    let taken = run(take(&folder));
    unmount(&folder, UnmountFlags::DETACH).unwrap();
    drop(taken.unwrap());
}

fn read_only_remount() {
    let (_parent, folder) = folder();
    let options = c"size=1m";
    mount("lockkit-test", &folder, c"tmpfs", MountFlags::empty(), options).unwrap();
    let outcome = std::panic::catch_unwind(|| {
        run(async {
            let client = client(&folder).await.unwrap();
            let lock = client.lock(NAME).unwrap();
            lock.acquire().await.unwrap().release().await.unwrap();
            mount_remount(&folder, MountFlags::RDONLY, options).unwrap();
            for name in [NAME, "new"] {
                let error = client.lock(name).unwrap().acquire().await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
                assert!(error.to_string().contains("read-only"), "{error}");
            }
            mount_remount(&folder, MountFlags::empty(), options).unwrap();
            assert!(lock.try_acquire().await.unwrap().is_some());
        });
    });
    unmount(&folder, UnmountFlags::DETACH).unwrap();
    outcome.unwrap();
}

fn full_disk() {
    let disk = SmallDisk::mount(1 << 20).unwrap();
    let folder = disk.path().join("locks");
    run(async {
        let client = client(&folder).await.unwrap();
        let held = client.lock(NAME).unwrap().acquire().await.unwrap();
        disk.fill().unwrap();
        let error = client.lock("new").unwrap().try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("no space left"), "{error}");
        let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.count(), 2, "nothing is left of the new lock");
        assert!(held.is_held());
        held.release().await.unwrap();
        disk.make_room().unwrap();
        for name in [NAME, "new"] {
            assert!(client.lock(name).unwrap().try_acquire().await.unwrap().is_some());
        }
    });
}
