//! The folder: made, checked, and the way into its files.

use std::{
    fs::{self, DirBuilder, File, Metadata, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use lockkit_core::{ErrorKind, Result};
use rustix::fs::{Access as Needed, AtFlags, CWD, OFlags, accessat};

use crate::{
    access::Access,
    error::{failed, refused},
    new_file::NewFile,
};

/// Mode of a folder that is made here: nobody but its user.
const FOLDER_MODE: u32 = 0o700;

/// Times that a file with more than one name is opened before it is refused.
const OPEN_TRIES: u32 = 8;

/// Pause between two of them: many times what it takes to make a file.
const OPEN_PAUSE: Duration = Duration::from_millis(1);

const OPEN: &str = "open lock folder";

const OPEN_FILE: &str = "open lock file";

/// The folder of the lock files.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    pub(crate) fn join(&self, file: String) -> PathBuf {
        self.path.join(file)
    }

    /// Makes the folder where it is missing; proves that locks can be taken in it.
    pub(crate) fn open(&self) -> Result<()> {
        let failed = |cause| failed(OPEN, &self.path, cause);
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.path).map_err(
            |cause| match cause.kind() {
                io::ErrorKind::AlreadyExists => failed(io::ErrorKind::NotADirectory.into()),
                _ => failed(cause),
            },
        )?;
        let needed = Needed::READ_OK | Needed::WRITE_OK | Needed::EXEC_OK;
        accessat(CWD, &self.path, needed, AtFlags::EACCESS).map_err(|errno| failed(errno.into()))?;
        network::refuse(&self.path)
    }

    /// Whether the folder is still there.
    pub(crate) fn is_there(&self) -> Result<bool> {
        match fs::metadata(&self.path) {
            Ok(found) => Ok(found.is_dir()),
            Err(cause) if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(false)
            }
            Err(cause) => Err(failed("renew", &self.path, cause)),
        }
    }

    /// Opens a file of this folder to read and write; `None` when there is none. Never follows a symbolic link, never
    /// opens a file that has another name too, never waits for the other end of a pipe.
    pub(crate) fn open_file(&self, path: &Path) -> Result<Option<File>> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed());
        let mut tries = OPEN_TRIES;
        loop {
            let file = match options.open(path) {
                Ok(file) => file,
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(cause) => return Err(failed(OPEN_FILE, path, cause)),
            };
            let found = file.metadata().map_err(|cause| failed(OPEN_FILE, path, cause))?;
            if !found.is_file() {
                return Err(refused(OPEN_FILE, ErrorKind::Unexpected, path, "is no regular file"));
            }
            match refuse_hard_link(&found, path) {
                Ok(()) => return Ok(Some(file)),
                // Where names cannot be exchanged, a file that is just being made has two for a moment.
                Err(_) if tries > 1 => {
                    tries -= 1;
                    thread::sleep(OPEN_PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A new file, which has the rights of the files of this folder once it is [shared](Self::share).
    pub(crate) fn new_file(&self) -> io::Result<NewFile> {
        NewFile::make(&self.path)
    }

    /// Gives a new file the rights of the files of this folder.
    pub(crate) fn share(&self, file: &File) -> io::Result<()> {
        if !Access::of_files_in(&self.path)?.give(file)? {
            tracing::warn!(
                folder = ?self.path,
                "members of the folder's group cannot take a lock, because this user is not one of them and made its \
                 file: set the folder's setgid bit"
            );
        }
        Ok(())
    }

    /// Gives a file with a record of this library the rights of the files of this folder, where this user may do that.
    pub(crate) fn repair(&self, file: &File) {
        let repaired = Access::of_files_in(&self.path).and_then(|access| access.repair(file));
        if let Err(error) = repaired {
            // The lock itself is not concerned.
            tracing::warn!(folder = ?self.path, %error, "a lock file does not have the rights that its folder gives");
        }
    }

    /// Makes sure that a file that was made in this folder is still there after a power cut.
    pub(crate) fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

/// Refuses a file that has another name too: a user who may write to this folder can link a foreign file into it.
///
/// This look alone protects no content, as the name in this folder may be removed between it and the write, and the count
/// be one again. So files are written only where they hold a record of this library.
pub(crate) fn refuse_hard_link(found: &Metadata, path: &Path) -> Result<()> {
    if found.nlink() <= 1 {
        return Ok(());
    }
    let what = "has another name (a hard link), so writing to it could change a foreign file: remove one of the two names";
    Err(refused(OPEN_FILE, ErrorKind::Denied, path, what))
}

/// Network file systems keep locks per machine, lose them or take seconds for them: refused where Linux names them.
mod network {
    use std::path::Path;

    use lockkit_core::Result;

    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn refuse(path: &Path) -> Result<()> {
        use crate::error::{failed, refused};

        let found = rustix::fs::statfs(path).map_err(|errno| failed(super::OPEN, path, errno.into()))?;
        // The width and sign of the field differ between architectures; the number itself has 32 bits.
        match kind(found.f_type as u32) {
            Kind::Local => Ok(()),
            Kind::Fuse => {
                tracing::warn!(?path, "a FUSE file system: its locks exclude only if it says so");
                Ok(())
            }
            Kind::Network(name) => {
                let what = format!("is on a network file system ({name}); lock files are for one host");
                Err(refused(super::OPEN, lockkit_core::ErrorKind::Unsupported, path, &what))
            }
        }
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) fn refuse(_path: &Path) -> Result<()> {
        Ok(())
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[derive(Debug, PartialEq, Eq)]
    pub(super) enum Kind {
        Local,
        /// Anything behind a user's process: sshfs as well as a local disk.
        Fuse,
        Network(&'static str),
    }

    /// The numbers of `linux/magic.h` and, for file systems outside the kernel, of coreutils' `stat`.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn kind(magic: u32) -> Kind {
        match magic {
            0x6573_5546 => Kind::Fuse,
            0x0000_6969 => Kind::Network("nfs"),
            0x0000_517b => Kind::Network("smb"),
            0xff53_4d42 => Kind::Network("cifs"),
            0xfe53_4d42 => Kind::Network("smb2"),
            0x0102_1997 => Kind::Network("9p"),
            0x5346_414f => Kind::Network("afs"),
            0x6b41_4653 => Kind::Network("kafs"),
            0x7375_7245 => Kind::Network("coda"),
            0x0000_564c => Kind::Network("ncp"),
            0x00c3_6400 => Kind::Network("ceph"),
            0x0bd0_0bd0 => Kind::Network("lustre"),
            0x4750_4653 => Kind::Network("gpfs"),
            0x0116_1970 => Kind::Network("gfs2"),
            0x7461_636f => Kind::Network("ocfs2"),
            0x786f_4256 => Kind::Network("vboxsf"),
            _ => Kind::Local,
        }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn network_file_systems_are_told_from_local_ones() {
        use super::network::{Kind, kind};

        const EXT4: u32 = 0xef53;
        const TMPFS: u32 = 0x0102_1994;
        const BTRFS: u32 = 0x9123_683e;
        for local in [EXT4, TMPFS, BTRFS] {
            assert_eq!(kind(local), Kind::Local);
        }
        assert_eq!(kind(rustix::fs::NFS_SUPER_MAGIC as u32), Kind::Network("nfs"));
        assert_eq!(kind(0xfe53_4d42), Kind::Network("smb2"));
    }
}
