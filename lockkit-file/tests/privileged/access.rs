//! Which users may take the locks of a folder; all others cannot even block them.

use std::{
    ffi::OsStr,
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

use rustix::fs::{XattrFlags, setxattr};
use tempfile::TempDir;

use crate::{
    Test,
    process::{ALICE, BOB, BUILDERS, Process, ROOT, User},
};

pub(crate) const TESTS: &[Test] = &[
    ("reader_of_a_folder_cannot_lock_its_files", readers_cannot_lock),
    ("lock_files_that_others_may_read_are_repaired_by_their_owner", readable_files_are_repaired),
    ("lock_file_that_a_crash_left_private_is_repaired_by_its_owner", private_file_is_repaired),
    ("foreign_file_in_the_folder_stays_private", foreign_file_stays_private),
    ("two_users_who_make_the_same_lock_files_are_never_denied", two_users_race),
    ("umask_does_not_change_the_mode_of_lock_files", umask_changes_nothing),
    ("lock_file_made_by_root_belongs_to_the_folders_owner", root_makes_a_file_for_the_owner),
    ("members_of_the_folders_group_share_locks_without_the_setgid_bit", group_without_setgid),
    ("owner_outside_of_the_folders_group_admits_no_other_group", owner_outside_of_the_group),
    ("users_of_a_sticky_folder_share_its_locks", sticky_folder),
    ("access_list_of_the_folder_decides_who_may_lock", access_list),
    ("default_access_list_gives_no_permission_to_lock", default_access_list),
];

const LOCK_FILE: &str = "a.lock";
const HOLDER_FILE: &str = "a.holder";

/// Creates a lock folder of this user, group and mode, which all users can reach.
fn folder(owner: User, group: u32, mode: u32) -> (TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    fs::set_permissions(parent.path(), Permissions::from_mode(0o755)).unwrap();
    let folder = parent.path().join("locks");
    fs::create_dir(&folder).unwrap();
    chown(&folder, Some(owner.id), Some(group)).unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
    (parent, folder)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

#[track_caller]
fn assert_takes(user: User, folder: &Path) {
    assert_eq!(user.takes(folder), "released");
}

#[track_caller]
fn assert_cannot_lock(user: User, folder: &Path) {
    for file in [LOCK_FILE, HOLDER_FILE] {
        assert_eq!(user.locks_by_hand(&folder.join(file)), "error PermissionDenied", "{file}");
    }
}

fn readers_cannot_lock() {
    for mode_of_folder in [0o755, 0o775, 0o2775] {
        let (_parent, folder) = folder(ALICE, BUILDERS, mode_of_folder);
        assert_takes(ALICE.builder(), &folder);
        assert_cannot_lock(BOB, &folder);
    }
}

fn readable_files_are_repaired() {
    let (_parent, folder) = folder(ALICE, ALICE.id, 0o755);
    assert_takes(ALICE, &folder);
    for file in [LOCK_FILE, HOLDER_FILE] {
        fs::set_permissions(folder.join(file), Permissions::from_mode(0o644)).unwrap();
    }
    assert_takes(ROOT, &folder);
    assert_eq!(mode(&folder.join(LOCK_FILE)), 0o644, "only its owner repairs a file");
    assert_takes(ALICE, &folder);
    assert_eq!(mode(&folder.join(LOCK_FILE)), 0o600);
    assert_cannot_lock(BOB, &folder);
}

fn private_file_is_repaired() {
    let (_parent, folder) = folder(ROOT, ROOT.id, 0o1777);
    for file in [LOCK_FILE, HOLDER_FILE] {
        fs::write(folder.join(file), "").unwrap();
        chown(folder.join(file), Some(ALICE.id), Some(ALICE.id)).unwrap();
        fs::set_permissions(folder.join(file), Permissions::from_mode(0o600)).unwrap();
    }
    let denied = BOB.takes(&folder);
    assert!(denied.starts_with("error Denied: ") && denied.contains(LOCK_FILE), "{denied}");
    assert_takes(ALICE, &folder);
    assert_takes(BOB, &folder);
    assert_eq!((mode(&folder.join(LOCK_FILE)), mode(&folder.join(HOLDER_FILE))), (0o666, 0o666));
}

fn foreign_file_stays_private() {
    let (_parent, folder) = folder(ROOT, ROOT.id, 0o777);
    // Any user who may write to two folders can do this by a rename.
    fs::write(folder.join(LOCK_FILE), "a private letter").unwrap();
    chown(folder.join(LOCK_FILE), Some(ALICE.id), Some(ALICE.id)).unwrap();
    fs::set_permissions(folder.join(LOCK_FILE), Permissions::from_mode(0o600)).unwrap();
    let refused = ALICE.takes(&folder);
    assert!(refused.starts_with("error Unexpected: "), "{refused}");
    assert_eq!(mode(&folder.join(LOCK_FILE)), 0o600);
}

fn two_users_race() {
    const NAMES: usize = 500;
    let (_parent, folder) = folder(ROOT, ROOT.id, 0o1777);
    let mut racers = [ALICE, BOB].map(|user| user.racer(&folder));
    let mut failures = Vec::new();
    for number in 0..NAMES {
        racers.iter_mut().for_each(|racer| racer.send(&number.to_string()));
        failures.extend(racers.iter_mut().map(Process::line).filter(|line| line != "done"));
    }
    assert!(failures.is_empty(), "{} of {}: {:?}", failures.len(), 2 * NAMES, failures[0]);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2 * NAMES, "other files are left");
}

fn umask_changes_nothing() {
    for umask in [0o000, 0o027, 0o077, 0o177] {
        let alice = User { umask, ..ALICE };
        for (mode_of_folder, of_file) in [(0o755, 0o600), (0o775, 0o660), (0o770, 0o660), (0o777, 0o666)] {
            let (_parent, folder) = folder(ALICE, ALICE.id, mode_of_folder);
            assert_takes(alice, &folder);
            for file in [LOCK_FILE, HOLDER_FILE] {
                assert_eq!(mode(&folder.join(file)), of_file, "{file} in {mode_of_folder:o}, {umask:o}");
            }
        }
    }
}

fn root_makes_a_file_for_the_owner() {
    let (_parent, folder) = folder(ALICE, ALICE.id, 0o700);
    assert_takes(ROOT, &folder);
    assert_takes(ALICE, &folder);
}

fn group_without_setgid() {
    let (_parent, folder) = folder(ROOT, BUILDERS, 0o770);
    assert_takes(ALICE.builder(), &folder);
    assert_takes(BOB.builder(), &folder);
    assert_takes(ROOT, &folder);
}

fn owner_outside_of_the_group() {
    let (_parent, folder) = folder(ALICE, BUILDERS, 0o770);
    assert_takes(ALICE, &folder);
    // The file has Alice's primary group, to which the folder gives no permission.
    assert_eq!((mode(&folder.join(LOCK_FILE)), mode(&folder.join(HOLDER_FILE))), (0o600, 0o600));
    assert_takes(ALICE, &folder);
}

fn sticky_folder() {
    let (_parent, folder) = folder(ROOT, ROOT.id, 0o1777);
    let mut holder = ALICE.holder(&folder);
    assert_eq!(holder.line(), "held");
    assert!(BOB.locks_by_hand(&folder.join(LOCK_FILE)).contains("block"), "it is locked");
    assert_eq!(holder.release(), "released");
    assert_takes(BOB, &folder);
    assert_takes(ALICE, &folder);
}

/// An entry of an access list: tag, permissions, and user or group.
type Entry = (u16, u16, u32);

const OWNER: u16 = 0x01;
const ONE_USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;
const NO_ID: u32 = u32::MAX;

/// Sets an access list of a folder, in the kernel's format (`linux/posix_acl_xattr.h`).
fn set_access_list(folder: &Path, which: &str, entries: &[Entry]) {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    setxattr(folder, OsStr::new(which), &bytes, XattrFlags::empty()).unwrap();
}

fn access_list() {
    let (_parent, folder) = folder(ROOT, BUILDERS, 0o700);
    // Alice may write. The builders may only read, although the mode shows the mask, rwx. Bob is excluded by name.
    let entries = [
        (OWNER, 7, NO_ID),
        (ONE_USER, 7, ALICE.id),
        (ONE_USER, 0, BOB.id),
        (GROUP, 5, NO_ID),
        (MASK, 7, NO_ID),
        (OTHERS, 5, NO_ID),
    ];
    set_access_list(&folder, "system.posix_acl_access", &entries);
    assert_takes(ROOT, &folder);
    assert_takes(ALICE, &folder);
    let builder = User { id: 61_003, ..ALICE }.builder();
    assert_cannot_lock(builder, &folder);
    assert_cannot_lock(BOB, &folder);
    assert_cannot_lock(User { group: None, ..builder }, &folder);
    let mut holder = ALICE.holder(&folder);
    assert_eq!(holder.line(), "held");
    assert_eq!(holder.release(), "released");
}

fn default_access_list() {
    // Bob may read files that are created in it, unless their lists are removed.
    let entries =
        [(OWNER, 7, NO_ID), (ONE_USER, 4, BOB.id), (GROUP, 7, NO_ID), (MASK, 7, NO_ID), (OTHERS, 5, NO_ID)];
    // The mode of the second folder leaves a mask that would allow the entry of Bob.
    for mode_of_folder in [0o755, 0o775] {
        let (_parent, folder) = folder(ALICE, ALICE.id, mode_of_folder);
        set_access_list(&folder, "system.posix_acl_default", &entries);
        assert_takes(ALICE, &folder);
        assert_cannot_lock(BOB, &folder);
        assert_takes(ALICE, &folder);
        assert_cannot_lock(BOB, &folder);
    }
}
