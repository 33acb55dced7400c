//! A ZooKeeper ensemble of three.

use std::time::Duration;

use anyhow::Result;
use lockkit_testbed::ZooKeeperEnsemble;

use super::{Menu, Store, gates::Gates, not_on_the_menu};
use crate::fault::ServerFault;

#[derive(Debug)]
pub(super) struct ZooKeeperStore {
    gates: Gates,
    ensemble: ZooKeeperEnsemble,
}

impl ZooKeeperStore {
    pub(super) fn start() -> Result<Self> {
        let ensemble = ZooKeeperEnsemble::start()?;
        let gates = Gates::open((0..ensemble.len()).map(|number| ensemble.member(number).endpoint()))?;
        Ok(Self { gates, ensemble })
    }
}

impl Store for ZooKeeperStore {
    fn url(&self) -> String {
        // The tick of the testbed's servers, which clients cannot ask for.
        format!("zk://{}/?tick=500ms", self.gates.endpoints())
    }

    fn menu(&self) -> Menu {
        use ServerFault::{Cut, Deafen, Delay, Kill, Silence, Stop};
        Menu {
            members: self.ensemble.len(),
            has_leader: true,
            can_cut_clients: true,
            faults: vec![Kill, Stop, Cut, Deafen, Delay(1_000), Silence],
            failover: Duration::from_secs(3),
        }
    }

    fn leader(&self) -> Result<usize> {
        self.ensemble.leader()
    }

    fn inflict(&mut self, fault: ServerFault, member: usize) -> Result<()> {
        match fault {
            ServerFault::Kill => self.ensemble.member_mut(member).kill()?,
            ServerFault::Stop => self.ensemble.member(member).pause()?,
            ServerFault::Cut => self.ensemble.cut(member),
            ServerFault::Deafen => self.ensemble.deafen(member),
            ServerFault::Delay(ms) => self.ensemble.delay(member, Duration::from_millis(ms.into())),
            ServerFault::Silence => self.gates.silence(member),
            other => not_on_the_menu(other)?,
        }
        Ok(())
    }

    fn undo(&mut self, fault: ServerFault, member: usize) -> Result<()> {
        match fault {
            ServerFault::Kill => self.ensemble.member_mut(member).restart()?,
            ServerFault::Stop => self.ensemble.member(member).resume()?,
            ServerFault::Cut | ServerFault::Deafen | ServerFault::Delay(_) => self.ensemble.heal(),
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
