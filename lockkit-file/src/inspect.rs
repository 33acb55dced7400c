//! Who holds a lock, read from its holder file without disturbing anybody.
//!
//! What can interleave with a read:
//!
//! * **A leader proclaims.** Its new file has the name before the earlier one is unlocked. A reader that has opened the
//!   earlier one may then lock it, and nevertheless the leader leads. So "nobody" needs a file that still has its name.
//! * **The holder releases, and the next one rewrites the file.** The text may be a mixture, which has no valid
//!   checksum. It is read again.
//! * **A holder is killed.** Its file is unlocked by the operating system, so nobody holds the lock.

use std::{
    fs::{OpenOptions, TryLockError},
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

/// What a holder file shows.
#[derive(Debug)]
enum Shown {
    Nobody,
    Holder(FencingToken, Metadata),
    /// Somebody has locked a file that is no holder's.
    Foreign,
}

/// Returns who holds the lock now. `path` is that of the holder file.
pub(crate) fn inspect(path: &Path) -> Result<Option<Contender>> {
    let (token, metadata) = match read("inspect", path)? {
        Shown::Nobody => return Ok(None),
        Shown::Holder(token, metadata) => (Some(token), Some(metadata)),
        Shown::Foreign => (None, None),
    };
    let entry = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Some(Contender::new(entry, token, metadata)))
}

/// Returns who leads now. `path` is that of the holder file.
pub(crate) fn leader(operation: &'static str, path: &Path) -> Result<Option<LeaderEntry>> {
    Ok(match read(operation, path)? {
        Shown::Holder(token, metadata) => Some(LeaderEntry::of_metadata(token, Some(metadata))),
        Shown::Nobody | Shown::Foreign => None,
    })
}

fn read(operation: &'static str, path: &Path) -> Result<Shown> {
    let failed = |cause| failed(operation, path, cause);
    let mut options = OpenOptions::new();
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    options.read(true).custom_flags(flags.bits().cast_signed());
    let mut is_foreign = false;
    for _ in 0..READ_TRIES {
        let file = match options.open(path) {
            Ok(file) => file,
            // The lock was never held.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Shown::Nobody),
            Err(cause) => return Err(failed(cause)),
        };
        match file.try_lock_shared() {
            Ok(()) if FileLocation::of(&file, path).map_err(failed)?.is_current()? => {
                return Ok(Shown::Nobody);
            }
            Ok(()) => continue,
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
            Err(TryLockError::WouldBlock) => {}
        }
        if let Some((token, metadata)) = contents::parse_holder(&holder::read(&file).map_err(failed)?) {
            return Ok(Shown::Holder(token, metadata));
        }
        is_foreign = true;
        thread::sleep(READ_PAUSE);
    }
    if is_foreign {
        return Ok(Shown::Foreign);
    }
    Err(refused(operation, ErrorKind::Unavailable, path, "is replaced again and again"))
}
