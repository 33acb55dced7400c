//! Memory: a mutex of tokio for each name.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use anyhow::Result;
use async_trait::async_trait;
use lockkit_core::support::lock;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::{Client, Contender};

/// All locks of the process, by name.
static LOCKS: Mutex<Option<HashMap<String, Arc<AsyncMutex<()>>>>> = Mutex::new(None);

struct Raw;

struct RawContender {
    mutex: Arc<AsyncMutex<()>>,
    guard: Option<OwnedMutexGuard<()>>,
}

pub(super) fn client() -> Box<dyn Client> {
    Box::new(Raw)
}

#[async_trait]
impl Client for Raw {
    async fn contender(&self, name: &str) -> Result<Box<dyn Contender>> {
        let mut locks = lock(&LOCKS);
        let mutex = Arc::clone(locks.get_or_insert_default().entry(name.to_owned()).or_default());
        Ok(Box::new(RawContender { mutex, guard: None }))
    }
}

#[async_trait]
impl Contender for RawContender {
    async fn acquire(&mut self) -> Result<()> {
        self.guard = Some(Arc::clone(&self.mutex).lock_owned().await);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        self.guard = None;
        Ok(())
    }
}
