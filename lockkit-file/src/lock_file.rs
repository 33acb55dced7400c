//! One lock file: locked, checked, given the next token, unlocked.

use std::{
    fs::{File, Metadata, TryLockError},
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockkit_core::{ErrorKind, FencingToken, Result};

use crate::{
    error::{failed, refused},
    folder::{Folder, refuse_hard_link},
    keys,
    new_file::NewFile,
    open_file::{FileLocation, OpenFile, read_start},
};

/// How often a lock file is opened again that was created, deleted or replaced before it was locked.
const REPLACED_TRIES: u32 = 16;

const MAKE: &str = "make lock file";

/// A file that this process has opened and locked. Dropping it frees the lock.
#[derive(Debug)]
pub(crate) struct LockFile {
    file: OpenFile,
    is_unlocked: AtomicBool,
}

/// The outcome of [`LockFile::take`].
#[derive(Debug)]
pub(crate) enum TakeOutcome {
    /// The file is locked, and the next token is written.
    Locked(LockFile, FencingToken),
    /// Another client has locked the file.
    Busy(OpenFile),
}

impl LockFile {
    /// Wraps an open file that this process has locked.
    pub(crate) fn locked(file: OpenFile) -> Self {
        Self { file, is_unlocked: AtomicBool::new(false) }
    }

    /// Locks the file at `path`, which is created if it is missing, and writes the next token. `locked` is that file if
    /// it was opened and locked before.
    pub(crate) fn take(folder: &Folder, path: &Path, locked: Option<Self>) -> Result<TakeOutcome> {
        Self::take_with(folder, path, locked, || {})
    }

    /// Calls `before_check` before each check whether the locked file still has its name.
    fn take_with(
        folder: &Folder,
        path: &Path,
        mut locked: Option<Self>,
        mut before_check: impl FnMut(),
    ) -> Result<TakeOutcome> {
        for _ in 0..REPLACED_TRIES {
            let lock = match locked.take() {
                Some(lock) => lock,
                None => match OpenFile::open(folder, path)?.map(OpenFile::try_lock).transpose()? {
                    Some(Ok(lock)) => lock,
                    Some(Err(busy)) => return Ok(TakeOutcome::Busy(busy)),
                    None => match Self::make(folder, path, |new| new.publish(path))? {
                        Some((lock, token)) => return Ok(TakeOutcome::Locked(lock, token)),
                        // Another client has just made it.
                        None => continue,
                    },
                },
            };
            before_check();
            // The file may have been deleted or replaced between its opening and its locking. Nobody else opens such a
            // file, so its lock excludes nobody.
            if let Some(found) = lock.location().current()? {
                let (lock, token) = lock.write_next_token(folder, &found)?;
                return Ok(TakeOutcome::Locked(lock, token));
            }
        }
        Err(refused("lock file", ErrorKind::Unavailable, path, "is replaced again and again"))
    }

    /// Returns the path and the identity of the file.
    pub(crate) fn location(&self) -> &Arc<FileLocation> {
        self.file.location()
    }

    /// Creates the file. It is locked, and its first token is on the disk, before it gets its name. `None` if `publish`
    /// finds the name in use.
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
        folder.set_permissions(new.file()).map_err(failed)?;
        new.file().sync_all().map_err(failed)?;
        let Some(file) = publish(new).map_err(failed)? else { return Ok(None) };
        let found = file.metadata().map_err(failed)?;
        let locked = Self::locked(OpenFile::new(file, &found, path));
        folder.sync().map_err(failed)?;
        Ok(Some((locked, FencingToken::new(first))))
    }

    /// Writes the next token. It is on the disk before this returns, so that no later grant can repeat it. `found` is
    /// the metadata of the locked file.
    fn write_next_token(self, folder: &Folder, found: &Metadata) -> Result<(Self, FencingToken)> {
        let (file, path) = (self.file.file(), self.location().path());
        let failed = |cause| failed("write token", path, cause);
        let corrupt = |what| refused("read token", ErrorKind::Unexpected, path, what);
        // One byte more than a record, to detect longer files.
        let bytes = read_start(file, keys::RECORD_BYTES + 1).map_err(failed)?;
        if bytes.is_empty() {
            return self.replace_empty(folder);
        }
        let last = keys::parse_record(&bytes).ok_or_else(|| {
            corrupt("holds no valid token record: tokens might not rise; delete the file if nothing relies on them")
        })?;
        let next = keys::next_token(last, wall_clock_us()).ok_or_else(|| corrupt("has no token left"))?;
        // The file may have been linked between its opening and its locking.
        refuse_hard_link(found, path)?;
        folder.repair_permissions(file, found);
        file.write_all_at(keys::record(next).as_bytes(), 0).map_err(failed)?;
        file.sync_data().map_err(failed)?;
        Ok((self, FencingToken::new(next)))
    }

    /// Replaces an empty file, which has never granted anything, by a complete one. It is not written in place, because
    /// it may be a foreign file that was linked into the folder.
    ///
    /// Clients that have opened the empty file find it locked until its name refers to the new file, and then open
    /// that.
    fn replace_empty(self, folder: &Folder) -> Result<(Self, FencingToken)> {
        let path = self.location().path();
        let made = Self::make(folder, path, |new| new.replace(path).map(Some))?;
        made.ok_or_else(|| refused(MAKE, ErrorKind::Unavailable, path, "was created by another client"))
    }

    /// Frees the lock, once.
    pub(crate) fn unlock(&self) {
        // Closing is not enough: a forked child may have inherited the open file.
        if !self.is_unlocked.swap(true, Ordering::Relaxed) {
            unlock(self.file.file(), self.location().path());
        }
    }

    /// Returns another handle of the same open file, which the lock belongs to; `None` if it has another path.
    pub(crate) fn another_handle(&self, path: &Path) -> Option<io::Result<File>> {
        (self.location().path() == path).then(|| self.file.file().try_clone())
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        self.unlock();
    }
}

/// Tries to lock an open file; false if another process has locked it.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(cause)) => Err(cause),
    }
}

/// Unlocks an open file.
pub(crate) fn unlock(file: &File, path: &Path) {
    // Fails only for a file that is not open; closing frees the lock then.
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

    struct KilledOnDrop(Child);

    impl Drop for KilledOnDrop {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    fn take(folder: &Folder, path: &Path) -> Option<LockFile> {
        match LockFile::take(folder, path, None).unwrap() {
            TakeOutcome::Locked(lock, _) => Some(lock),
            TakeOutcome::Busy(_) => None,
        }
    }

    #[test]
    fn a_child_that_inherited_the_open_file_does_not_keep_a_released_lock() {
        let path = tempfile::tempdir().unwrap();
        let folder = Folder::new(path.path());
        let file = folder.join("a.lock".into());
        let locked = take(&folder, &file).unwrap();
        // As the standard input of a child: the same open file, as after a fork.
        let inherited = locked.another_handle(&file).unwrap().unwrap();
        let _child = KilledOnDrop(Command::new("sleep").arg("1000").stdin(inherited).spawn().unwrap());
        assert!(take(&folder, &file).is_none());
        drop(locked);
        assert!(take(&folder, &file).is_some());
    }

    /// Moves the file away before each of the first checks of its name, and puts another one in its place. Returns the
    /// number of checks, and the answer.
    fn moved_before_the_first_checks(checks: u32) -> (u32, Result<TakeOutcome>) {
        let path = tempfile::tempdir().unwrap();
        let folder = Folder::new(path.path());
        let file = folder.join("a.lock".into());
        drop(take(&folder, &file));
        let mut done = 0;
        let outcome = LockFile::take_with(&folder, &file, None, || {
            done += 1;
            assert!(done < 1000, "the attempts have no end");
            if done <= checks {
                let moved = file.with_extension(done.to_string());
                fs::rename(&file, &moved).unwrap();
                fs::copy(&moved, &file).unwrap();
            }
        });
        (done, outcome)
    }

    #[test]
    fn replaced_lock_file_is_opened_up_to_sixteen_times() {
        for checks in [1, 15] {
            let (done, outcome) = moved_before_the_first_checks(checks);
            assert_eq!(done, checks + 1);
            assert!(matches!(outcome, Ok(TakeOutcome::Locked(..))), "{outcome:?}");
        }
        let (done, outcome) = moved_before_the_first_checks(16);
        assert_eq!((done, outcome.unwrap_err().kind()), (16, ErrorKind::Unavailable));
    }

    /// Otherwise another client could lock it first, and be granted the lock, too.
    #[test]
    fn new_lock_file_is_locked_and_complete_before_it_has_its_name() {
        let path = tempfile::tempdir().unwrap();
        let folder = Folder::new(path.path());
        let file = folder.join("a.lock".into());
        let mut seen = None;
        let made = LockFile::make(&folder, &file, |new| {
            let unnamed = fs::read_dir(path.path()).unwrap().next().unwrap().unwrap().path();
            let is_locked = !try_lock(&File::open(&unnamed).unwrap()).unwrap();
            seen = Some((is_locked, keys::parse_record(&fs::read(&unnamed).unwrap())));
            new.publish(&file)
        });
        let (_lock, token) = made.unwrap().unwrap();
        assert_eq!(seen, Some((true, Some(token.get()))));
    }

    #[test]
    fn locked_file_that_was_deleted_is_not_granted() {
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
            assert!(other.location().is_current().unwrap());
            let attempt = LockFile::take(&folder, &file, Some(locked)).unwrap();
            assert!(matches!(attempt, TakeOutcome::Busy(_)), "the other client holds it: {attempt:?}");
        }
    }
}
