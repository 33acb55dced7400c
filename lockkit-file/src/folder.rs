//! The folder of the lock files: created, checked, and the opening of its files.

use std::{
    fs::{self, DirBuilder, File, Metadata, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use lockkit_core::{Error, ErrorKind, Result};
use rustix::fs::{Access as Needed, AtFlags, CWD, OFlags, accessat};

use crate::{
    access::Access,
    error::{failed, refused},
    file_system::{refuse_remote, refuse_remote_file},
    new_file::NewFile,
};

/// Mode of a folder that is created here: only for its user.
const FOLDER_MODE: u32 = 0o700;

/// How often a file with more than one name is opened before it is refused.
const OPEN_TRIES: u32 = 8;

/// Pause between two of these attempts; much longer than creating a file takes.
const OPEN_PAUSE: Duration = Duration::from_millis(1);

const OPEN: &str = "open lock folder";

const OPEN_FILE: &str = "open lock file";

const MAKE_FILE: &str = "make lock file";

/// The folder of the lock files.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn join(&self, file: String) -> PathBuf {
        self.path.join(file)
    }

    /// Creates the folder if it is missing. Checks that locks can be taken in it.
    pub(crate) fn open(&self) -> Result<()> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.path).map_err(
            |cause| match cause.kind() {
                io::ErrorKind::AlreadyExists => self.unusable(io::ErrorKind::NotADirectory.into()),
                _ => self.unusable(cause),
            },
        )?;
        let needed = Needed::READ_OK | Needed::WRITE_OK | Needed::EXEC_OK;
        accessat(CWD, &self.path, needed, AtFlags::EACCESS).map_err(|errno| self.unusable(errno.into()))?;
        refuse_remote(OPEN, &self.path)
    }

    /// Returns why locks cannot be taken in the folder, and what to do.
    fn unusable(&self, cause: io::Error) -> Error {
        use io::ErrorKind as Io;
        let (kind, what) = match cause.kind() {
            Io::NotADirectory => (
                ErrorKind::InvalidConfig,
                "is a file or below one: name a folder, which is created if it is missing",
            ),
            Io::PermissionDenied => (
                ErrorKind::Denied,
                "may not be created, or not read, written and entered, by this user: give the users of its locks a \
                 common group, and create it as `install -d -g GROUP -m 2770 FOLDER` does",
            ),
            Io::ReadOnlyFilesystem => {
                (ErrorKind::Denied, "is on a read-only file system: name another folder")
            }
            _ => return failed(OPEN, &self.path, cause),
        };
        refused(OPEN, kind, &self.path, what).with_source(cause)
    }

    /// Returns whether the folder still exists.
    pub(crate) fn exists(&self) -> Result<bool> {
        match fs::metadata(&self.path) {
            Ok(found) => Ok(found.is_dir()),
            Err(cause) if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(false)
            }
            Err(cause) => Err(failed("renew", &self.path, cause)),
        }
    }

    /// Opens a file of this folder to read and write; returns it with its metadata, or `None` if it does not exist.
    /// Never follows a symbolic link, never opens a file that has another name too, never waits for the other end of a
    /// pipe.
    pub(crate) fn open_file(&self, path: &Path) -> Result<Option<(File, Metadata)>> {
        self.open_file_with(path, || thread::sleep(OPEN_PAUSE))
    }

    fn open_file_with(&self, path: &Path, mut pause: impl FnMut()) -> Result<Option<(File, Metadata)>> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed());
        let mut tries = OPEN_TRIES;
        loop {
            let file = match options.open(path) {
                Ok(file) => file,
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(cause) => return Err(failed(OPEN_FILE, path, cause)),
            };
            let found = file.metadata().map_err(|cause| failed(OPEN_FILE, path, cause))?;
            if !found.is_file() {
                return Err(refused(OPEN_FILE, ErrorKind::Unexpected, path, "is not a regular file"));
            }
            refuse_remote_file(OPEN_FILE, &file, &found, path)?;
            match refuse_hard_link(&found, path) {
                Ok(()) => return Ok(Some((file, found))),
                // Without `RENAME_NOREPLACE`, a file that is being published has two names for a moment.
                Err(_) if tries > 1 => {
                    tries -= 1;
                    pause();
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Creates a new file, to become `path`. [`set_permissions`](Self::set_permissions) must follow.
    pub(crate) fn new_file(&self, path: &Path) -> Result<NewFile> {
        // Checked again: another file system may have been mounted on the folder.
        refuse_remote(MAKE_FILE, &self.path)?;
        NewFile::make(&self.path).map_err(|cause| failed(MAKE_FILE, path, cause))
    }

    /// Gives a new file the permissions of the files of this folder.
    pub(crate) fn set_permissions(&self, file: &File) -> io::Result<()> {
        if !Access::of_files_in(&self.path)?.apply(file)? {
            tracing::warn!(
                folder = ?self.path,
                "members of the folder's group cannot take a lock, because a user outside of the group created its \
                 file: set the folder's setgid bit"
            );
        }
        Ok(())
    }

    /// Gives a file with a record of this library the permissions of the files of this folder, if this user owns it.
    /// `found` is the file's metadata.
    pub(crate) fn repair_permissions(&self, file: &File, found: &Metadata) {
        let repaired = Access::of_files_in(&self.path).and_then(|access| access.repair(file, found));
        if let Err(error) = repaired {
            // The lock itself is not affected.
            tracing::warn!(folder = ?self.path, %error, "cannot set the permissions of a lock file");
        }
    }

    /// Syncs the folder, so that a file that was created in it survives a power failure.
    pub(crate) fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

/// Refuses a file that has another name too, because a user who may write to this folder can link a foreign file into
/// it.
///
/// This check alone protects no content: the name in this folder may be removed between the check and the write, and
/// then the count is one again. So only files with a record of this library are written.
pub(crate) fn refuse_hard_link(found: &Metadata, path: &Path) -> Result<()> {
    if found.nlink() <= 1 {
        return Ok(());
    }
    let what = "has another name (a hard link), so writing to it could change a foreign file: remove one of the two names";
    Err(refused(OPEN_FILE, ErrorKind::Denied, path, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens a file with two names, one of which is removed in the pause of this number. Returns the number of pauses,
    /// and whether the file was opened.
    fn opened_with_a_second_name_until(last: u32) -> (u32, bool) {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a.lock"), folder.path().join(".new-1"));
        fs::write(&other, "").unwrap();
        fs::hard_link(&other, &path).unwrap();
        let mut pauses = 0;
        let opened = Folder::new(folder.path()).open_file_with(&path, || {
            pauses += 1;
            if pauses == last {
                fs::remove_file(&other).unwrap();
            }
            assert!(pauses < 1000, "the attempts have no end");
        });
        (pauses, opened.is_ok_and(|opened| opened.is_some()))
    }

    #[test]
    fn file_with_two_names_is_opened_once_it_has_one_and_refused_after_eight_attempts() {
        assert_eq!(opened_with_a_second_name_until(1), (1, true));
        assert_eq!(opened_with_a_second_name_until(7), (7, true));
        assert_eq!(opened_with_a_second_name_until(8), (7, false));
    }
}
