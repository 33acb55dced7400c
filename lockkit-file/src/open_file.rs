//! An open lock file, and whether its path still refers to it.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
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

fn identity(found: &fs::Metadata) -> Identity {
    (found.dev(), found.ino())
}

impl FileLocation {
    /// Returns the location of a file that was opened or created as `path`.
    pub(crate) fn of(file: &File, path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(&file.metadata()?) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the path still refers to this file, so that others open the same one.
    pub(crate) fn is_current(&self) -> Result<bool> {
        match fs::symlink_metadata(&self.path) {
            Ok(found) => Ok(identity(&found) == self.identity),
            Err(cause) if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(false)
            }
            Err(cause) => Err(failed("check lock file", &self.path, cause)),
        }
    }
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
        folder.open_file(path)?.map(|file| Self::new(file, path)).transpose()
    }

    /// Wraps a file that was opened or created as `path`.
    pub(crate) fn new(file: File, path: &Path) -> Result<Self> {
        let location = FileLocation::of(&file, path).map_err(|cause| failed("lock file", path, cause))?;
        Ok(Self { location: Arc::new(location), file })
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
