//! The holder file, which shows who holds a lock without disturbing an acquire.
//!
//! A file lock does not show its owner, and a probe that takes it for a moment would make a try fail. So a holder also
//! writes its metadata to a second file, and then locks that file. An inspection tries to lock it in shared mode, so
//! that two inspections do not take each other for a holder.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    str, thread,
    time::Duration,
};

use lockkit_core::{FencingToken, Metadata, Result, backend::Contender, limits::METADATA_BYTES_MAX};
use rustix::fs::OFlags;

use crate::{
    error::failed,
    folder::Folder,
    lock_file::{try_lock, unlock},
};

/// How often a holder tries to lock its file while inspections have it locked, which takes them microseconds.
const ANNOUNCE_TRIES: u32 = 5;

/// Pause between two of these attempts.
const ANNOUNCE_PAUSE: Duration = Duration::from_millis(1);

/// How often an inspection reads the file again because the holder changed meanwhile.
const INSPECT_TRIES: u32 = 3;

/// Longest holder file, in bytes: a token in decimal digits, the metadata, two line ends.
const HOLDER_BYTES_MAX: u64 = 20 + METADATA_BYTES_MAX as u64 + 2;

const WRITE: &str = "write holder file";

/// The holder's lock on its holder file.
#[derive(Debug)]
pub(crate) struct Announcement {
    path: PathBuf,
    file: File,
}

impl Announcement {
    /// Writes and locks the holder file. The caller has locked the lock file.
    ///
    /// Exclusion does not depend on it, so a failure is only logged, and the lock is granted.
    pub(crate) fn make(
        folder: &Folder,
        path: PathBuf,
        token: FencingToken,
        metadata: &Metadata,
    ) -> Option<Self> {
        let text = format!("{token}\n{}\n", metadata.to_json());
        let announced = match Self::write_in_place(folder, &path, &text) {
            Ok(Some(announcement)) => Ok(announcement),
            // A file that no holder wrote, or that is unusable, is replaced by name; its content is not touched.
            Ok(None) | Err(_) => Self::replace(folder, &path, &text),
        };
        announced
            .inspect_err(|error| {
                tracing::warn!(
                    error = format_args!("{error:#}"),
                    "cannot write the holder file; inspections will not show this holder"
                )
            })
            .ok()
    }

    /// `None` if no holder has written the file, or if it stays locked.
    fn write_in_place(folder: &Folder, path: &Path, text: &str) -> Result<Option<Self>> {
        let failed = |cause| failed(WRITE, path, cause);
        let Some(file) = folder.open_file(path)? else { return Ok(None) };
        if !is_of_a_holder(&file).map_err(failed)? {
            return Ok(None);
        }
        // Written before it is locked, so that a locked file is complete.
        write(&file, text).map_err(failed)?;
        folder.repair_permissions(&file);
        for _ in 0..ANNOUNCE_TRIES {
            if try_lock(&file).map_err(failed)? {
                return Ok(Some(Self { path: path.to_owned(), file }));
            }
            thread::sleep(ANNOUNCE_PAUSE);
        }
        Ok(None)
    }

    /// Creates a new file, which replaces the existing one.
    fn replace(folder: &Folder, path: &Path, text: &str) -> Result<Self> {
        let failed = |cause| failed(WRITE, path, cause);
        let new = folder.new_file(path)?;
        write(new.file(), text).map_err(failed)?;
        if !try_lock(new.file()).map_err(failed)? {
            return Err(failed(io::ErrorKind::ResourceBusy.into()));
        }
        folder.set_permissions(new.file()).map_err(failed)?;
        let file = new.replace(path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), file })
    }
}

fn write(file: &File, text: &str) -> io::Result<()> {
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(text.len() as u64)
}

/// Returns whether a holder wrote the file's content. Any other file may be a foreign one that was linked into the
/// folder, and whose name here was removed after its names were counted.
fn is_of_a_holder(file: &File) -> io::Result<bool> {
    Ok(parse(&read(file)?).0.is_some())
}

fn read(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(HOLDER_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Drop for Announcement {
    fn drop(&mut self) {
        unlock(&self.file, &self.path);
    }
}

/// Returns who holds the lock now. `path` is that of the holder file.
pub(crate) fn inspect(path: &Path) -> Result<Option<Contender>> {
    let failed = |cause| failed("inspect", path, cause);
    let mut options = OpenOptions::new();
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    options.read(true).custom_flags(flags.bits().cast_signed());
    let mut holder = None;
    for _ in 0..INSPECT_TRIES {
        let file = match options.open(path) {
            Ok(file) => file,
            // The lock was never held.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(failed(cause)),
        };
        match file.try_lock_shared() {
            Ok(()) => return Ok(None),
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
            Err(TryLockError::WouldBlock) => {}
        }
        let (token, metadata) = parse(&read(&file).map_err(failed)?);
        let complete = metadata.is_some();
        let entry = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        holder = Some(Contender::new(entry, token, metadata));
        if complete {
            break;
        }
        // The next holder was writing during the read, or the file is foreign.
        thread::sleep(ANNOUNCE_PAUSE);
    }
    Ok(holder)
}

/// Parses a holder file, which may have any content.
pub(crate) fn parse(bytes: &[u8]) -> (Option<FencingToken>, Option<Metadata>) {
    let Some((token, metadata)) = str::from_utf8(bytes).ok().and_then(|text| text.split_once('\n')) else {
        return (None, None);
    };
    let metadata = Metadata::from_json(metadata.trim_end().as_bytes());
    // A number without metadata is not a token, but the content of a foreign file.
    let token = token.parse().ok().filter(|_| metadata.is_some()).map(FencingToken::new);
    (token, metadata)
}
