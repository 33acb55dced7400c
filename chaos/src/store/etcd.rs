//! An etcd cluster of three.

use std::time::Duration;

use anyhow::Result;
use lockkit_testbed::EtcdCluster;

use super::{
    StoreInfo,
    client_network::{ClientNetwork, Proxies},
    servers::{Server, Servers},
    unsupported,
};
use crate::fault::ServerFault;

#[derive(Debug)]
pub(super) struct EtcdStore {
    proxies: Proxies,
    cluster: EtcdCluster,
}

impl EtcdStore {
    pub(super) fn start() -> Result<Self> {
        let cluster = EtcdCluster::start()?;
        let proxies = Proxies::open((0..cluster.len()).map(|number| cluster.member(number).endpoint()))?;
        Ok(Self { proxies, cluster })
    }
}

impl Servers for EtcdStore {
    fn url(&self) -> String {
        format!("etcd://{}", self.proxies.endpoints())
    }

    fn info(&self) -> StoreInfo {
        use ServerFault::{BlockPeers, DelayPeers, MoveLeader, Partition};
        StoreInfo {
            servers: self.cluster.len(),
            has_leader: true,
            has_queue: true,
            faults: vec![Partition, BlockPeers, DelayPeers(1_000), MoveLeader],
            failover: Duration::from_secs(2),
        }
    }

    fn leader(&self) -> Result<usize> {
        self.cluster.leader()
    }

    fn server(&mut self, number: usize) -> &mut dyn Server {
        self.cluster.member_mut(number)
    }

    fn client_network(&self) -> &dyn ClientNetwork {
        &self.proxies
    }

    fn apply(&mut self, fault: ServerFault, server: usize) -> Result<()> {
        match fault {
            ServerFault::Partition => self.cluster.cut(server),
            ServerFault::BlockPeers => {
                self.cluster.deafen(server);
                Ok(())
            }
            ServerFault::DelayPeers(ms) => {
                self.cluster.delay(server, Duration::from_millis(ms.into()));
                Ok(())
            }
            ServerFault::MoveLeader => self.cluster.move_leader().map(drop),
            other => unsupported(other),
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
