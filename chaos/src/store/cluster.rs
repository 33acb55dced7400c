//! A cluster of etcd, or an ensemble of ZooKeeper.

use std::time::Duration;

use anyhow::Result;
use lockkit_testbed::{Cluster, Etcd, EtcdCluster, Member, Server, ZooKeeper};

use super::{
    StoreInfo,
    client_network::{ClientNetwork, Proxies},
    servers::Servers,
    unsupported,
};
use crate::fault::ServerFault;

#[derive(Debug)]
pub(super) struct ClusterStore<M: Member> {
    proxies: Proxies,
    cluster: Cluster<M>,
}

type MoveLeader<M> = fn(&Cluster<M>) -> Result<usize>;

/// How the members of one kind differ from those of another.
pub(super) trait Kind: Member {
    /// What follows the endpoints in the URL.
    const OPTIONS: &'static str;
    const FAILOVER: Duration;

    /// Makes another member the leader, if the server can.
    const MOVE_LEADER: Option<MoveLeader<Self>>;

    /// See [`Servers::residue`].
    fn residue(&self, locks: &[String]) -> Result<Vec<String>>;
}

impl<M: Kind> ClusterStore<M> {
    pub(super) fn new(cluster: Cluster<M>) -> Result<Self> {
        let proxies = Proxies::open((0..cluster.len()).map(|number| cluster.member(number).endpoint()))?;
        Ok(Self { proxies, cluster })
    }
}

impl<M: Kind> Servers for ClusterStore<M> {
    fn url(&self) -> String {
        format!("{}://{}{}", M::SCHEME, self.proxies.endpoints(), M::OPTIONS)
    }

    fn info(&self) -> StoreInfo {
        use ServerFault::{BlockPeers, DelayPeers, MoveLeader, Partition};
        let mut faults = vec![Partition, BlockPeers, DelayPeers(1_000)];
        faults.extend(M::MOVE_LEADER.map(|_| MoveLeader));
        StoreInfo {
            servers: self.cluster.len(),
            has_leader: true,
            has_one_clock: false,
            has_queue: true,
            faults,
            failover: M::FAILOVER,
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
        match (fault, M::MOVE_LEADER) {
            (ServerFault::Partition, _) => self.cluster.cut(server)?,
            (ServerFault::BlockPeers, _) => self.cluster.deafen(server),
            (ServerFault::DelayPeers(ms), _) => self.cluster.delay(server, Duration::from_millis(ms.into())),
            (ServerFault::MoveLeader, Some(move_leader)) => drop(move_leader(&self.cluster)?),
            (other, _) => unsupported(other)?,
        }
        Ok(())
    }

    fn undo(&mut self, _fault: ServerFault, _server: usize) {
        self.cluster.heal();
    }

    fn settle(&mut self) -> Result<()> {
        self.cluster.leader().map(drop)
    }

    fn residue(&self, locks: &[String]) -> Result<Vec<String>> {
        self.cluster.member(self.cluster.leader()?).residue(locks)
    }
}

impl Kind for Etcd {
    const OPTIONS: &'static str = "";
    const FAILOVER: Duration = Duration::from_secs(2);
    const MOVE_LEADER: Option<MoveLeader<Self>> = Some(EtcdCluster::move_leader);

    fn residue(&self, _locks: &[String]) -> Result<Vec<String>> {
        let mut found = self.keys("")?;
        found.extend((0..self.leases()?).map(|_| "a lease".to_owned()));
        Ok(found)
    }
}

impl Kind for ZooKeeper {
    /// The tick of the testbed's servers, which clients cannot query.
    const OPTIONS: &'static str = "/?tick=500ms";
    const FAILOVER: Duration = Duration::from_secs(3);
    const MOVE_LEADER: Option<MoveLeader<Self>> = None;

    fn residue(&self, locks: &[String]) -> Result<Vec<String>> {
        let sessions = self.ephemerals()?.into_keys().map(|session| format!("session {session:x}"));
        let nodes = self.tree("/")?.into_iter().filter(|path| !is_directory(path, locks));
        Ok(nodes.chain(sessions).collect())
    }
}

/// Whether this node is the server's own, or a directory of these locks or of the clients. Directories are containers,
/// which the server removes once a minute.
fn is_directory(path: &str, locks: &[String]) -> bool {
    match path.strip_prefix("/lockkit/") {
        Some(below) => below == ":clients" || locks.iter().any(|lock| lock == below),
        None => ["/lockkit", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"].contains(&path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_may_remain_in_zookeeper() {
        let remains = |path| is_directory(path, &["lock-0".to_owned()]);
        for path in ["/zookeeper/quota", "/lockkit", "/lockkit/:clients", "/lockkit/lock-0"] {
            assert!(remains(path), "{path}");
        }
        for path in [
            "/stray",
            "/zookeeper/stray",
            "/lockkit/lock-1",
            "/lockkit/:records",
            "/lockkit/lock-0/_c_1-lock-0",
        ] {
            assert!(!remains(path), "{path}");
        }
    }
}
