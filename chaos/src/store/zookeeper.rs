//! A ZooKeeper ensemble of three.

use std::time::Duration;

use anyhow::Result;
use lockkit_testbed::ZooKeeperEnsemble;

use super::{
    Menu,
    gates::{Gates, Proxies},
    not_on_the_menu,
    servers::{Server, Servers},
};
use crate::fault::ServerFault;

#[derive(Debug)]
pub(super) struct ZooKeeperStore {
    gates: Proxies,
    ensemble: ZooKeeperEnsemble,
}

impl ZooKeeperStore {
    pub(super) fn start() -> Result<Self> {
        let ensemble = ZooKeeperEnsemble::start()?;
        let gates = Proxies::open((0..ensemble.len()).map(|number| ensemble.member(number).endpoint()))?;
        Ok(Self { gates, ensemble })
    }
}

impl Servers for ZooKeeperStore {
    fn url(&self) -> String {
        // The tick of the testbed's servers, which clients cannot ask for.
        format!("zk://{}/?tick=500ms", self.gates.endpoints())
    }

    fn menu(&self) -> Menu {
        use ServerFault::{Cut, Deafen, Delay};
        Menu {
            members: self.ensemble.len(),
            has_leader: true,
            has_queue: true,
            faults: vec![Cut, Deafen, Delay(1_000)],
            failover: Duration::from_secs(3),
        }
    }

    fn leader(&self) -> Result<usize> {
        self.ensemble.leader()
    }

    fn server(&mut self, number: usize) -> &mut dyn Server {
        self.ensemble.member_mut(number)
    }

    fn gates(&self) -> &dyn Gates {
        &self.gates
    }

    fn inflict(&mut self, fault: ServerFault, server: usize) -> Result<()> {
        match fault {
            ServerFault::Cut => self.ensemble.cut(server),
            ServerFault::Deafen => self.ensemble.deafen(server),
            ServerFault::Delay(ms) => self.ensemble.delay(server, Duration::from_millis(ms.into())),
            other => not_on_the_menu(other)?,
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
        // Directories are containers, which the server takes away once a minute.
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
