//! A Redis master with two replicas, watched by three Sentinels.
//!
//! Every grant is known to both replicas before it is one: with fewer a failover may lose it, and exclusion is not
//! promised.

use std::time::Duration;

use anyhow::Result;
use lockkit_testbed::{Redis, RedisSentinels};

use super::{Menu, Store, not_on_the_menu, redis_residue};
use crate::fault::ServerFault;

#[derive(Debug)]
pub(super) struct SentinelStore(RedisSentinels);

impl SentinelStore {
    pub(super) fn start() -> Result<Self> {
        Ok(Self(RedisSentinels::start_behind_proxies()?))
    }

    /// The Sentinels come behind the nodes.
    fn member(&self, number: usize) -> &Redis {
        let nodes = self.0.replicas().len();
        if number < nodes { self.0.node(number) } else { self.0.sentinel(number - nodes) }
    }

    fn member_mut(&mut self, number: usize) -> &mut Redis {
        let nodes = self.0.replicas().len();
        if number < nodes { self.0.node_mut(number) } else { self.0.sentinel_mut(number - nodes) }
    }
}

impl Store for SentinelStore {
    fn url(&self) -> String {
        format!("{}?min_replicas={}", self.0.url(), self.0.replicas().len() - 1)
    }

    fn menu(&self) -> Menu {
        use ServerFault::{Cut, Kill, MoveLeader, Stop};
        Menu {
            members: self.0.replicas().len() + self.0.sentinels().len(),
            has_leader: true,
            can_cut_clients: true,
            faults: vec![Kill, Stop, Cut, MoveLeader],
            failover: Duration::from_secs(8),
        }
    }

    fn leader(&self) -> Result<usize> {
        self.0.master()
    }

    fn inflict(&mut self, fault: ServerFault, member: usize) -> Result<()> {
        match fault {
            ServerFault::Kill => self.member_mut(member).kill()?,
            ServerFault::Stop => self.member(member).pause()?,
            ServerFault::Cut => self.0.cut(member),
            ServerFault::MoveLeader => drop(self.0.failover()?),
            other => not_on_the_menu(other)?,
        }
        Ok(())
    }

    fn undo(&mut self, fault: ServerFault, member: usize) -> Result<()> {
        match fault {
            ServerFault::Kill => self.member_mut(member).restart()?,
            ServerFault::Stop => self.member(member).resume()?,
            ServerFault::Cut => self.0.heal(member),
            _ => {}
        }
        Ok(())
    }

    fn cut_client(&mut self, pid: u32) {
        self.0.cut_client(pid);
    }

    fn heal_client(&mut self, pid: u32) {
        self.0.heal_client(pid);
    }

    fn settle(&mut self) -> Result<()> {
        self.0.wait_until_in_sync().map(drop)
    }

    fn residue(&self) -> Result<Vec<String>> {
        redis_residue(self.0.node(self.0.master()?))
    }
}
