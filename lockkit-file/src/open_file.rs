//! A lock file that is open, and whether it is still the one that others open under its name.

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

/// The name of a file, and which file it is.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    identity: Identity,
}

/// What makes a file the same one, whatever it is called: device and inode.
type Identity = (u64, u64);

fn identity(found: &fs::Metadata) -> Identity {
    (found.dev(), found.ino())
}

impl Place {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file is still the one that others open under its path.
    pub(crate) fn is_in_place(&self) -> Result<bool> {
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
    place: Arc<Place>,
    file: File,
}

impl OpenFile {
    /// Opens the file at `path`; `None` when there is none.
    pub(crate) fn open(folder: &Folder, path: &Path) -> Result<Option<Self>> {
        folder.open_file(path)?.map(|file| Self::new(file, path)).transpose()
    }

    /// A file that was opened, or made, as `path`.
    pub(crate) fn new(file: File, path: &Path) -> Result<Self> {
        let found = file.metadata().map_err(|cause| failed("lock file", path, cause))?;
        let place = Place { path: path.to_owned(), identity: identity(&found) };
        Ok(Self { place: Arc::new(place), file })
    }

    pub(crate) fn place(&self) -> &Arc<Place> {
        &self.place
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Locks the file; `Err` with the file, still open, when another client has locked it.
    ///
    /// Does not touch the disk: local file systems keep their locks in memory.
    pub(crate) fn try_lock(self) -> Result<std::result::Result<LockFile, Self>> {
        match try_lock(&self.file) {
            Ok(true) => Ok(Ok(LockFile::locked(self))),
            Ok(false) => Ok(Err(self)),
            Err(cause) => Err(failed("lock file", self.place.path(), cause)),
        }
    }
}
