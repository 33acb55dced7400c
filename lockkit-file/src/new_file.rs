//! New files: completed under a temporary name, and then given their own name in one step.
//!
//! If a file were created under its own name and written, or given its mode, afterwards, other processes could open it
//! in between, and a crash would leave it incomplete. Here a crash leaves a file `.new-*`, which can be deleted.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Mode of an incomplete file: only for its user.
const UNFINISHED_MODE: u32 = 0o600;

/// How many random names are tried. Even one collision of 64 bits is unlikely.
const NAME_TRIES: u32 = 4;

/// A file with a temporary name. Deleted when it is dropped.
#[derive(Debug)]
pub(crate) struct NewFile {
    file: File,
    temporary: TemporaryName,
}

#[derive(Debug)]
struct TemporaryName(PathBuf);

impl NewFile {
    /// Creates an empty file in `folder`.
    pub(crate) fn make(folder: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(UNFINISHED_MODE);
        let mut last = io::ErrorKind::AlreadyExists.into();
        for _ in 0..NAME_TRIES {
            // Cannot be the file of a lock, because those have an extension.
            let path = folder.join(format!(".new-{:016x}", fastrand::u64(..)));
            match options.open(&path) {
                Ok(file) => return Ok(Self { file, temporary: TemporaryName(path) }),
                Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => last = cause,
                Err(cause) => return Err(cause),
            }
        }
        Err(last)
    }

    /// Returns the open file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Renames the file to `path`; `None` if that name exists, which is left unchanged.
    pub(crate) fn publish(self, path: &Path) -> io::Result<Option<File>> {
        match self.rename_to_free(path) {
            Ok(()) => Ok(Some(self.file)),
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(cause) => Err(cause),
        }
    }

    /// Renames the file to `path`, replacing an existing file.
    pub(crate) fn replace(self, path: &Path) -> io::Result<File> {
        fs::rename(&self.temporary.0, path)?;
        Ok(self.file)
    }

    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    fn rename_to_free(&self, path: &Path) -> io::Result<()> {
        use rustix::{
            fs::{CWD, RenameFlags, renameat_with},
            io::Errno,
        };

        match renameat_with(CWD, &self.temporary.0, CWD, path, RenameFlags::NOREPLACE) {
            // The file system does not support it, such as ZFS before 2.2.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => self.link_to_free(path),
            renamed => Ok(renamed?),
        }
    }

    #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
    fn rename_to_free(&self, path: &Path) -> io::Result<()> {
        self.link_to_free(path)
    }

    /// For a moment the file has two names; `Folder::open_file` retries for that case.
    fn link_to_free(&self, path: &Path) -> io::Result<()> {
        fs::hard_link(&self.temporary.0, path)
    }
}

impl Drop for TemporaryName {
    fn drop(&mut self) {
        // Fails after a rename.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        entries.map(|name| name.into_string().unwrap()).collect()
    }

    #[test]
    fn publish_never_replaces_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let first = NewFile::make(folder.path()).unwrap().publish(&path).unwrap().unwrap();
        assert!(NewFile::make(folder.path()).unwrap().publish(&path).unwrap().is_none());
        assert_eq!(names(folder.path()), ["a.lock"]);
        assert_eq!(fs::metadata(&path).unwrap().ino(), first.metadata().unwrap().ino());
        let second = NewFile::make(folder.path()).unwrap().replace(&path).unwrap();
        assert_eq!(names(folder.path()), ["a.lock"]);
        assert_eq!(fs::metadata(&path).unwrap().ino(), second.metadata().unwrap().ino());
    }

    #[test]
    fn publish_by_link_never_replaces_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let new = NewFile::make(folder.path()).unwrap();
        new.link_to_free(&path).unwrap();
        drop(new);
        let other = NewFile::make(folder.path()).unwrap();
        assert_eq!(other.link_to_free(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        drop(other);
        assert_eq!(names(folder.path()), ["a.lock"]);
        assert_eq!(fs::metadata(&path).unwrap().nlink(), 1);
    }

    #[test]
    fn unfinished_file_is_for_its_user_only() {
        let folder = tempfile::tempdir().unwrap();
        let new = NewFile::make(folder.path()).unwrap();
        assert_eq!(new.file().metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn new_file_leaves_one_whose_temporary_name_it_draws_too() {
        let folder = tempfile::tempdir().unwrap();
        let made = [0; 2].map(|_| {
            // Both draw the same names.
            fastrand::seed(1);
            NewFile::make(folder.path()).unwrap()
        });
        let [first, second] = made.each_ref().map(|new| new.file().metadata().unwrap().ino());
        assert_ne!(first, second);
        assert_eq!(names(folder.path()).len(), 2);
    }

    #[test]
    fn unpublished_file_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        drop(NewFile::make(folder.path()).unwrap());
        assert!(names(folder.path()).is_empty());
    }
}
