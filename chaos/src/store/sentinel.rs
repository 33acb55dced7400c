//! A Redis master with two replicas, watched by three Sentinels.
//!
//! Both replicas must acknowledge every grant: with fewer a failover may lose it, and exclusion is not promised.

use std::time::Duration;

use anyhow::Result;
use lockkit_testbed::{BehindProxies, RedisSentinels, Server};

use super::{StoreInfo, client_network::ClientNetwork, redis_residue, servers::Servers, unsupported};
use crate::fault::ServerFault;

#[derive(Debug)]
pub(super) struct SentinelStore(RedisSentinels);

impl SentinelStore {
    pub(super) fn start() -> Result<Self> {
        Ok(Self(RedisSentinels::start_behind_proxies()?))
    }
}

impl Servers for SentinelStore {
    fn url(&self) -> String {
        format!("{}?min_replicas={}", self.0.url(), self.0.replicas().len() - 1)
    }

    fn info(&self) -> StoreInfo {
        use ServerFault::{MoveLeader, Partition};
        StoreInfo {
            servers: self.0.replicas().len() + self.0.sentinels().len(),
            has_leader: true,
            has_queue: true,
            faults: vec![Partition, MoveLeader],
            failover: Duration::from_secs(8),
        }
    }

    fn leader(&self) -> Result<usize> {
        self.0.master()
    }

    /// Nodes come first, then Sentinels.
    fn server(&mut self, number: usize) -> &mut dyn Server {
        let nodes = self.0.replicas().len();
        if number < nodes { self.0.node_mut(number) } else { self.0.sentinel_mut(number - nodes) }
    }

    fn client_network(&self) -> &dyn ClientNetwork {
        &self.0
    }

    fn apply(&mut self, fault: ServerFault, server: usize) -> Result<()> {
        match fault {
            ServerFault::Partition => self.0.cut(server),
            ServerFault::MoveLeader => drop(self.0.failover()?),
            other => unsupported(other)?,
        }
        Ok(())
    }

    fn undo(&mut self, _fault: ServerFault, server: usize) {
        self.0.heal(server);
    }

    fn settle(&mut self) -> Result<()> {
        self.0.wait_until_in_sync().map(drop)
    }

    fn residue(&self, locks: &[String]) -> Result<Vec<String>> {
        redis_residue(self.0.node(self.0.master()?), locks)
    }
}
