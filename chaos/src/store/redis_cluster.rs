//! A Redis Cluster of three masters with one replica each, which must acknowledge every grant.

use std::time::Duration;

use anyhow::{Context, Result};
use lockkit_testbed::{BehindProxies, RedisCluster, Server};

use super::{StoreInfo, client_network::ClientNetwork, redis_residue, servers::Servers, unsupported};
use crate::fault::ServerFault;

/// The slot whose owner counts as the leader.
const SLOT: usize = 0;

/// The pause between checks whether every replica follows its master.
const SETTLE_POLL: Duration = Duration::from_millis(50);

/// Longest time until every replica follows its master.
const SETTLE_MAX: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(super) struct ClusterStore(RedisCluster);

impl ClusterStore {
    pub(super) fn start() -> Result<Self> {
        Ok(Self(RedisCluster::start_behind_proxies()?))
    }

    /// Whether half of the nodes are masters, and the others replicate from theirs.
    fn is_settled(&self) -> Result<bool> {
        let (mut masters, mut replicas) = (0, 0);
        for node in self.0.nodes() {
            masters += usize::from(node.is_master()?);
            replicas += usize::from(node.is_replicating()?);
        }
        Ok(masters == replicas && masters + replicas == self.0.len())
    }

    /// Promotes the first replica, counted from node `first`.
    fn promote_a_replica(&self, first: usize) -> Result<()> {
        let nodes = (0..self.0.len()).map(|offset| (first + offset) % self.0.len());
        let mut replicas = nodes.filter(|&number| self.0.node(number).is_replicating().unwrap_or(false));
        self.0.failover(replicas.next().context("no replica")?)
    }
}

impl Servers for ClusterStore {
    fn url(&self) -> String {
        format!("{}/?min_replicas=1", self.0.url())
    }

    fn info(&self) -> StoreInfo {
        use ServerFault::{MoveLeader, Partition};
        StoreInfo {
            servers: self.0.len(),
            has_leader: true,
            has_queue: true,
            faults: vec![Partition, MoveLeader],
            failover: Duration::from_secs(8),
        }
    }

    fn leader(&self) -> Result<usize> {
        self.0.owner(SLOT)
    }

    fn server(&mut self, number: usize) -> &mut dyn Server {
        self.0.node_mut(number)
    }

    fn client_network(&self) -> &dyn ClientNetwork {
        &self.0
    }

    fn apply(&mut self, fault: ServerFault, server: usize) -> Result<()> {
        match fault {
            ServerFault::Partition => self.0.cut(server),
            ServerFault::MoveLeader => self.promote_a_replica(server)?,
            other => unsupported(other)?,
        }
        Ok(())
    }

    fn undo(&mut self, _fault: ServerFault, server: usize) {
        self.0.heal(server);
    }

    fn settle(&mut self) -> Result<()> {
        self.0.wait_until_healthy()?;
        let start = std::time::Instant::now();
        // A node that has just restarted may answer late.
        while !self.is_settled().unwrap_or(false) {
            anyhow::ensure!(
                start.elapsed() < SETTLE_MAX,
                "a replica of the cluster does not follow any master"
            );
            std::thread::sleep(SETTLE_POLL);
        }
        Ok(())
    }

    fn residue(&self, locks: &[String]) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for node in self.0.nodes() {
            if node.is_master()? {
                found.extend(redis_residue(node, locks)?);
            }
        }
        Ok(found)
    }
}
