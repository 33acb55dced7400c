//! The stores that clients are let loose on, each started for the run. A backend joins with one file.

mod etcd;
mod file;
mod gates;
mod redis;
mod redis_cluster;
mod redlock;
mod sentinel;
mod servers;
mod zookeeper;

use std::time::Duration;

use anyhow::{Result, bail};

use crate::fault::ServerFault;

/// All backends, by the names that the command line knows.
pub(crate) const BACKENDS: [&str; 7] =
    ["etcd", "zk", "redis", "redis-sentinel", "redis-cluster", "redlock", "file"];

/// What can happen to a store.
#[derive(Clone, Debug)]
pub(crate) struct Menu {
    /// How many servers there are; faults name one of them.
    pub(crate) members: usize,
    /// Whether one of them leads.
    pub(crate) has_leader: bool,
    /// Whether clients that wait are granted the lock in the order in which they came.
    pub(crate) has_queue: bool,
    /// Clock steps and delays with their longest in milliseconds; none where there is no server.
    pub(crate) faults: Vec<ServerFault>,
    /// How long a server must be gone until others take over.
    pub(crate) failover: Duration,
}

/// A store with everything that is needed to disturb it. Its methods block.
pub(crate) trait Store: Send {
    /// Where clients find it.
    fn url(&self) -> String;

    fn menu(&self) -> Menu;

    /// The server that leads.
    fn leader(&self) -> Result<usize> {
        Ok(0)
    }

    /// Does this to a server. An error: it could not be done, and nothing has to be undone.
    fn inflict(&mut self, fault: ServerFault, member: usize) -> Result<()>;

    /// Makes it good, as far as it can be.
    fn undo(&mut self, fault: ServerFault, member: usize) -> Result<()>;

    /// Cuts the client with this process from all servers.
    fn cut_client(&mut self, pid: u32);

    fn heal_client(&mut self, pid: u32);

    /// Waits until all servers are well.
    fn settle(&mut self) -> Result<()>;

    /// Takes the entry of a lock away whose holder stands still, where it would not end by itself; whether that was so.
    fn evict(&mut self, _lock: &str) -> Result<bool> {
        Ok(false)
    }

    /// What should not be there once all clients have closed, and no killed one can live in it any more.
    fn residue(&self) -> Result<Vec<String>>;
}

/// Starts a store.
pub(crate) fn start(backend: &str) -> Result<Box<dyn Store>> {
    Ok(match backend {
        "etcd" => Box::new(etcd::EtcdStore::start()?),
        "zk" => Box::new(zookeeper::ZooKeeperStore::start()?),
        "redis" => Box::new(redis::RedisStore::start()?),
        "redis-sentinel" => Box::new(sentinel::SentinelStore::start()?),
        "redis-cluster" => Box::new(redis_cluster::ClusterStore::start()?),
        "redlock" => Box::new(redlock::RedlockStore::start()?),
        "file" => Box::new(file::FileStore::start()?),
        other => bail!("there is no backend {other:?}; there are {} and all", BACKENDS.join(", ")),
    })
}

/// What a store is not asked for, because it is not on its menu.
fn not_on_the_menu(fault: ServerFault) -> Result<()> {
    bail!("{fault:?} is not on the menu")
}

/// Keys of Redis that should not be there: all but the counters, which must outlive every hold.
fn redis_residue(node: &lockkit_testbed::Redis) -> Result<Vec<String>> {
    let mut keys = node.keys("*")?;
    keys.retain(|key| !key.ends_with(":fence") && !key.starts_with("lockkit:redlock"));
    Ok(keys)
}
