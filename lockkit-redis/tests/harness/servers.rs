//! One server, and servers that are watched or share their keys.

use anyhow::Result;
use lockkit_conformance::Case;
use lockkit_testbed::{Redis, RedisCluster, RedisSentinels};

use super::{PREFIX, Servers, own, rights::RIGHTS};

/// All clients of a single server log in as a user with no more rights than the documentation asks for.
pub(super) const USER: &str = "locks";

/// One server at this place, as that user.
pub(super) fn url_at(endpoint: &str) -> String {
    format!("redis://{USER}:secret@{endpoint}/?prefix={PREFIX}")
}

/// What makes the server know that user.
pub(super) fn user_rights() -> Vec<String> {
    let keys = format!("~{PREFIX}* ~lockkit:{{{PREFIX}*");
    let rights = RIGHTS.replace("~*", &keys);
    ["on", ">secret"].into_iter().chain(rights.split_whitespace()).map(str::to_owned).collect()
}

impl Servers for Redis {
    const NAME: &str = "redis";

    fn start() -> Result<Self> {
        let rights = user_rights();
        let user = ["--user", USER].into_iter().chain(rights.iter().map(String::as_str));
        Self::start_with(&user.collect::<Vec<_>>())
    }

    fn url(&self) -> String {
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

    fn url(&self) -> String {
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

    fn url(&self) -> String {
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
