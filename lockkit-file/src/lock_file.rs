//! One locked file: taken, numbered, checked, freed.

use std::{
    fs::{File, TryLockError},
    io::{self, Read},
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockkit_core::{ErrorKind, FencingToken, Result};

use crate::{
    error::{failed, refused},
    folder::{Folder, refuse_hard_link},
    keys,
    new_file::NewFile,
    open_file::{OpenFile, Place},
};

/// Times that a lock file that is made, deleted or replaced at the moment of locking is opened again.
const REPLACED_TRIES: u32 = 16;

const MAKE: &str = "make lock file";

/// A file that this process has opened and locked. Its end frees the lock.
#[derive(Debug)]
pub(crate) struct LockFile(OpenFile);

/// What came of an attempt.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// With the next token.
    Locked(LockFile, FencingToken),
    /// Another client has locked the file.
    Busy(OpenFile),
}

impl LockFile {
    /// An open file that this process has locked.
    pub(crate) fn locked(file: OpenFile) -> Self {
        Self(file)
    }

    /// Locks the file at `path`, which is made when it is missing, and takes the next token from it. `locked` is that
    /// file where it was opened and locked before.
    pub(crate) fn take(folder: &Folder, path: &Path, mut locked: Option<Self>) -> Result<Attempt> {
        for _ in 0..REPLACED_TRIES {
            let lock = match locked.take() {
                Some(lock) => lock,
                None => match OpenFile::open(folder, path)?.map(OpenFile::try_lock).transpose()? {
                    Some(Ok(lock)) => lock,
                    Some(Err(busy)) => return Ok(Attempt::Busy(busy)),
                    None => match Self::make(folder, path, |new| new.publish(path))? {
                        Some((lock, token)) => return Ok(Attempt::Locked(lock, token)),
                        // Another client has just made it.
                        None => continue,
                    },
                },
            };
            // A file that was deleted or replaced since it was opened is opened by nobody else: its lock excludes nobody.
            if lock.place().is_in_place()? {
                let (lock, token) = lock.mint(folder)?;
                return Ok(Attempt::Locked(lock, token));
            }
        }
        Err(refused("lock file", ErrorKind::Unavailable, path, "is replaced all the time"))
    }

    /// Where the file is.
    pub(crate) fn place(&self) -> &Arc<Place> {
        self.0.place()
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
        let new = folder.new_file(path)?;
        if !try_lock(new.file()).map_err(failed)? {
            return Err(refused(MAKE, ErrorKind::Unavailable, path, "is locked before it has a name"));
        }
        new.file().write_all_at(keys::record(first).as_bytes(), 0).map_err(failed)?;
        folder.share(new.file()).map_err(failed)?;
        new.file().sync_all().map_err(failed)?;
        let Some(file) = publish(new).map_err(failed)? else { return Ok(None) };
        let locked = Self(OpenFile::new(file, path)?);
        folder.sync().map_err(failed)?;
        Ok(Some((locked, FencingToken::new(first))))
    }

    /// The next token: on the disk before it is answered, so that no later grant can repeat it.
    fn mint(self, folder: &Folder) -> Result<(Self, FencingToken)> {
        let (file, path) = (self.0.file(), self.place().path());
        let failed = |cause| failed("write token", path, cause);
        let corrupt = |what| refused("read token", ErrorKind::Unexpected, path, what);
        let mut bytes = Vec::with_capacity(keys::RECORD_BYTES + 1);
        // One byte more than a record, to notice a file that is longer than one.
        file.take(keys::RECORD_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.is_empty() {
            return self.replace_empty(folder);
        }
        let last = keys::parse_record(&bytes).ok_or_else(|| {
            corrupt("holds no token record: its tokens would not rise; if no one needs them, delete the file")
        })?;
        let next = keys::next_token(last, wall_clock_us()).ok_or_else(|| corrupt("has no token left"))?;
        // It may have been open for long before it was locked.
        refuse_hard_link(&file.metadata().map_err(failed)?, path)?;
        folder.repair(file);
        file.write_all_at(keys::record(next).as_bytes(), 0).map_err(failed)?;
        file.sync_data().map_err(failed)?;
        Ok((self, FencingToken::new(next)))
    }

    /// Replaces an empty file, from which nothing was ever granted, by a finished one. It is not written in place: it may
    /// be a foreign file that was linked into the folder.
    ///
    /// Clients that have the empty file open find it locked until its name leads to the new one, and open that one then.
    fn replace_empty(self, folder: &Folder) -> Result<(Self, FencingToken)> {
        let path = self.place().path();
        let made = Self::make(folder, path, |new| new.replace(path).map(Some))?;
        made.ok_or_else(|| refused(MAKE, ErrorKind::Unavailable, path, "was made by somebody else"))
    }

    /// Another handle of the same open file, which the lock belongs to; `None` when this is the file of another path.
    pub(crate) fn another_handle(&self, path: &Path) -> Option<io::Result<File>> {
        (self.place().path() == path).then(|| self.0.file().try_clone())
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Closing the file is not enough where a forked child has inherited it.
        unlock(self.0.file(), self.place().path());
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
    use std::{
        fs,
        process::{Child, Command},
    };

    use super::*;

    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    fn take(folder: &Folder, path: &Path) -> Option<LockFile> {
        match LockFile::take(folder, path, None).unwrap() {
            Attempt::Locked(lock, _) => Some(lock),
            Attempt::Busy(_) => None,
        }
    }

    #[test]
    fn a_child_that_inherited_the_open_file_does_not_keep_a_released_lock() {
        let path = tempfile::tempdir().unwrap();
        let folder = Folder::new(path.path());
        let file = folder.join("a.lock".into());
        let locked = take(&folder, &file).unwrap();
        // As its standard input: the same open file, as after a fork.
        let inherited = locked.another_handle(&file).unwrap().unwrap();
        let _child = Ended(Command::new("sleep").arg("1000").stdin(inherited).spawn().unwrap());
        assert!(take(&folder, &file).is_none());
        drop(locked);
        assert!(take(&folder, &file).is_some());
    }

    #[test]
    fn a_file_that_is_deleted_after_it_was_locked_is_not_granted() {
        let path = tempfile::tempdir().unwrap();
        let folder = Folder::new(path.path());
        let file = folder.join("a.lock".into());
        for change in [
            |file: &Path| fs::remove_file(file),
            |file: &Path| fs::rename(file, file.with_extension("moved")),
        ] {
            drop(take(&folder, &file));
            let locked = OpenFile::open(&folder, &file).unwrap().unwrap().try_lock().unwrap().unwrap();
            change(&file).unwrap();
            let other = take(&folder, &file).unwrap();
            assert!(other.place().is_in_place().unwrap());
            let attempt = LockFile::take(&folder, &file, Some(locked)).unwrap();
            assert!(matches!(attempt, Attempt::Busy(_)), "it is the other one's: {attempt:?}");
        }
    }
}
