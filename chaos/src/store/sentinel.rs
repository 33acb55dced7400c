//! A Redis master with two replicas, watched by three Sentinels.
//!
//! Both replicas must acknowledge every grant: with fewer a failover may lose it, and exclusion is not promised. The
//! nodes have one wall clock, which is stepped for all of them: if that of a promoted replica is ahead, it ends leases
//! early, and exclusion is not promised either (`docs/guarantees.md`, note 2).

use std::time::Duration;

use anyhow::Result;
use lockkit_testbed::{BehindProxies, RedisSentinels, Server, ServerClock};

use super::{
    StoreInfo,
    client_network::ClientNetwork,
    redis_residue,
    servers::{Servers, step},
};
use crate::fault::ServerFault;

#[derive(Debug)]
pub(super) struct SentinelStore {
    sentinels: RedisSentinels,
    clock: ServerClock,
}

impl SentinelStore {
    pub(super) fn start() -> Result<Self> {
        let clock = ServerClock::new()?;
        Ok(Self { sentinels: RedisSentinels::start_behind_proxies(&clock)?, clock })
    }
}

impl Servers for SentinelStore {
    fn url(&self) -> String {
        format!("{}?min_replicas={}", self.sentinels.url(), self.sentinels.replicas().len() - 1)
    }

    fn info(&self) -> StoreInfo {
        use ServerFault::{ClockBack, ClockForward, MoveLeader, Partition};
        StoreInfo {
            servers: self.sentinels.replicas().len() + self.sentinels.sentinels().len(),
            has_leader: true,
            has_one_clock: true,
            has_queue: true,
            faults: vec![Partition, MoveLeader, ClockForward(6_000), ClockBack(6_000)],
            failover: Duration::from_secs(8),
        }
    }

    fn leader(&self) -> Result<usize> {
        self.sentinels.master()
    }

    /// Nodes come first, then Sentinels.
    fn server(&mut self, number: usize) -> &mut dyn Server {
        let nodes = self.sentinels.replicas().len();
        if number < nodes {
            self.sentinels.node_mut(number)
        } else {
            self.sentinels.sentinel_mut(number - nodes)
        }
    }

    fn client_network(&self) -> &dyn ClientNetwork {
        &self.sentinels
    }

    fn apply(&mut self, fault: ServerFault, server: usize) -> Result<()> {
        match fault {
            ServerFault::Partition => self.sentinels.cut(server),
            ServerFault::MoveLeader => drop(self.sentinels.failover()?),
            other => step(&self.clock, other)?,
        }
        Ok(())
    }

    fn undo(&mut self, _fault: ServerFault, server: usize) {
        self.sentinels.heal(server);
    }

    fn settle(&mut self) -> Result<()> {
        self.sentinels.wait_until_in_sync().map(drop)
    }

    fn residue(&self, locks: &[String]) -> Result<Vec<String>> {
        redis_residue(self.sentinels.node(self.sentinels.master()?), locks)
    }
}
