//! A Redis Cluster of three masters with a replica each, which knows of every grant.

use std::time::Duration;

use anyhow::{Context, Result};
use lockkit_testbed::RedisCluster;

use super::{
    Menu,
    gates::Gates,
    not_on_the_menu, redis_residue,
    servers::{Server, Servers},
};
use crate::fault::ServerFault;

/// The slot whose owner counts as the leader.
const SLOT: usize = 0;

/// How often the cluster is looked at until every replica follows.
const SETTLE_POLL: Duration = Duration::from_millis(50);

/// Longest time for that.
const SETTLE_MAX: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(super) struct ClusterStore(RedisCluster);

impl ClusterStore {
    pub(super) fn start() -> Result<Self> {
        Ok(Self(RedisCluster::start_behind_proxies()?))
    }

    /// Whether half of the nodes are masters, and the others hear from theirs.
    fn is_settled(&self) -> Result<bool> {
        let (mut masters, mut replicas) = (0, 0);
        for node in self.0.nodes() {
            masters += usize::from(node.is_master()?);
            replicas += usize::from(node.is_replicating()?);
        }
        Ok(masters == replicas && masters + replicas == self.0.len())
    }

    /// Makes a replica take over from its master: the first one from this node on.
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

    fn menu(&self) -> Menu {
        use ServerFault::{Cut, MoveLeader};
        Menu {
            members: self.0.len(),
            has_leader: true,
            has_queue: true,
            faults: vec![Cut, MoveLeader],
            failover: Duration::from_secs(8),
        }
    }

    fn leader(&self) -> Result<usize> {
        self.0.owner(SLOT)
    }

    fn server(&mut self, number: usize) -> &mut dyn Server {
        self.0.node_mut(number)
    }

    fn gates(&self) -> &dyn Gates {
        &self.0
    }

    fn inflict(&mut self, fault: ServerFault, server: usize) -> Result<()> {
        match fault {
            ServerFault::Cut => self.0.cut(server),
            ServerFault::MoveLeader => self.promote_a_replica(server)?,
            other => not_on_the_menu(other)?,
        }
        Ok(())
    }

    fn undo(&mut self, _fault: ServerFault, server: usize) {
        self.0.heal(server);
    }

    fn settle(&mut self) -> Result<()> {
        self.0.wait_until_well()?;
        let start = std::time::Instant::now();
        // A node that has just come back answers late.
        while !self.is_settled().unwrap_or(false) {
            anyhow::ensure!(start.elapsed() < SETTLE_MAX, "the cluster has a replica that follows nobody");
            std::thread::sleep(SETTLE_POLL);
        }
        Ok(())
    }

    fn residue(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for node in self.0.nodes() {
            if node.is_master()? {
                found.extend(redis_residue(node)?);
            }
        }
        Ok(found)
    }
}
