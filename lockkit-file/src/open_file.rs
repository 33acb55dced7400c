//! An open lock file, and whether its path still refers to it.

use std::{
    fs::{self, File, Metadata},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use lockkit_core::Result;

use crate::{
    error::failed,
    folder::Folder,
    lock_file::{LockFile, try_lock},
};

/// The path of an open file, and the identity of that file.
#[derive(Debug)]
pub(crate) struct FileLocation {
    path: PathBuf,
    identity: Identity,
}

/// Device and inode, which identify a file regardless of its name.
type Identity = (u64, u64);

fn identity(found: &Metadata) -> Identity {
    (found.dev(), found.ino())
}

impl FileLocation {
    /// Returns the location of a file that was opened or created as `path`.
    pub(crate) fn of(found: &Metadata, path: &Path) -> Self {
        Self { path: path.to_owned(), identity: identity(found) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the path still refers to this file, so that others open the same one.
    pub(crate) fn is_current(&self) -> Result<bool> {
        Ok(self.current()?.is_some())
    }

    /// Returns the file's metadata, if the path still refers to this file.
    pub(crate) fn current(&self) -> Result<Option<Metadata>> {
        match fs::symlink_metadata(&self.path) {
            Ok(found) => Ok(Some(found).filter(|found| identity(found) == self.identity)),
            Err(cause) if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(None)
            }
            Err(cause) => Err(failed("check lock file", &self.path, cause)),
        }
    }
}

/// Reads the first `max` bytes of a file, or all of a shorter one, with one request: a read of a regular file is short
/// only at its end.
pub(crate) fn read_start(file: &File, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; max];
    let length = loop {
        match file.read_at(&mut bytes, 0) {
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            length => break length?,
        }
    };
    bytes.truncate(length);
    Ok(bytes)
}

/// An open lock file that this client has not locked.
#[derive(Debug)]
pub(crate) struct OpenFile {
    location: Arc<FileLocation>,
    file: File,
}

impl OpenFile {
    /// Opens the file at `path`; `None` if it does not exist.
    pub(crate) fn open(folder: &Folder, path: &Path) -> Result<Option<Self>> {
        Ok(folder.open_file(path)?.map(|(file, found)| Self::new(file, &found, path)))
    }

    /// Wraps a file that was opened or created as `path`, and has this metadata.
    pub(crate) fn new(file: File, found: &Metadata, path: &Path) -> Self {
        Self { location: Arc::new(FileLocation::of(found, path)), file }
    }

    pub(crate) fn location(&self) -> &Arc<FileLocation> {
        &self.location
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Tries to lock the file; `Err` with the file, still open, if another client has locked it.
    ///
    /// Does not touch the disk: local file systems keep their locks in memory.
    pub(crate) fn try_lock(self) -> Result<std::result::Result<LockFile, Self>> {
        match try_lock(&self.file) {
            Ok(true) => Ok(Ok(LockFile::locked(self))),
            Ok(false) => Ok(Err(self)),
            Err(cause) => Err(failed("lock file", self.location.path(), cause)),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn file_of_another_file_system_is_another_file() {
        // Roots of two file systems, which have the same number in each.
        let [one, other] = ["/proc", "/sys"].map(Path::new);
        let (found, of_other) = (fs::metadata(one).unwrap(), fs::metadata(other).unwrap());
        assert_eq!(found.ino(), of_other.ino());
        assert!(FileLocation::of(&found, one).is_current().unwrap());
        assert!(!FileLocation::of(&found, other).is_current().unwrap());
    }
}
