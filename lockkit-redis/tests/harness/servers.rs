//! One server, servers with Sentinels, and a cluster.

use anyhow::Result;
use lockkit_conformance::Case;
use lockkit_testbed::{Redis, RedisCluster, RedisSentinels};

use super::{
    PREFIX, Servers, own,
    rights::{LOGIN, RIGHTS, keys_of, user},
};

/// How long a node must be silent until the others consider it down, in milliseconds. Longer than any freeze of a case
/// or of a busy machine: an unwanted promotion would lose writes that are not replicated yet.
const DOWN_AFTER_MS: &str = "600000";

/// The Sentinels of [`RedisSentinels`].
const SENTINELS: usize = 3;

/// Returns a URL of this endpoint, with a user that has exactly the documented rights.
pub(super) fn url_at(endpoint: &str) -> String {
    format!("redis://{LOGIN}@{endpoint}/?prefix={PREFIX}")
}

/// Returns the rights of that user, limited to keys of this prefix, and the one that an operator needs to list locks.
pub(super) fn rights() -> String {
    format!("{} +scan", RIGHTS.replace("~*", &keys_of(PREFIX)))
}

impl Servers for Redis {
    const NAME: &str = "redis";

    fn start() -> Result<Self> {
        let rights = rights();
        Self::start_with(&[&["--user"], &*user(&rights)].concat())
    }

    fn endpoints(&self) -> Vec<String> {
        vec![self.endpoint()]
    }

    fn url_at(endpoints: &[String]) -> String {
        url_at(&endpoints.join(","))
    }

    fn own_cases() -> Vec<Case> {
        own::on_one_server()
    }

    fn node_of(&self, _key: &str) -> Result<&Redis> {
        Ok(self)
    }

    fn masters(&self) -> Result<Vec<&Redis>> {
        Ok(vec![self])
    }

    fn freeze(&self) -> Result<()> {
        self.pause()
    }

    fn thaw(&self) -> Result<()> {
        self.resume()
    }

    fn restart(&mut self) -> Result<()> {
        self.restart()
    }

    fn stop(&mut self) -> Result<()> {
        self.kill()
    }

    fn start_again(&mut self) -> Result<()> {
        self.restart()
    }
}

impl Servers for RedisSentinels {
    const NAME: &str = "redis-sentinel";

    fn start() -> Result<Self> {
        let servers = Self::start()?;
        let set_timeout = ["SENTINEL", "SET", Self::NAME, "down-after-milliseconds", DOWN_AFTER_MS];
        servers.sentinels().iter().try_for_each(|sentinel| sentinel.cli(&set_timeout).map(drop))?;
        Ok(servers)
    }

    /// The Sentinels come first.
    fn endpoints(&self) -> Vec<String> {
        self.sentinels().iter().chain(self.replicas().nodes()).map(Redis::endpoint).collect()
    }

    fn url_at(endpoints: &[String]) -> String {
        let sentinels = endpoints[..SENTINELS].join(",");
        format!("redis+sentinel://{sentinels}/{}?prefix={PREFIX}", RedisSentinels::NAME)
    }

    fn own_cases() -> Vec<Case> {
        own::on_sentinels()
    }

    fn node_of(&self, _key: &str) -> Result<&Redis> {
        Ok(self.node(self.master()?))
    }

    fn masters(&self) -> Result<Vec<&Redis>> {
        Ok(vec![self.node(self.master()?)])
    }

    /// Freezes the Sentinels, too: no server must answer clients.
    fn freeze(&self) -> Result<()> {
        self.sentinels().iter().chain(self.replicas().nodes()).try_for_each(|node| node.pause())
    }

    fn thaw(&self) -> Result<()> {
        self.replicas().nodes().iter().chain(self.sentinels()).try_for_each(|node| node.resume())
    }

    fn restart(&mut self) -> Result<()> {
        let master = self.master()?;
        self.node_mut(master).restart()
    }

    fn stop(&mut self) -> Result<()> {
        let master = self.master()?;
        self.node_mut(master).kill()
    }

    /// No replica is promoted meanwhile, see [`DOWN_AFTER_MS`].
    fn start_again(&mut self) -> Result<()> {
        Servers::restart(self)
    }
}

impl Servers for RedisCluster {
    const NAME: &str = "redis-cluster";

    fn start() -> Result<Self> {
        let servers = Self::start()?;
        servers.nodes().iter().try_for_each(be_patient)?;
        Ok(servers)
    }

    fn endpoints(&self) -> Vec<String> {
        self.nodes().iter().map(Redis::endpoint).collect()
    }

    fn url_at(endpoints: &[String]) -> String {
        format!("redis+cluster://{}/?prefix={PREFIX}", endpoints.join(","))
    }

    fn own_cases() -> Vec<Case> {
        own::on_a_cluster()
    }

    fn node_of(&self, key: &str) -> Result<&Redis> {
        Ok(self.node(self.owner(self.slot(key)?)?))
    }

    fn masters(&self) -> Result<Vec<&Redis>> {
        let mut masters = Vec::new();
        for node in self.nodes() {
            if node.is_master()? {
                masters.push(node);
            }
        }
        Ok(masters)
    }

    fn freeze(&self) -> Result<()> {
        self.nodes().iter().try_for_each(|node| node.pause())
    }

    fn thaw(&self) -> Result<()> {
        self.nodes().iter().try_for_each(|node| node.resume())
    }

    fn restart(&mut self) -> Result<()> {
        for number in 0..self.len() {
            if self.node(number).is_master()? {
                self.node_mut(number).restart()?;
                be_patient(self.node(number))?;
            }
        }
        self.wait_until_healthy()
    }

    fn stop(&mut self) -> Result<()> {
        for number in 0..self.len() {
            if self.node(number).is_master()? {
                self.node_mut(number).kill()?;
            }
        }
        Ok(())
    }

    fn start_again(&mut self) -> Result<()> {
        for number in 0..self.len() {
            if self.node(number).pid().is_none() {
                self.node_mut(number).restart()?;
                be_patient(self.node(number))?;
            }
        }
        self.wait_until_healthy()
    }
}

/// Makes a member of a cluster consider the others down only after [`DOWN_AFTER_MS`]. Otherwise the first one that is
/// thawed would refuse every key for twice its own timeout.
fn be_patient(member: &Redis) -> Result<()> {
    member.cli(&["CONFIG", "SET", "cluster-node-timeout", DOWN_AFTER_MS]).map(drop)
}
