//! The peers.

use std::time::Duration;

use anyhow::{Context, Result};
use distributed_lock_core::{
    error::LockError,
    traits::{DistributedLock as _, LockHandle as _, LockProvider as _},
};
use distributed_lock_redis::{RedisDistributedLock, RedisLockHandle, RedisLockProvider};
use etcd_client::{GetOptions, LockOptions as EtcdLockOptions};
use redlock::{RedLock, RedLockGuard};
use rslock::{LockGuard, LockManager};
use tokio::{task::JoinHandle, time::sleep};
use zookeeper_client::{Acls, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

use crate::{
    Job,
    engine::{Client, Contender},
};

fn urls(job: &Job) -> Vec<String> {
    job.servers.iter().map(|server| format!("redis://{server}")).collect()
}

fn ttl(job: &Job) -> Duration {
    Duration::from_millis(job.ttl_ms)
}

/// Crate rslock: `SET NX`, repeated after up to 200 ms.
pub(crate) struct RsLock(LockManager, Duration);

pub(crate) struct RsLockContender {
    manager: LockManager,
    ttl: Duration,
    name: String,
    held: Option<LockGuard>,
}

impl Client for RsLock {
    type Contender = RsLockContender;

    const VERSION: &str = "rslock 0.10.0, redis 1.8.1";

    async fn connect(job: &Job) -> Result<Self> {
        Ok(Self(LockManager::new(urls(job)), ttl(job)))
    }

    async fn contender(&self, name: &str) -> Result<RsLockContender> {
        Ok(RsLockContender { manager: self.0.clone(), ttl: self.1, name: name.to_owned(), held: None })
    }
}

impl Contender for RsLockContender {
    async fn acquire(&mut self) -> Result<()> {
        self.held = Some(self.manager.acquire(self.name.as_str(), self.ttl).await?);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        self.held.take().context("not held")?.release().await;
        Ok(())
    }
}

/// Crate redlock: blocking, `SET NX`, repeated after up to 200 ms, each request over a new connection.
pub(crate) struct RedlockCrate(&'static RedLock, usize);

pub(crate) struct RedlockContender {
    manager: &'static RedLock,
    ttl_ms: usize,
    name: String,
    held: Option<RedLockGuard<'static>>,
}

impl Client for RedlockCrate {
    type Contender = RedlockContender;

    const VERSION: &str = "redlock 2.0.0, redis 0.23.5";

    const BLOCKS: bool = true;

    async fn connect(job: &Job) -> Result<Self> {
        // Its guards borrow it.
        Ok(Self(Box::leak(Box::new(RedLock::new(urls(job)))), job.ttl_ms as usize))
    }

    async fn contender(&self, name: &str) -> Result<RedlockContender> {
        Ok(RedlockContender { manager: self.0, ttl_ms: self.1, name: name.to_owned(), held: None })
    }
}

impl Contender for RedlockContender {
    async fn acquire(&mut self) -> Result<()> {
        self.held = Some(self.manager.acquire(self.name.as_bytes(), self.ttl_ms)?);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        drop(self.held.take().context("not held")?);
        Ok(())
    }
}

/// Crate distributed-lock-redis. Its `acquire` does not wait, so that this repeats it.
pub(crate) struct DistributedLock(RedisLockProvider);

pub(crate) struct DistributedLockContender {
    lock: RedisDistributedLock,
    held: Option<RedisLockHandle>,
}

/// The crate has no delay of its own.
const REPEAT_AFTER: Duration = Duration::from_millis(10);

impl Client for DistributedLock {
    type Contender = DistributedLockContender;

    const VERSION: &str = "distributed-lock-redis 0.2.0, fred 9.4.0";

    async fn connect(job: &Job) -> Result<Self> {
        let ttl = ttl(job);
        let builder = RedisLockProvider::builder().urls(&urls(job)).expiry(ttl);
        // The shares of its own defaults.
        Ok(Self(builder.extension_cadence(ttl / 3).min_validity(ttl * 9 / 10).build().await?))
    }

    async fn contender(&self, name: &str) -> Result<DistributedLockContender> {
        Ok(DistributedLockContender { lock: self.0.create_lock(name), held: None })
    }
}

impl Contender for DistributedLockContender {
    async fn acquire(&mut self) -> Result<()> {
        loop {
            match self.lock.acquire(None).await {
                Err(LockError::Timeout(_)) => sleep(REPEAT_AFTER).await,
                result => {
                    self.held = Some(result?);
                    return Ok(());
                }
            }
        }
    }

    async fn release(&mut self) -> Result<()> {
        Ok(self.held.take().context("not held")?.release().await?)
    }
}

/// The Lock RPC of etcd's server, with a lease per task: one lease is one owner.
pub(crate) struct EtcdLockRpc(etcd_client::Client, Duration);

pub(crate) struct EtcdContender {
    client: etcd_client::Client,
    name: String,
    lease: i64,
    key: Vec<u8>,
    keep_alive: JoinHandle<Result<()>>,
}

impl Client for EtcdLockRpc {
    type Contender = EtcdContender;

    const VERSION: &str = "etcd-client 0.21.1";

    async fn connect(job: &Job) -> Result<Self> {
        Ok(Self(etcd_client::Client::connect(&job.servers, None).await?, ttl(job)))
    }

    async fn contender(&self, name: &str) -> Result<EtcdContender> {
        let (mut client, ttl) = (self.0.clone(), self.1);
        let lease = client.lease_grant(ttl.as_secs_f64().ceil() as i64, None).await?.id();
        let (mut keeper, mut replies) = client.lease_keep_alive(lease).await?;
        let keep_alive = tokio::spawn(async move {
            loop {
                sleep(ttl / 3).await;
                keeper.keep_alive().await?;
                replies.message().await?;
            }
        });
        Ok(EtcdContender { client, name: name.to_owned(), lease, key: Vec::new(), keep_alive })
    }

    async fn queued(&self, name: &str) -> Result<Option<usize>> {
        let counts = GetOptions::new().with_prefix().with_count_only();
        let reply = self.0.clone().get(format!("{name}/"), Some(counts)).await?;
        Ok(Some(reply.count() as usize))
    }
}

impl Contender for EtcdContender {
    async fn acquire(&mut self) -> Result<()> {
        let options = EtcdLockOptions::new().with_lease(self.lease);
        self.key = self.client.lock(self.name.as_str(), Some(options)).await?.key().to_vec();
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        self.client.unlock(std::mem::take(&mut self.key)).await?;
        Ok(())
    }
}

impl Drop for EtcdContender {
    /// The server ends the lease when its time is over.
    fn drop(&mut self) {
        self.keep_alive.abort();
    }
}

/// The lock that comes with crate zookeeper-client. Its release cannot be awaited.
pub(crate) struct ZooKeeperClient(zookeeper_client::Client);

pub(crate) struct ZooKeeperContender {
    client: zookeeper_client::Client,
    directory: String,
    held: Option<OwnedLockClient>,
}

impl Client for ZooKeeperClient {
    type Contender = ZooKeeperContender;

    const VERSION: &str = "zookeeper-client 0.11.2";

    async fn connect(job: &Job) -> Result<Self> {
        let connector = zookeeper_client::Client::connector().with_session_timeout(ttl(job));
        Ok(Self(connector.connect(&job.servers.join(",")).await?))
    }

    async fn contender(&self, name: &str) -> Result<ZooKeeperContender> {
        let (client, directory) = (self.0.clone(), format!("/{name}"));
        client.mkdir(&directory, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
        Ok(ZooKeeperContender { client, directory, held: None })
    }

    async fn queued(&self, name: &str) -> Result<Option<usize>> {
        Ok(Some(self.0.list_children(&format!("/{name}")).await?.len()))
    }

    /// Waits until the session has ended at the server: a process that exits earlier leaves lock nodes.
    async fn close(self) {
        let mut states = self.0.state_watcher();
        drop(self);
        while !states.changed().await.is_terminated() {}
    }
}

impl Contender for ZooKeeperContender {
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
}
