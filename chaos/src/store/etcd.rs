//! An etcd cluster of three.

use std::time::Duration;

use anyhow::Result;
use lockkit_testbed::EtcdCluster;

use super::{
    Menu,
    gates::{Gates, Proxies},
    not_on_the_menu,
    servers::{Server, Servers},
};
use crate::fault::ServerFault;

#[derive(Debug)]
pub(super) struct EtcdStore {
    gates: Proxies,
    cluster: EtcdCluster,
}

impl EtcdStore {
    pub(super) fn start() -> Result<Self> {
        let cluster = EtcdCluster::start()?;
        let gates = Proxies::open((0..cluster.len()).map(|number| cluster.member(number).endpoint()))?;
        Ok(Self { gates, cluster })
    }
}

impl Servers for EtcdStore {
    fn url(&self) -> String {
        format!("etcd://{}", self.gates.endpoints())
    }

    fn menu(&self) -> Menu {
        use ServerFault::{Cut, Deafen, Delay, MoveLeader};
        Menu {
            members: self.cluster.len(),
            has_leader: true,
            has_queue: true,
            faults: vec![Cut, Deafen, Delay(1_000), MoveLeader],
            failover: Duration::from_secs(2),
        }
    }

    fn leader(&self) -> Result<usize> {
        self.cluster.leader()
    }

    fn server(&mut self, number: usize) -> &mut dyn Server {
        self.cluster.member_mut(number)
    }

    fn gates(&self) -> &dyn Gates {
        &self.gates
    }

    fn inflict(&mut self, fault: ServerFault, server: usize) -> Result<()> {
        match fault {
            ServerFault::Cut => self.cluster.cut(server),
            ServerFault::Deafen => {
                self.cluster.deafen(server);
                Ok(())
            }
            ServerFault::Delay(ms) => {
                self.cluster.delay(server, Duration::from_millis(ms.into()));
                Ok(())
            }
            ServerFault::MoveLeader => self.cluster.move_leader().map(drop),
            other => not_on_the_menu(other),
        }
    }

    fn undo(&mut self, _fault: ServerFault, _server: usize) {
        self.cluster.heal();
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
