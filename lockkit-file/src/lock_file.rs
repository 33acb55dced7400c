//! One locked file: taken, numbered, checked, freed.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockkit_core::{ErrorKind, FencingToken, Result};

use crate::{
    error::{failed, refused},
    folder::{Folder, refuse_hard_link},
    keys,
    new_file::NewFile,
};

/// Times that a lock file that is made, deleted or replaced at the moment of locking is opened again.
const REPLACED_TRIES: u32 = 16;

const MAKE: &str = "make lock file";

/// A file that this process has opened and locked.
#[derive(Debug)]
pub(crate) struct LockFile {
    path: PathBuf,
    file: File,
    identity: Identity,
}

/// What makes a file the same one, whatever it is called.
type Identity = (u64, u64);

fn identity(found: &fs::Metadata) -> Identity {
    (found.dev(), found.ino())
}

/// What came of locking a file that was opened.
#[derive(Debug)]
enum Attempt {
    Locked(LockFile),
    Busy,
    /// The file was deleted or replaced since it was opened: a lock on it would keep nobody out.
    Replaced,
}

impl LockFile {
    /// Locks the file at `path`, which is made when it is missing, and takes the next token from it; `None` when
    /// somebody else has locked it.
    pub(crate) fn try_lock(folder: &Folder, path: &Path) -> Result<Option<(Self, FencingToken)>> {
        for _ in 0..REPLACED_TRIES {
            let Some(file) = folder.open_file(path)? else {
                match Self::make(folder, path, |new| new.publish(path))? {
                    Some(made) => return Ok(Some(made)),
                    // Somebody else has just made it.
                    None => continue,
                }
            };
            match Self::try_lock_opened(file, path)? {
                Attempt::Locked(locked) => return locked.mint(folder).map(Some),
                Attempt::Busy => return Ok(None),
                Attempt::Replaced => {}
            }
        }
        Err(refused("lock file", ErrorKind::Unavailable, path, "is replaced all the time"))
    }

    fn try_lock_opened(file: File, path: &Path) -> Result<Attempt> {
        if !try_lock(&file).map_err(|cause| failed("lock file", path, cause))? {
            return Ok(Attempt::Busy);
        }
        let locked = Self::locked(file, path)?;
        Ok(if locked.is_in_place()? { Attempt::Locked(locked) } else { Attempt::Replaced })
    }

    fn locked(file: File, path: &Path) -> Result<Self> {
        let found = file.metadata().map_err(|cause| failed("lock file", path, cause))?;
        Ok(Self { path: path.to_owned(), identity: identity(&found), file })
    }

    /// Makes the file: locked, and with its first token on the disk, before it gets its name. `None` when `publish`
    /// finds that name taken.
    fn make(
        folder: &Folder,
        path: &Path,
        publish: impl FnOnce(NewFile) -> io::Result<Option<File>>,
    ) -> Result<Option<(Self, FencingToken)>> {
        let failed = |cause| failed(MAKE, path, cause);
        let first = keys::next_token(0, wall_clock_us())
            .ok_or_else(|| refused(MAKE, ErrorKind::Unexpected, path, "has no token left"))?;
        let new = folder.new_file().map_err(failed)?;
        if !try_lock(new.file()).map_err(failed)? {
            return Err(refused(MAKE, ErrorKind::Unavailable, path, "is locked before it has a name"));
        }
        new.file().write_all_at(keys::record(first).as_bytes(), 0).map_err(failed)?;
        folder.share(new.file()).map_err(failed)?;
        new.file().sync_all().map_err(failed)?;
        let Some(file) = publish(new).map_err(failed)? else { return Ok(None) };
        let locked = Self::locked(file, path)?;
        folder.sync().map_err(failed)?;
        Ok(Some((locked, FencingToken::new(first))))
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

    /// The next token: on the disk before it is answered, so that no later grant can repeat it.
    fn mint(self, folder: &Folder) -> Result<(Self, FencingToken)> {
        let failed = |cause| failed("write token", &self.path, cause);
        let corrupt = |what| refused("read token", ErrorKind::Unexpected, &self.path, what);
        let mut bytes = Vec::with_capacity(keys::RECORD_BYTES + 1);
        // One byte more than a record, to notice a file that is longer than one.
        (&self.file).take(keys::RECORD_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.is_empty() {
            return self.replace_empty(folder);
        }
        let last = keys::parse_record(&bytes).ok_or_else(|| {
            corrupt("holds no token record: its tokens would not rise; if no one needs them, delete the file")
        })?;
        let next = keys::next_token(last, wall_clock_us()).ok_or_else(|| corrupt("has no token left"))?;
        // It may have been open for long before it was locked.
        refuse_hard_link(&self.file.metadata().map_err(failed)?, &self.path)?;
        folder.repair(&self.file);
        self.file.write_all_at(keys::record(next).as_bytes(), 0).map_err(failed)?;
        self.file.sync_data().map_err(failed)?;
        Ok((self, FencingToken::new(next)))
    }

    /// Replaces an empty file, from which nothing was ever granted, by a finished one. It is not written in place: it may
    /// be a foreign file that was linked into the folder.
    ///
    /// Clients that have the empty file open find it locked until its name leads to the new one, and open that one then.
    fn replace_empty(self, folder: &Folder) -> Result<(Self, FencingToken)> {
        let made = Self::make(folder, &self.path, |new| new.replace(&self.path).map(Some))?;
        made.ok_or_else(|| refused(MAKE, ErrorKind::Unavailable, &self.path, "was made by somebody else"))
    }

    /// Another handle of the same open file, which the lock belongs to; `None` when this is the file of another path.
    pub(crate) fn another_handle(&self, path: &Path) -> Option<io::Result<File>> {
        (self.path == path).then(|| self.file.try_clone())
    }

    /// Frees the lock, also where a forked child has inherited the open file. May be called again.
    pub(crate) fn unlock(&self) {
        unlock(&self.file, &self.path);
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        self.unlock();
    }
}

/// Locks an open file; false when somebody else has locked it.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(cause)) => Err(cause),
    }
}

/// Unlocks an open file.
pub(crate) fn unlock(file: &File, path: &Path) {
    // It fails only for a file that is not open; closing it frees the lock then.
    if let Err(error) = file.unlock() {
        tracing::warn!(?path, %error, "unlock failed");
    }
}

fn wall_clock_us() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    #[test]
    fn a_child_that_inherited_the_open_file_does_not_keep_a_released_lock() {
        let path = tempfile::tempdir().unwrap();
        let folder = Folder::new(path.path());
        let file = folder.join("a.lock".into());
        let (locked, _) = LockFile::try_lock(&folder, &file).unwrap().unwrap();
        // As its standard input: the same open file, as after a fork.
        let child =
            Command::new("sleep").arg("1000").stdin(locked.file.try_clone().unwrap()).spawn().unwrap();
        let _child = Ended(child);
        assert!(LockFile::try_lock(&folder, &file).unwrap().is_none());
        locked.unlock();
        assert!(LockFile::try_lock(&folder, &file).unwrap().is_some());
    }

    #[test]
    fn a_file_that_is_deleted_after_it_was_opened_is_not_locked() {
        let path = tempfile::tempdir().unwrap();
        let folder = Folder::new(path.path());
        let file = folder.join("a.lock".into());
        let make = || drop(LockFile::try_lock(&folder, &file).unwrap().unwrap());
        let open = || folder.open_file(&file).unwrap().unwrap();
        make();
        let opened = open();
        fs::remove_file(&file).unwrap();
        assert!(matches!(LockFile::try_lock_opened(opened, &file).unwrap(), Attempt::Replaced));
        make();
        let opened = open();
        fs::rename(&file, folder.join("b.lock".into())).unwrap();
        let (second, _) = LockFile::try_lock(&folder, &file).unwrap().unwrap();
        assert!(matches!(LockFile::try_lock_opened(opened, &file).unwrap(), Attempt::Replaced));
        assert!(second.is_in_place().unwrap());
    }
}
