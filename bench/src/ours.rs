//! lockkit itself: a row of every store.

use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use lockkit::{Lock, LockClient, LockGuard};

use crate::store::{Contender, Row};

/// lockkit, on the store of this URL.
pub(crate) struct Lockkit {
    pub(crate) url: String,
    pub(crate) ttl: Duration,
}

struct LockkitContender {
    client: LockClient,
    lock: Lock,
    guard: Option<LockGuard>,
}

#[async_trait]
impl Row for Lockkit {
    fn name(&self) -> &'static str {
        "lockkit"
    }

    async fn contender(&self, lock: &str) -> Result<Box<dyn Contender>> {
        let client = lockkit::builder(&self.url)?.ttl(self.ttl).build().await?;
        let lock = client.lock(lock)?;
        Ok(Box::new(LockkitContender { client, lock, guard: None }))
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

    async fn close(self: Box<Self>) -> Result<()> {
        Ok(self.client.close().await?)
    }
}
