//! A ZooKeeper ensemble of three.

use std::time::Duration;

use anyhow::Result;
use lockkit_testbed::ZooKeeperEnsemble;

use super::{
    StoreInfo,
    client_network::{ClientNetwork, Proxies},
    servers::{Server, Servers},
    unsupported,
};
use crate::fault::ServerFault;

#[derive(Debug)]
pub(super) struct ZooKeeperStore {
    proxies: Proxies,
    ensemble: ZooKeeperEnsemble,
}

impl ZooKeeperStore {
    pub(super) fn start() -> Result<Self> {
        let ensemble = ZooKeeperEnsemble::start()?;
        let proxies = Proxies::open((0..ensemble.len()).map(|number| ensemble.member(number).endpoint()))?;
        Ok(Self { proxies, ensemble })
    }
}

impl Servers for ZooKeeperStore {
    fn url(&self) -> String {
        // The tick of the testbed's servers, which clients cannot query.
        format!("zk://{}/?tick=500ms", self.proxies.endpoints())
    }

    fn info(&self) -> StoreInfo {
        use ServerFault::{BlockPeers, DelayPeers, Partition};
        StoreInfo {
            servers: self.ensemble.len(),
            has_leader: true,
            has_queue: true,
            faults: vec![Partition, BlockPeers, DelayPeers(1_000)],
            failover: Duration::from_secs(3),
        }
    }

    fn leader(&self) -> Result<usize> {
        self.ensemble.leader()
    }

    fn server(&mut self, number: usize) -> &mut dyn Server {
        self.ensemble.member_mut(number)
    }

    fn client_network(&self) -> &dyn ClientNetwork {
        &self.proxies
    }

    fn apply(&mut self, fault: ServerFault, server: usize) -> Result<()> {
        match fault {
            ServerFault::Partition => self.ensemble.cut(server),
            ServerFault::BlockPeers => self.ensemble.deafen(server),
            ServerFault::DelayPeers(ms) => self.ensemble.delay(server, Duration::from_millis(ms.into())),
            other => unsupported(other)?,
        }
        Ok(())
    }

    fn undo(&mut self, _fault: ServerFault, _server: usize) {
        self.ensemble.heal();
    }

    fn settle(&mut self) -> Result<()> {
        self.ensemble.leader().map(drop)
    }

    fn residue(&self) -> Result<Vec<String>> {
        let member = self.ensemble.member(self.ensemble.leader()?);
        let sessions = member.ephemerals()?.into_keys().map(|session| format!("session {session:x}"));
        // Directories are containers, which the server removes once a minute.
        let is_directory = |path: &String| {
            path == "/"
                || path.starts_with("/zookeeper")
                || path == "/lockkit"
                || path.matches('/').count() == 2
        };
        let nodes = member.tree("/")?.into_iter().filter(|path| !is_directory(path));
        Ok(nodes.chain(sessions).collect())
    }
}
