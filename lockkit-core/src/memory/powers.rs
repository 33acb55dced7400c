//! What the memory server offers besides locks.

use std::time::Duration;

use async_trait::async_trait;
use tokio::{sync::watch, time::Instant};

use super::session::MemorySession;
use crate::{
    LockName, Metadata, Result,
    backend::{Elections, Grant, LeaderEntry, LeaderWatch, Pins, Records},
};

#[async_trait]
impl Elections for MemorySession {
    async fn leader(&self, name: &LockName) -> Result<Option<LeaderEntry>> {
        let name = name.clone();
        self.ask("read leader", move |store| store.leader(&name)).await
    }

    async fn watch(&self, _name: &LockName) -> Result<Box<dyn LeaderWatch>> {
        let changes = self.ask("watch leader", |store| store.watch_leaders()).await?;
        Ok(Box::new(MemoryWatch(changes)))
    }

    async fn proclaim(&self, grant: &Grant, metadata: &Metadata) -> Result<bool> {
        let (name, claim, metadata) = (grant.name().clone(), grant.claim(), metadata.clone());
        self.ask("proclaim", move |store| store.proclaim(&name, claim, &metadata)).await
    }
}

/// A watch on the leaders of all locks of the server.
#[derive(Debug)]
struct MemoryWatch(watch::Receiver<()>);

#[async_trait]
impl LeaderWatch for MemoryWatch {
    async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

#[async_trait]
impl Records for MemorySession {
    async fn read(&self, name: &LockName) -> Result<Option<String>> {
        let name = name.clone();
        self.ask("read record", move |store| store.record(&name, Instant::now())).await
    }

    async fn write(&self, grant: &Grant, record: &str, keep: Duration) -> Result<bool> {
        let (name, claim, text) = (grant.name().clone(), grant.claim(), record.to_owned());
        self.ask("write record", move |store| store.write_record(&name, claim, &text, Instant::now(), keep))
            .await
    }
}

#[async_trait]
impl Pins for MemorySession {
    async fn pin(&self, grant: &Grant, at_least: Duration) -> Result<bool> {
        let (name, claim) = (grant.name().clone(), grant.claim());
        self.ask("pin", move |store| store.pin(&name, claim, Instant::now() + at_least)).await
    }

    async fn leave(&self, grant: &Grant) -> Result<()> {
        let (name, claim) = (grant.name().clone(), grant.claim());
        self.ask("leave", move |store| store.leave(&name, claim, Instant::now())).await
    }
}
