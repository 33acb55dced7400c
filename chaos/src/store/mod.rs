//! The stores under test, each started for the run.

mod client_network;
mod cluster;
mod file;
mod redis;
mod redis_cluster;
mod redlock;
mod sentinel;
mod servers;

use std::time::Duration;

use anyhow::{Result, bail};
use lockkit_testbed::{EtcdCluster, Redis, ZooKeeperEnsemble};

use crate::fault::ServerFault;

/// All backends, by their names on the command line.
pub(crate) const BACKENDS: [&str; 7] =
    ["etcd", "zk", "redis", "redis-sentinel", "redis-cluster", "redlock", "file"];

/// The properties of a store, and the faults that it can have.
#[derive(Clone, Debug)]
pub(crate) struct StoreInfo {
    /// The number of servers.
    pub(crate) servers: usize,
    /// Whether one of them is a leader or master.
    pub(crate) has_leader: bool,
    /// Whether all servers with data have one wall clock, which is stepped for all of them at the same time.
    pub(crate) has_one_clock: bool,
    /// Whether waiters are granted the lock in the order of a queue.
    pub(crate) has_queue: bool,
    /// The faults that its servers can have. Clock steps and delays are maxima in milliseconds.
    pub(crate) faults: Vec<ServerFault>,
    /// How long a server must be gone before a failover.
    pub(crate) failover: Duration,
}

/// A store and the means to disturb it. The methods block.
pub(crate) trait Store: Send {
    /// Returns the URL for clients.
    fn url(&self) -> String;

    fn info(&self) -> StoreInfo;

    /// Returns the current leader or master.
    fn leader(&self) -> Result<usize> {
        Ok(0)
    }

    /// Applies a fault to a server. After an error there is nothing to undo.
    fn apply(&mut self, fault: ServerFault, server: usize) -> Result<()>;

    /// Undoes a fault, as far as possible.
    fn undo(&mut self, fault: ServerFault, server: usize) -> Result<()>;

    /// Cuts the client with this process id off from all servers.
    fn cut_client(&mut self, pid: u32);

    fn heal_client(&mut self, pid: u32);

    /// Waits until all servers are healthy.
    fn settle(&mut self) -> Result<()>;

    /// Removes the entry of a lock whose holder is stopped, if it would not expire. Returns whether it did so.
    fn evict(&mut self, _lock: &str) -> Result<bool> {
        Ok(false)
    }

    /// Returns what should not remain of these locks, or at all, once all clients have closed and those of killed ones
    /// have expired.
    fn residue(&self, locks: &[String]) -> Result<Vec<String>>;
}

/// Starts a store.
pub(crate) fn start(backend: &str) -> Result<Box<dyn Store>> {
    Ok(match backend {
        "etcd" => Box::new(cluster::ClusterStore::new(EtcdCluster::start()?)?),
        "zk" => Box::new(cluster::ClusterStore::new(ZooKeeperEnsemble::start()?)?),
        "redis" => Box::new(redis::RedisStore::start()?),
        "redis-sentinel" => Box::new(sentinel::SentinelStore::start()?),
        "redis-cluster" => Box::new(redis_cluster::ClusterStore::start()?),
        "redlock" => Box::new(redlock::RedlockStore::start()?),
        "file" => Box::new(file::FileStore::start()?),
        other => bail!("unknown backend {other:?}, expected {} or all", BACKENDS.join(", ")),
    })
}

/// The error for a fault that the store cannot have.
fn unsupported(fault: ServerFault) -> Result<()> {
    bail!("{fault:?} is not supported by this store")
}

/// Returns the Redis keys that should not remain: all except the token counters of these locks. They outlive every hold,
/// but have a ttl.
fn redis_residue(node: &Redis, locks: &[String]) -> Result<Vec<String>> {
    let counters: Vec<_> = locks.iter().map(|lock| format!("lockkit:{{{lock}}}:fence")).collect();
    let left = node.lifetimes()?.into_iter().filter_map(|(key, expires)| match counters.contains(&key) {
        true if expires => None,
        true => Some(format!("{key} without a ttl")),
        false => Some(key),
    });
    Ok(left.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_counters_of_the_locks_that_expire_may_remain_in_redis() {
        let redis = Redis::start().unwrap();
        let locks = ["lock-0".to_owned()];
        let put = |key: &str| redis.cli(&["SET", key, "1", "PX", "600000"]).unwrap();
        put("lockkit:{lock-0}:fence");
        assert_eq!(redis_residue(&redis, &locks).unwrap(), [""; 0]);
        let others = ["lock-0", "lockkit:redlock", "lockkit:{lock-0}:queue", "lockkit:{lock-1}:fence"];
        others.iter().for_each(|key| drop(put(key)));
        let mut left = redis_residue(&redis, &locks).unwrap();
        left.sort_unstable();
        assert_eq!(left, others);
        redis.cli(&["PERSIST", "lockkit:{lock-0}:fence"]).unwrap();
        let left = redis_residue(&redis, &locks).unwrap();
        assert!(left.contains(&"lockkit:{lock-0}:fence without a ttl".to_owned()), "{left:?}");
    }
}
