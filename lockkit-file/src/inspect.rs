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
    let mut foreign = Vec::new();
    for _ in 0..READ_TRIES {
        let Some(file) = locked(operation, path)? else { return Ok(Shown::Nobody) };
        let content = holder::read(&file).map_err(|cause| failed(operation, path, cause))?;
        if let Some((token, metadata)) = contents::parse_holder(&content) {
            return Ok(Shown::Holder(token, metadata));
        }
        foreign = content;
        thread::sleep(READ_PAUSE);
    }
    Ok(Shown::Foreign(foreign))
}

/// Opens the holder file; `None` if nobody has locked it.
pub(crate) fn locked(operation: &'static str, path: &Path) -> Result<Option<File>> {
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
            Ok(()) if FileLocation::of(&file.metadata().map_err(failed)?, path).is_current()? => {
                return Ok(None);
            }
            Ok(()) => {}
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
            Err(TryLockError::WouldBlock) => return Ok(Some(file)),
        }
    }
    Err(refused(operation, ErrorKind::Unavailable, path, "is replaced again and again"))
}
