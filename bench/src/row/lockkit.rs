//! lockkit itself.

use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use lockkit::{Lock, LockClient, LockGuard};

use super::{Client, Contender};
use crate::{backend, job::Job};

struct Lockkit(LockClient);

struct LockkitContender {
    lock: Lock,
    guard: Option<LockGuard>,
}

pub(super) async fn connect(scheme: &str, job: &Job) -> Result<Box<dyn Client>> {
    let url = backend::url(scheme, &job.servers);
    let client = lockkit::builder(url)?.ttl(Duration::from_millis(job.ttl_ms)).build().await?;
    Ok(Box::new(Lockkit(client)))
}

#[async_trait]
impl Client for Lockkit {
    async fn contender(&self, name: &str) -> Result<Box<dyn Contender>> {
        Ok(Box::new(LockkitContender { lock: self.0.lock(name)?, guard: None }))
    }

    async fn close(self: Box<Self>) -> Result<()> {
        Ok(self.0.close().await?)
    }
}

#[async_trait]
impl Contender for LockkitContender {
    async fn acquire(&mut self) -> Result<()> {
        self.guard = Some(self.lock.acquire().await?);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        Ok(self.guard.take().context("not held")?.release().await?)
    }
}
