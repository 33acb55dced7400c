//! One server, and servers that are watched or share their keys.

use anyhow::Result;
use lockkit_conformance::Case;
use lockkit_testbed::{Redis, RedisCluster, RedisSentinels};

use super::{
    PREFIX, Servers, own,
    rights::{LOGIN, RIGHTS, user},
};

/// Longer than any standstill of a case, in milliseconds.
const STANDSTILL_MS: &str = "600000";

/// One server at this place, by a user with no rights but those that the documentation asks for.
pub(super) fn url_at(endpoint: &str) -> String {
    format!("redis://{LOGIN}@{endpoint}/?prefix={PREFIX}")
}

/// What that user may do: only with keys of this prefix.
pub(super) fn rights() -> String {
    RIGHTS.replace("~*", &format!("~{PREFIX}* ~lockkit:{{{PREFIX}*"))
}

impl Servers for Redis {
    const NAME: &str = "redis";

    fn start() -> Result<Self> {
        let rights = rights();
        Self::start_with(&[&["--user"], &*user(&rights)].concat())
    }

    fn url_for_clients(&self) -> String {
        url_at(&self.endpoint())
    }

    fn own_cases() -> Vec<Case> {
        own::on_one_server()
    }

    fn endpoint(&self) -> Option<String> {
        Some(self.endpoint())
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
}

impl Servers for RedisSentinels {
    const NAME: &str = "redis-sentinel";

    fn start() -> Result<Self> {
        Self::start()
    }

    fn url_for_clients(&self) -> String {
        format!("{}?prefix={PREFIX}", self.url())
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

    /// The Sentinels too, and first: they would promote another node.
    fn freeze(&self) -> Result<()> {
        self.sentinels().iter().try_for_each(Redis::pause)?;
        self.replicas().nodes().iter().try_for_each(Redis::pause)
    }

    fn thaw(&self) -> Result<()> {
        self.replicas().nodes().iter().try_for_each(Redis::resume)?;
        self.sentinels().iter().try_for_each(Redis::resume)
    }

    fn restart(&mut self) -> Result<()> {
        let master = self.master()?;
        self.node_mut(master).restart()
    }
}

impl Servers for RedisCluster {
    const NAME: &str = "redis-cluster";

    fn start() -> Result<Self> {
        Self::start()
    }

    fn url_for_clients(&self) -> String {
        format!("{}/?prefix={PREFIX}", self.url())
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
        // Those that wake first find the others silent: they would declare them failed, refuse every key for two node
        // timeouts, which is longer than a ttl, and promote a replica. That is R5's matter, not that of a standstill.
        let patience = ["CONFIG", "SET", "cluster-node-timeout", STANDSTILL_MS];
        self.nodes().iter().try_for_each(|node| node.cli(&patience).map(drop))?;
        self.nodes().iter().try_for_each(Redis::pause)
    }

    fn thaw(&self) -> Result<()> {
        self.nodes().iter().try_for_each(Redis::resume)
    }

    fn restart(&mut self) -> Result<()> {
        for number in 0..self.len() {
            if self.node(number).is_master()? {
                self.node_mut(number).restart()?;
            }
        }
        self.wait_until_well()
    }
}
