//! The holder file, which shows who holds a lock without disturbing an acquire.
//!
//! A file lock does not show its owner, and a probe that takes it for a moment would make a try fail. So a holder also
//! writes its metadata to a second file, and then locks that file. A reader tries to lock it in shared mode, so that
//! two readers do not take each other for a holder (`inspect.rs`).
//!
//! The file of a leader is never rewritten. Each value that it proposes is a new file, complete and locked before it
//! gets the name. A reader finds one value or the other, and a failed write leaves the earlier one. The file of any
//! other holder is rewritten: it costs less, and a user of a sticky folder may not replace the file of another user.
//! The next holder may do that while a reader still reads; the checksum shows it.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use lockkit_core::{FencingToken, Metadata, Result, backend::Claim};

use crate::{
    contents::{self, HOLDER_BYTES_MAX},
    error::failed,
    folder::Folder,
    lock_file::{try_lock, unlock},
    open_file::read_start,
};

/// How often a holder tries to lock its file while readers have it locked, which takes them microseconds.
const ANNOUNCE_TRIES: u32 = 5;

/// Pause between two of these attempts.
const ANNOUNCE_PAUSE: Duration = Duration::from_millis(1);

/// The number of a file without a proposal: below that of every proposal.
const NO_PROPOSAL: u64 = 0;

const WRITE: &str = "write holder file";

/// The holder's lock on its holder file.
#[derive(Debug)]
pub(crate) struct Announcement {
    path: PathBuf,
    file: File,
    /// The number of the proposal that the file shows, or [`NO_PROPOSAL`].
    number: u64,
}

impl Announcement {
    /// Writes and locks the holder file. The caller has locked the lock file.
    ///
    /// Exclusion does not depend on it. So if it cannot be written for an ordinary lock, this is logged, and the lock
    /// is granted without it.
    ///
    /// # Errors
    ///
    /// If the file of a candidate cannot be written: it would lead, and others would see no leader.
    pub(crate) fn make(
        folder: &Folder,
        path: &Path,
        token: FencingToken,
        claim: &Claim,
    ) -> Result<Option<Self>> {
        let text = contents::holder(token, &claim.metadata_json());
        if let Some(proposal) = &claim.metadata().proposal {
            return Self::replace_by(folder, path, &text, proposal.number).map(Some);
        }
        let announced = match Self::write_in_place(folder, path, &text, || thread::sleep(ANNOUNCE_PAUSE)) {
            Ok(Some(announcement)) => Ok(announcement),
            // A file that no holder wrote, or that is unusable, is replaced by name; its content is not touched.
            Ok(None) | Err(_) => Self::replace_by(folder, path, &text, NO_PROPOSAL),
        };
        Ok(announced
            .inspect_err(|error| {
                tracing::warn!(
                    error = format_args!("{error:#}"),
                    "cannot write the holder file; inspections will not show this holder"
                )
            })
            .ok())
    }

    /// `None` if no holder has written the file, or if it stays locked.
    fn write_in_place(
        folder: &Folder,
        path: &Path,
        text: &str,
        mut pause: impl FnMut(),
    ) -> Result<Option<Self>> {
        let failed = |cause| failed(WRITE, path, cause);
        let Some((file, found)) = folder.open_file(path)? else { return Ok(None) };
        let earlier = read(&file).map_err(failed)?;
        // Any other file may be a foreign one that was linked into the folder, and whose name here was removed after
        // its names were counted.
        if contents::parse_holder(&earlier).is_none() {
            return Ok(None);
        }
        // Written before it is locked, so that a locked file is complete.
        write(&file, text, earlier.len()).map_err(failed)?;
        folder.repair_permissions(&file, &found);
        for _ in 0..ANNOUNCE_TRIES {
            if try_lock(&file).map_err(failed)? {
                return Ok(Some(Self { path: path.to_owned(), file, number: NO_PROPOSAL }));
            }
            pause();
        }
        Ok(None)
    }

    /// Creates a new file, which replaces the existing one.
    pub(crate) fn replace(
        folder: &Folder,
        path: &Path,
        token: FencingToken,
        metadata: &Metadata,
    ) -> Result<Self> {
        Self::replace_by(folder, path, &contents::holder(token, &metadata.to_json()), number_of(metadata))
    }

    fn replace_by(folder: &Folder, path: &Path, text: &str, number: u64) -> Result<Self> {
        let failed = |cause| failed(WRITE, path, cause);
        let new = folder.new_file(path)?;
        write(new.file(), text, 0).map_err(failed)?;
        if !try_lock(new.file()).map_err(failed)? {
            return Err(failed(io::ErrorKind::ResourceBusy.into()));
        }
        folder.set_permissions(new.file()).map_err(failed)?;
        let file = new.replace(path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), file, number })
    }

    /// Returns whether the file shows a later proposal than that of `metadata`.
    pub(crate) fn is_later_than(&self, metadata: &Metadata) -> bool {
        self.number > number_of(metadata)
    }
}

fn number_of(metadata: &Metadata) -> u64 {
    metadata.proposal.as_ref().map_or(NO_PROPOSAL, |proposal| proposal.number)
}

/// Overwrites a file of `length` bytes.
fn write(file: &File, text: &str, length: usize) -> io::Result<()> {
    file.write_all_at(text.as_bytes(), 0)?;
    match length > text.len() {
        true => file.set_len(text.len() as u64),
        false => Ok(()),
    }
}

/// Reads a holder file, and one byte more than the longest one has, which no checksum then fits.
pub(crate) fn read(file: &File) -> io::Result<Vec<u8>> {
    read_start(file, HOLDER_BYTES_MAX + 1)
}

impl Drop for Announcement {
    fn drop(&mut self) {
        unlock(&self.file, &self.path);
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::{LockName, backend::ClaimControl};

    use super::*;

    fn claim(label: Option<&str>) -> Claim {
        let metadata = Metadata::of_this_process(label);
        Claim::new(LockName::new("a").unwrap(), true, metadata, &ClaimControl::new())
    }

    #[test]
    fn shorter_text_leaves_nothing_of_the_earlier_one() {
        let path = tempfile::tempdir().unwrap();
        let folder = Folder::new(path.path());
        let holder = folder.join("a.holder".into());
        for (number, label) in [(1, "a long label"), (2, "short"), (3, "shor"), (4, "longer again")] {
            let token = FencingToken::new(number);
            let claim = claim(Some(label));
            drop(Announcement::make(&folder, &holder, token, &claim).unwrap().unwrap());
            let shown = contents::parse_holder(&std::fs::read(&holder).unwrap());
            assert_eq!(shown, Some((token, claim.metadata().clone())));
        }
    }

    /// Writes a file that a reader has locked until the pause of this number. Returns the number of pauses, and whether
    /// the file was locked.
    fn announced_with_a_reader_until(last: u32) -> (u32, bool) {
        let path = tempfile::tempdir().unwrap();
        let folder = Folder::new(path.path());
        let holder = folder.join("a.holder".into());
        drop(Announcement::make(&folder, &holder, FencingToken::new(1), &claim(None)).unwrap().unwrap());
        let reader = File::open(&holder).unwrap();
        reader.lock_shared().unwrap();
        let (mut pauses, text) = (0, contents::holder(FencingToken::new(2), &claim(None).metadata_json()));
        let announced = Announcement::write_in_place(&folder, &holder, &text, || {
            pauses += 1;
            assert_eq!(std::fs::read_to_string(&holder).unwrap(), text, "a locked file is complete");
            if pauses == last {
                reader.unlock().unwrap();
            }
            assert!(pauses < 1000, "the attempts have no end");
        });
        (pauses, announced.unwrap().is_some())
    }

    #[test]
    fn holder_waits_for_readers_in_five_attempts() {
        assert_eq!(announced_with_a_reader_until(1), (1, true));
        assert_eq!(announced_with_a_reader_until(4), (4, true));
        assert_eq!(announced_with_a_reader_until(6), (5, false));
    }

    #[test]
    fn end_of_an_announcement_unlocks_a_file_that_a_child_has_inherited() {
        let path = tempfile::tempdir().unwrap();
        let folder = Folder::new(path.path());
        let holder = folder.join("a.holder".into());
        let announcement = Announcement::make(&folder, &holder, FencingToken::new(1), &claim(None)).unwrap();
        // The same open file, as after a fork.
        let inherited = announcement.as_ref().unwrap().file.try_clone().unwrap();
        assert!(!try_lock(&File::open(&holder).unwrap()).unwrap());
        drop(announcement);
        assert!(try_lock(&File::open(&holder).unwrap()).unwrap());
        drop(inherited);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn grant_reads_and_writes_each_of_its_files_once() {
        use crate::lock_file::{LockFile, TakeOutcome};

        // How often this thread has read and written.
        let reads_and_writes = || {
            let counters = std::fs::read_to_string("/proc/thread-self/io").unwrap();
            ["syscr: ", "syscw: "].map(|name| {
                let count = counters.lines().find_map(|line| line.strip_prefix(name)).unwrap();
                count.parse::<u64>().unwrap()
            })
        };
        let path = tempfile::tempdir().unwrap();
        let folder = Folder::new(path.path());
        let (lock, holder) = (folder.join("a.lock".into()), folder.join("a.holder".into()));
        let claim = claim(None);
        let grant = || {
            let TakeOutcome::Locked(locked, token) = LockFile::take(&folder, &lock, None).unwrap() else {
                panic!("it is free")
            };
            drop(Announcement::make(&folder, &holder, token, &claim).unwrap().unwrap());
            drop(locked);
        };
        // Creates the files.
        grant();
        let (before, between) = (reads_and_writes(), reads_and_writes());
        (0..10).for_each(|_| grant());
        let after = reads_and_writes();
        // Reading the counters reads, too.
        let reads = after[0] - between[0] - (between[0] - before[0]);
        assert_eq!([reads, after[1] - between[1]], [20, 20]);
    }
}
