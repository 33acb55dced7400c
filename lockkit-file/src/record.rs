//! The record file, which outlives holds and processes: written by the holder of a lock, read by everybody.
//!
//! It is never rewritten. Each record is a new file, complete and on the disk before it gets the name, so that a reader
//! finds the earlier record or the new one, also after a crash or a power failure.

use std::{fs::File, io::Read, os::unix::fs::FileExt, path::Path};

use lockkit_core::{ErrorKind, Result};

use crate::{
    contents::{self, RECORD_BYTES_MAX, RECORD_TEXT_BYTES_MAX},
    error::{failed, refused},
    folder::Folder,
};

pub(crate) const READ: &str = "read record";

pub(crate) const WRITE: &str = "write record";

/// Returns the record at `path`, or `None` if there is none.
pub(crate) fn read(folder: &Folder, path: &Path) -> Result<Option<String>> {
    let Some((file, _)) = folder.open_file(path)? else { return Ok(None) };
    parse(READ, file, path).map(Some)
}

/// Writes the record. The caller has locked the lock file. Only a file with a record is replaced.
pub(crate) fn write(folder: &Folder, path: &Path, text: &str) -> Result<()> {
    let failed = |cause| failed(WRITE, path, cause);
    if text.len() > RECORD_TEXT_BYTES_MAX {
        let what = format!("has no room for {} bytes: at most {RECORD_TEXT_BYTES_MAX}", text.len());
        return Err(refused(WRITE, ErrorKind::InvalidConfig, path, &what));
    }
    if let Some((file, _)) = folder.open_file(path)? {
        parse(WRITE, file, path)?;
    }
    let new = folder.new_file(path)?;
    new.file().write_all_at(contents::record(text).as_bytes(), 0).map_err(failed)?;
    folder.set_permissions(new.file()).map_err(failed)?;
    new.file().sync_all().map_err(failed)?;
    new.replace(path).map_err(failed)?;
    folder.sync().map_err(failed)
}

fn parse(operation: &'static str, file: File, path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    // One byte more than a record, to detect longer files.
    file.take(RECORD_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|cause| failed(operation, path, cause))?;
    contents::parse_record(&bytes).map(str::to_owned).ok_or_else(|| {
        let what = "holds no valid record of this library: delete the file if nothing relies on it";
        refused(operation, ErrorKind::Unexpected, path, what)
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn foreign_file_is_not_read_beyond_the_length_of_a_record() {
        const LENGTH: u64 = 64 * RECORD_BYTES_MAX;
        // How many bytes this thread has read.
        let bytes_read = || {
            let counters = std::fs::read_to_string("/proc/thread-self/io").unwrap();
            let count = counters.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap();
            count.parse::<u64>().unwrap()
        };
        let path = tempfile::tempdir().unwrap();
        let (folder, file) = (Folder::new(path.path()), path.path().join("a.record"));
        File::create(&file).unwrap().set_len(LENGTH).unwrap();
        let before = bytes_read();
        assert_eq!(read(&folder, &file).unwrap_err().kind(), ErrorKind::Unexpected);
        let read = bytes_read() - before;
        assert!(read < 2 * RECORD_BYTES_MAX, "{read} bytes");
    }
}
