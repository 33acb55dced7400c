//! ZooKeeper: bare requests, lockkit, and the client crate's own lock.

use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use lockkit_testbed::ZooKeeper;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

use crate::{
    ours::Lockkit,
    store::{Contender, Row, Store},
    usage::{Usage, cpu_of},
};

/// The same for all rows.
const TTL: Duration = Duration::from_secs(10);

/// A single server.
pub(crate) struct ZooKeeperStore(ZooKeeper);

impl ZooKeeperStore {
    pub(crate) fn start() -> Result<Self> {
        Ok(Self(ZooKeeper::start()?))
    }
}

impl Store for ZooKeeperStore {
    fn name(&self) -> &'static str {
        "zk"
    }

    fn conditions(&self) -> Vec<(String, String)> {
        let version = self.0.version().unwrap_or_else(|error| format!("{error:#}"));
        let durability = "one server, its log in memory (/dev/shm) where there is such a folder";
        [("server", format!("ZooKeeper {version}")), ("durability", durability.to_owned())]
            .map(|(what, value)| (what.to_owned(), value))
            .into()
    }

    fn rows(&self) -> Vec<Box<dyn Row>> {
        let endpoint = self.0.endpoint();
        vec![
            Box::new(Raw(endpoint.clone())),
            Box::new(Lockkit { url: self.0.url(), ttl: TTL }),
            Box::new(OwnLock(endpoint)),
        ]
    }

    fn usage(&self) -> Result<Usage> {
        let metrics = self.0.metrics()?;
        let pid = self.0.pid().context("the server is not running")?;
        Ok(Usage { received: metrics.packets_received(), sent: metrics.packets_sent(), cpu: cpu_of(pid)? })
    }
}

async fn connect(endpoint: &str) -> Result<Client> {
    Ok(Client::connector().with_session_timeout(TTL).connect(endpoint).await?)
}

/// Closes a client, and waits until its session has ended at the server.
async fn disconnect(client: Client) {
    let mut states = client.state_watcher();
    drop(client);
    while !states.changed().await.is_terminated() {}
}

/// The fewest requests that a queue needs: create, list, watch the predecessor, list again, delete. Nothing is
/// repeated, checked or cleaned up.
struct Raw(String);

struct RawContender {
    client: Client,
    directory: String,
    own: String,
}

#[async_trait]
impl Row for Raw {
    fn name(&self) -> &'static str {
        "raw"
    }

    async fn contender(&self, lock: &str) -> Result<Box<dyn Contender>> {
        let (client, directory) = (connect(&self.0).await?, format!("/raw/{lock}"));
        client.mkdir(&directory, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
        Ok(Box::new(RawContender { client, directory, own: String::new() }))
    }
}

#[async_trait]
impl Contender for RawContender {
    async fn acquire(&mut self) -> Result<()> {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let prefix = format!("{}/n-", self.directory);
        let (_, number) = self.client.create(&prefix, b"", &options).await?;
        let own = format!("n-{number}");
        self.own = format!("{}/{own}", self.directory);
        loop {
            let children = self.client.list_children(&self.directory).await?;
            let Some(before) = children.into_iter().filter(|child| *child < own).max() else { return Ok(()) };
            let before = format!("{}/{before}", self.directory);
            if let Ok((_, _, watcher)) = self.client.get_and_watch_data(&before).await {
                watcher.changed().await;
            }
        }
    }

    async fn release(&mut self) -> Result<()> {
        Ok(self.client.delete(&self.own, None).await?)
    }

    async fn close(self: Box<Self>) -> Result<()> {
        disconnect(self.client).await;
        Ok(())
    }
}

/// The lock that comes with the client crate. Its release cannot be awaited.
struct OwnLock(String);

struct OwnLockContender {
    client: Client,
    directory: String,
    held: Option<OwnedLockClient>,
}

#[async_trait]
impl Row for OwnLock {
    fn name(&self) -> &'static str {
        "zookeeper-client's lock"
    }

    async fn contender(&self, lock: &str) -> Result<Box<dyn Contender>> {
        let (client, directory) = (connect(&self.0).await?, format!("/own/{lock}"));
        client.mkdir(&directory, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
        Ok(Box::new(OwnLockContender { client, directory, held: None }))
    }
}

#[async_trait]
impl Contender for OwnLockContender {
    async fn acquire(&mut self) -> Result<()> {
        let prefix = LockPrefix::new_curator(&self.directory, "lock-")?;
        let held = self.client.lock(prefix, b"", LockOptions::new(Acls::anyone_all())).await?;
        self.held = Some(held.into_owned());
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        drop(self.held.take());
        Ok(())
    }

    async fn close(self: Box<Self>) -> Result<()> {
        disconnect(self.client).await;
        Ok(())
    }
}
