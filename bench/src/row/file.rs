//! Files: two flock calls and one write of the token.

use std::{
    fs::{File, TryLockError},
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::Arc,
};

use anyhow::{Context, Result};
use async_trait::async_trait;
use tokio::task::spawn_blocking;

use super::{Client, Contender};
use crate::job::Job;

/// A folder.
struct Raw(PathBuf);

struct RawContender {
    file: Arc<File>,
    token: u64,
}

pub(super) fn client(job: &Job) -> Result<Box<dyn Client>> {
    Ok(Box::new(Raw(job.servers.first().context("no folder")?.into())))
}

#[async_trait]
impl Client for Raw {
    async fn contender(&self, name: &str) -> Result<Box<dyn Contender>> {
        let path = self.0.join(format!("raw-{name}"));
        let file = File::options().create(true).truncate(false).write(true).open(path)?;
        Ok(Box::new(RawContender { file: Arc::new(file), token: 0 }))
    }
}

#[async_trait]
impl Contender for RawContender {
    async fn acquire(&mut self) -> Result<()> {
        match self.file.try_lock() {
            Ok(()) => {}
            // The kernel's queue; a thread waits in it.
            Err(TryLockError::WouldBlock) => {
                let file = Arc::clone(&self.file);
                spawn_blocking(move || file.lock()).await??;
            }
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        self.token += 1;
        Ok(self.file.write_all_at(format!("{:020}", self.token).as_bytes(), 0)?)
    }

    async fn release(&mut self) -> Result<()> {
        Ok(self.file.unlock()?)
    }
}
