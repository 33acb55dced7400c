//! One server, and servers that are watched or share their keys.

use anyhow::Result;
use lockkit_testbed::{Redis, RedisCluster, RedisSentinels};

use super::{Servers, rights};

impl Servers for Redis {
    const NAME: &str = "redis";

    /// The suite does without rights that the documentation does not ask for.
    const LOGIN: &str = rights::LOGIN;

    fn start() -> Result<Self> {
        let mut arguments = vec!["--user"];
        arguments.extend(rights::user(rights::RIGHTS));
        Self::start_with(&arguments)
    }

    fn url(&self) -> String {
        format!("redis://{}@{}", Self::LOGIN, self.endpoint())
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

    fn url(&self) -> String {
        self.url()
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

    fn url(&self) -> String {
        self.url()
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
