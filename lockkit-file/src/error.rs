//! The errors of file operations, in terms of locks.

use std::{io, path::Path};

use lockkit_core::{Error, ErrorKind};
use rustix::io::Errno;

/// Returns the error of a failed file operation on `path`, which is the lock folder or in it.
pub(crate) fn failed(operation: &'static str, path: &Path, cause: io::Error) -> Error {
    use io::ErrorKind as Io;
    if Errno::from_io_error(&cause) == Some(Errno::LOOP) {
        return refused(operation, ErrorKind::Denied, path, "is a symbolic link, which is never followed");
    }
    let (kind, what) = match cause.kind() {
        Io::NotFound => (ErrorKind::Unavailable, "was deleted, or its folder was"),
        Io::PermissionDenied => (ErrorKind::Denied, "may not be opened or written by this user"),
        Io::ReadOnlyFilesystem => (ErrorKind::Denied, "is on a read-only file system"),
        Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge => {
            (ErrorKind::Unavailable, "cannot be written: no space left")
        }
        Io::NotADirectory => (ErrorKind::InvalidConfig, "is not in a folder"),
        Io::IsADirectory => (ErrorKind::Unexpected, "is a folder, not a lock file"),
        Io::InvalidFilename => (ErrorKind::InvalidName, "has a name that is too long for this file system"),
        Io::Unsupported => (ErrorKind::Unsupported, "is on a file system without locks"),
        _ => (ErrorKind::Unavailable, "could not be used"),
    };
    refused(operation, kind, path, what).with_source(cause)
}

/// Returns an error that says what is wrong with `path`.
pub(crate) fn refused(operation: &'static str, kind: ErrorKind, path: &Path, what: &str) -> Error {
    Error::new(kind, operation).with_message(format!("{path:?} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errnos_map_to_error_kinds() {
        let table = [
            (Errno::NOENT, ErrorKind::Unavailable),
            (Errno::NOSPC, ErrorKind::Unavailable),
            (Errno::DQUOT, ErrorKind::Unavailable),
            (Errno::MFILE, ErrorKind::Unavailable),
            (Errno::IO, ErrorKind::Unavailable),
            (Errno::ACCESS, ErrorKind::Denied),
            (Errno::PERM, ErrorKind::Denied),
            (Errno::ROFS, ErrorKind::Denied),
            (Errno::LOOP, ErrorKind::Denied),
            (Errno::NOTDIR, ErrorKind::InvalidConfig),
            (Errno::ISDIR, ErrorKind::Unexpected),
            (Errno::NAMETOOLONG, ErrorKind::InvalidName),
            (Errno::OPNOTSUPP, ErrorKind::Unsupported),
        ];
        for (errno, kind) in table {
            let error = failed("acquire", Path::new("/locks/a.lock"), errno.into());
            assert_eq!(error.kind(), kind, "{errno:?}");
            assert!(error.to_string().contains("/locks/a.lock"), "{error}");
        }
    }
}
