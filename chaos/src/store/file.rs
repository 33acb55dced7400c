//! A folder of lock files. There is no server, and a stopped holder keeps its lock, so its files are deleted instead.

use std::{fs, time::Duration};

use anyhow::Result;
use tempfile::TempDir;

use super::{Store, StoreInfo, unsupported};
use crate::fault::ServerFault;

/// The extensions of the two files of a lock.
const FILES: [&str; 2] = ["lock", "holder"];

#[derive(Debug)]
pub(super) struct FileStore(TempDir);

impl FileStore {
    pub(super) fn start() -> Result<Self> {
        Ok(Self(TempDir::with_prefix("lockkit-chaos-")?))
    }
}

impl Store for FileStore {
    fn url(&self) -> String {
        format!("file://{}", self.0.path().display())
    }

    fn info(&self) -> StoreInfo {
        StoreInfo {
            servers: 0,
            has_leader: false,
            has_one_clock: false,
            has_queue: false,
            faults: Vec::new(),
            failover: Duration::ZERO,
        }
    }

    fn apply(&mut self, fault: ServerFault, _server: usize) -> Result<()> {
        unsupported(fault)
    }

    fn undo(&mut self, _fault: ServerFault, _server: usize) -> Result<()> {
        Ok(())
    }

    fn cut_client(&mut self, _pid: u32) {}

    fn heal_client(&mut self, _pid: u32) {}

    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    fn evict(&mut self, lock: &str) -> Result<bool> {
        for extension in FILES {
            fs::remove_file(self.0.path().join(format!("{lock}.{extension}")))?;
        }
        Ok(true)
    }

    /// Both files of a lock remain by design.
    fn residue(&self, locks: &[String]) -> Result<Vec<String>> {
        let (files, mut found) = (FILES.map(|extension| format!(".{extension}")), Vec::new());
        for entry in fs::read_dir(self.0.path())? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let of_lock = |lock: &String| files.iter().any(|file| name.strip_suffix(&**file) == Some(lock));
            if !locks.iter().any(of_lock) {
                found.push(name);
            }
        }
        Ok(found)
    }
}
