//! A disk that fills up.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

/// A small file system in memory that tests fill up and empty. Mounting it needs root.
///
/// Dropping the value detaches it; the kernel frees it when its last file is closed. A process that is killed leaves it
/// mounted.
///
/// ```no_run
/// let disk = lockkit_testbed::SmallDisk::mount(4 << 20)?;
/// disk.fill()?; // nothing can be written now
/// disk.make_room()?;
/// # anyhow::Ok(())
/// ```
#[derive(Debug)]
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// Mounts an empty file system of this size.
    ///
    /// # Errors
    ///
    /// When this process may not mount.
    pub fn mount(bytes: u64) -> Result<Self> {
        let folder = TempDir::with_prefix("lockkit-disk-")?;
        let options = std::ffi::CString::new(format!("size={bytes}"))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("lockkit-disk", folder.path(), "tmpfs", flags, options.as_c_str())
            .context("cannot mount a file system (it takes root)")?;
        Ok(Self(folder))
    }

    /// Returns why no file system can be mounted here, as the reason to ignore a test; `None` when it can.
    pub fn unavailable_reason() -> Option<String> {
        Self::mount(1 << 16).err().map(|error| format!("{error:#}"))
    }

    /// Returns where it is mounted.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fills it up: no file can grow after this.
    ///
    /// # Errors
    ///
    /// When a write fails for another reason than a full disk.
    pub fn fill(&self) -> Result<()> {
        let mut ballast = File::options().append(true).create(true).open(self.ballast())?;
        loop {
            match ballast.write(&[0; 4096]) {
                Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error.into()),
                Ok(_) => {}
            }
        }
    }

    /// Deletes what [`fill`](Self::fill) wrote.
    ///
    /// # Errors
    ///
    /// When it was not filled.
    pub fn make_room(&self) -> Result<()> {
        Ok(fs::remove_file(self.ballast())?)
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A failure leaves an empty file system of bounded size behind.
        let _ = unmount(self.path(), UnmountFlags::DETACH);
    }
}
