//! A Redis Cluster of three masters with one replica each, which must acknowledge every grant. All nodes have one wall
//! clock, as with [Sentinels](super::sentinel).

use std::time::Duration;

use anyhow::{Context, Result};
use lockkit_testbed::{BehindProxies, RedisCluster, Server, ServerClock};

use super::{
    StoreInfo,
    client_network::ClientNetwork,
    redis_residue,
    servers::{Servers, step},
};
use crate::fault::ServerFault;

/// The slot whose owner counts as the leader.
const SLOT: usize = 0;

/// The pause between checks whether every replica follows its master.
const SETTLE_POLL: Duration = Duration::from_millis(50);

/// Longest time until every replica follows its master.
const SETTLE_MAX: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(super) struct ClusterStore {
    cluster: RedisCluster,
    clock: ServerClock,
}

impl ClusterStore {
    pub(super) fn start() -> Result<Self> {
        let clock = ServerClock::new()?;
        Ok(Self { cluster: RedisCluster::start_behind_proxies(&clock)?, clock })
    }

    /// Whether half of the nodes are masters, and the others replicate from theirs.
    fn is_settled(&self) -> Result<bool> {
        let (mut masters, mut replicas) = (0, 0);
        for node in self.cluster.nodes() {
            masters += usize::from(node.is_master()?);
            replicas += usize::from(node.is_replicating()?);
        }
        Ok(masters == replicas && masters + replicas == self.cluster.len())
    }

    /// Promotes the first replica, counted from node `first`.
    fn promote_a_replica(&self, first: usize) -> Result<()> {
        let nodes = (0..self.cluster.len()).map(|offset| (first + offset) % self.cluster.len());
        let mut replicas =
            nodes.filter(|&number| self.cluster.node(number).is_replicating().unwrap_or(false));
        self.cluster.failover(replicas.next().context("no replica")?)
    }
}

impl Servers for ClusterStore {
    fn url(&self) -> String {
        format!("{}/?min_replicas=1", self.cluster.url())
    }

    fn info(&self) -> StoreInfo {
        use ServerFault::{ClockBack, ClockForward, MoveLeader, Partition};
        StoreInfo {
            servers: self.cluster.len(),
            has_leader: true,
            has_one_clock: true,
            has_queue: true,
            faults: vec![Partition, MoveLeader, ClockForward(6_000), ClockBack(6_000)],
            failover: Duration::from_secs(8),
        }
    }

    fn leader(&self) -> Result<usize> {
        self.cluster.owner(SLOT)
    }

    fn server(&mut self, number: usize) -> &mut dyn Server {
        self.cluster.node_mut(number)
    }

    fn client_network(&self) -> &dyn ClientNetwork {
        &self.cluster
    }

    fn apply(&mut self, fault: ServerFault, server: usize) -> Result<()> {
        match fault {
            ServerFault::Partition => self.cluster.cut(server),
            ServerFault::MoveLeader => self.promote_a_replica(server)?,
            other => step(&self.clock, other)?,
        }
        Ok(())
    }

    fn undo(&mut self, _fault: ServerFault, server: usize) {
        self.cluster.heal(server);
    }

    fn settle(&mut self) -> Result<()> {
        self.cluster.wait_until_healthy()?;
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
        for node in self.cluster.nodes() {
            if node.is_master()? {
                found.extend(redis_residue(node, locks)?);
            }
        }
        Ok(found)
    }
}
