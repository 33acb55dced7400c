//! A folder of lock files. There is no server, and a stopped holder keeps its lock; so an operator deletes its files.

use std::{fs, time::Duration};

use anyhow::Result;
use tempfile::TempDir;

use super::{Menu, Store, not_on_the_menu};
use crate::fault::ServerFault;

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

    fn menu(&self) -> Menu {
        Menu { members: 0, has_leader: false, has_queue: false, faults: Vec::new(), failover: Duration::ZERO }
    }

    fn inflict(&mut self, fault: ServerFault, _member: usize) -> Result<()> {
        not_on_the_menu(fault)
    }

    fn undo(&mut self, _fault: ServerFault, _member: usize) -> Result<()> {
        Ok(())
    }

    fn cut_client(&mut self, _pid: u32) {}

    fn heal_client(&mut self, _pid: u32) {}

    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    fn evict(&mut self, lock: &str) -> Result<bool> {
        for extension in ["lock", "holder"] {
            fs::remove_file(self.0.path().join(format!("{lock}.{extension}")))?;
        }
        Ok(true)
    }

    /// Both files of a lock stay.
    fn residue(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.0.path())? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if !(name.ends_with(".lock") || name.ends_with(".holder")) {
                found.push(name);
            }
        }
        Ok(found)
    }
}
