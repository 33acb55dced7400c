//! An etcd cluster of three.

use std::time::Duration;

use anyhow::Result;
use lockkit_testbed::EtcdCluster;

use super::{Menu, Store, gates::Gates, not_on_the_menu};
use crate::fault::ServerFault;

#[derive(Debug)]
pub(super) struct EtcdStore {
    gates: Gates,
    cluster: EtcdCluster,
}

impl EtcdStore {
    pub(super) fn start() -> Result<Self> {
        let cluster = EtcdCluster::start()?;
        let gates = Gates::open((0..cluster.len()).map(|number| cluster.member(number).endpoint()))?;
        Ok(Self { gates, cluster })
    }
}

impl Store for EtcdStore {
    fn url(&self) -> String {
        format!("etcd://{}", self.gates.endpoints())
    }

    fn menu(&self) -> Menu {
        use ServerFault::{Cut, Kill, MoveLeader, Silence, Stop};
        Menu {
            members: self.cluster.len(),
            has_leader: true,
            can_cut_clients: true,
            faults: vec![Kill, Stop, Cut, Silence, MoveLeader],
            failover: Duration::from_secs(2),
        }
    }

    fn leader(&self) -> Result<usize> {
        self.cluster.leader()
    }

    fn inflict(&mut self, fault: ServerFault, member: usize) -> Result<()> {
        match fault {
            ServerFault::Kill => self.cluster.member_mut(member).kill()?,
            ServerFault::Stop => self.cluster.member(member).pause()?,
            ServerFault::Cut => self.cluster.cut(member)?,
            ServerFault::Silence => self.gates.silence(member),
            ServerFault::MoveLeader => drop(self.cluster.move_leader()?),
            other => not_on_the_menu(other)?,
        }
        Ok(())
    }

    fn undo(&mut self, fault: ServerFault, member: usize) -> Result<()> {
        match fault {
            ServerFault::Kill => self.cluster.member_mut(member).restart()?,
            ServerFault::Stop => self.cluster.member(member).resume()?,
            ServerFault::Cut => self.cluster.heal(),
            ServerFault::Silence => self.gates.let_speak(member),
            _ => {}
        }
        Ok(())
    }

    fn cut_client(&mut self, pid: u32) {
        self.gates.cut_client(pid);
    }

    fn heal_client(&mut self, pid: u32) {
        self.gates.heal_client(pid);
    }

    fn settle(&mut self) -> Result<()> {
        self.cluster.leader().map(drop)
    }

    fn residue(&self) -> Result<Vec<String>> {
        let member = self.cluster.member(self.cluster.leader()?);
        let mut found = member.keys("")?;
        found.extend((0..member.leases()?).map(|_| "a lease".to_owned()));
        Ok(found)
    }
}
