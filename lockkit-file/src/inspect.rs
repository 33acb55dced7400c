//! Who holds a lock, and which locks are held, read from the holder files without disturbing anybody.
//!
//! What can interleave with a read:
//!
//! * **A leader proclaims.** Its new file has the name before the earlier one is unlocked. A reader that has opened the
//!   earlier one may then lock it, and nevertheless the leader leads. So "nobody" needs a file that still has its name.
//! * **The holder releases, and the next one rewrites the file.** The text may be a mixture, which has no valid
//!   checksum. It is read again.
//! * **A holder is killed.** Its file is unlocked by the operating system, so nobody holds the lock.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    thread,
    time::Duration,
};

use lockkit_core::{
    ErrorKind, FencingToken, Metadata, Result,
    backend::{Contender, LeaderEntry},
};
use rustix::fs::OFlags;

use crate::{
    contents,
    error::{failed, refused},
    holder,
    open_file::FileLocation,
};

/// How often the file is opened because it was replaced or written meanwhile.
const READ_TRIES: u32 = 8;

/// Pause before a text without a valid checksum is read again.
const READ_PAUSE: Duration = Duration::from_millis(1);

/// Most of a foreign file that an inspection shows, in characters.
pub const INSPECTED_DATA_CHARS_MAX: usize = 200;

/// What a holder file shows.
#[derive(Debug)]
enum Shown {
    Nobody,
    Holder(FencingToken, Metadata),
    /// Somebody has locked a file that is no holder's; its beginning.
    Foreign(Vec<u8>),
}

/// Returns who holds the lock now. `path` is that of the holder file.
pub(crate) fn inspect(path: &Path) -> Result<Option<Contender>> {
    let entry = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(match read("inspect", path)? {
        Shown::Nobody => None,
        Shown::Holder(token, metadata) => Some(Contender::new(entry, Some(token), Some(metadata))),
        Shown::Foreign(content) => {
            let contender = Contender::new(entry, None, None);
            let text = String::from_utf8_lossy(&content);
            Some(match text.is_empty() {
                true => contender,
                false => contender.with_data(text.chars().take(INSPECTED_DATA_CHARS_MAX).collect::<String>()),
            })
        }
    })
}

/// Returns who leads now. `path` is that of the holder file.
pub(crate) fn leader(operation: &'static str, path: &Path) -> Result<Option<LeaderEntry>> {
    Ok(match read(operation, path)? {
        Shown::Holder(token, metadata) => Some(LeaderEntry::of_metadata(token, Some(metadata))),
        Shown::Nobody | Shown::Foreign(_) => None,
    })
}

fn read(operation: &'static str, path: &Path) -> Result<Shown> {
    read_with(operation, path, || thread::sleep(READ_PAUSE))
}

fn read_with(operation: &'static str, path: &Path, mut pause: impl FnMut()) -> Result<Shown> {
    let mut foreign = Vec::new();
    for _ in 0..READ_TRIES {
        let Some(file) = locked(operation, path)? else { return Ok(Shown::Nobody) };
        let content = holder::read(&file).map_err(|cause| failed(operation, path, cause))?;
        if let Some((token, metadata)) = contents::parse_holder(&content) {
            return Ok(Shown::Holder(token, metadata));
        }
        foreign = content;
        pause();
    }
    Ok(Shown::Foreign(foreign))
}

/// Opens the holder file; `None` if nobody has locked it.
pub(crate) fn locked(operation: &'static str, path: &Path) -> Result<Option<File>> {
    locked_with(operation, path, || {})
}

/// Calls `before_check` before each check whether the file still has its name.
fn locked_with(operation: &'static str, path: &Path, mut before_check: impl FnMut()) -> Result<Option<File>> {
    let failed = |cause| failed(operation, path, cause);
    let mut options = OpenOptions::new();
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    options.read(true).custom_flags(flags.bits().cast_signed());
    for _ in 0..READ_TRIES {
        let file = match options.open(path) {
            Ok(file) => file,
            // The lock was never held.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(failed(cause)),
        };
        match file.try_lock_shared() {
            Ok(()) => before_check(),
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
            Err(TryLockError::WouldBlock) => return Ok(Some(file)),
        }
        if FileLocation::of(&file.metadata().map_err(failed)?, path).is_current()? {
            return Ok(None);
        }
    }
    Err(refused(operation, ErrorKind::Unavailable, path, "is replaced again and again"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use lockkit_core::{Proposal, limits::METADATA_BYTES_MAX};

    use super::*;

    /// Locks a file with a foreign text, which becomes that of a holder in the pause of this number. Returns the number
    /// of pauses, and whether a holder is shown.
    fn read_while_the_text_is_foreign_until(last: u32) -> (u32, bool) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.holder");
        fs::write(&path, "7\n").unwrap();
        let locked = File::open(&path).unwrap();
        locked.lock().unwrap();
        let text = contents::holder(FencingToken::new(7), &Metadata::of_this_process(None).to_json());
        let mut pauses = 0;
        let shown = read_with("inspect", &path, || {
            pauses += 1;
            if pauses == last {
                fs::write(&path, &text).unwrap();
            }
            assert!(pauses < 1000, "the attempts have no end");
        });
        (pauses, matches!(shown.unwrap(), Shown::Holder(..)))
    }

    #[test]
    fn longest_holder_file_is_read_completely() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.holder");
        let with = |value: String| Metadata::of_this_process(None).with_proposal(Proposal::new(value, 1));
        let short = with(String::new()).to_json().len();
        let longest = with("x".repeat(METADATA_BYTES_MAX - short));
        let text = contents::holder(FencingToken::new(u64::MAX), &longest.to_json());
        assert_eq!(text.len(), contents::HOLDER_BYTES_MAX);
        fs::write(&path, &text).unwrap();
        let locked = File::open(&path).unwrap();
        locked.lock().unwrap();
        let shown = inspect(&path).unwrap().unwrap();
        assert_eq!((shown.token, shown.metadata), (Some(FencingToken::new(u64::MAX)), Some(longest)));
    }

    #[test]
    fn foreign_text_is_read_again_up_to_eight_times() {
        assert_eq!(read_while_the_text_is_foreign_until(1), (1, true));
        assert_eq!(read_while_the_text_is_foreign_until(7), (7, true));
        assert_eq!(read_while_the_text_is_foreign_until(8), (8, false));
    }

    /// Replaces the file before each of the first checks of its name; the last one is locked. Returns the number of
    /// checks, and whether it was found.
    fn replaced_before_the_first_checks(checks: u32) -> (u32, Result<bool>) {
        let folder = tempfile::tempdir().unwrap();
        let (path, new) = (folder.path().join("a.holder"), folder.path().join("new"));
        fs::write(&path, "").unwrap();
        let (mut done, mut kept) = (0, Vec::new());
        let found = locked_with("inspect", &path, || {
            done += 1;
            assert!(done < 1000, "the attempts have no end");
            // The earlier ones stay open, so that no new one has the identity of an earlier one.
            kept.push(File::open(&path).unwrap());
            fs::write(&new, "").unwrap();
            fs::rename(&new, &path).unwrap();
            if done == checks {
                kept.push(File::open(&path).unwrap());
                kept.last().unwrap().lock().unwrap();
            }
        });
        (done, found.map(|file| file.is_some()))
    }

    #[test]
    fn replaced_holder_file_is_opened_up_to_eight_times() {
        for checks in [1, 7] {
            let (done, found) = replaced_before_the_first_checks(checks);
            assert_eq!((done, found.unwrap()), (checks, true));
        }
        let (done, found) = replaced_before_the_first_checks(9);
        assert_eq!((done, found.unwrap_err().kind()), (8, ErrorKind::Unavailable));
    }
}
