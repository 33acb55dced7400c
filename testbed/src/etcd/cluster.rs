//! An etcd cluster whose members can be cut from each other.

use std::time::Duration;

use anyhow::{Context, Result};

use super::{ETCD, Etcd, gateway::MemberStatus};
use crate::{
    Direction, Flow, Proxy,
    cluster::{Cluster, MEMBERS, Member},
    daemon::Daemon,
};

/// An etcd cluster.
pub type EtcdCluster = Cluster<Etcd>;

impl EtcdCluster {
    /// Starts a cluster and waits until all its members are healthy.
    ///
    /// # Errors
    ///
    /// As [`Etcd::start`].
    pub fn start() -> Result<Self> {
        let members = (0..MEMBERS).map(|n| Etcd::prepare(&format!("m{n}"), Daemon::new(ETCD)?));
        let mut members = members.collect::<Result<Vec<_>>>()?;
        let peers = members.iter().map(|member| Proxy::start(member.peer_endpoint()));
        let peers = peers.collect::<Result<Vec<_>>>()?;
        let urls: Vec<_> = peers.iter().map(|peer| format!("http://{}", peer.endpoint())).collect();
        let all: Vec<_> = urls.iter().enumerate().map(|(n, url)| format!("m{n}={url}")).collect();
        for (member, url) in members.iter_mut().zip(urls) {
            (member.peer_url, member.initial_cluster) = (url, all.join(","));
        }
        Self::launch(members, peers)
    }

    /// Makes another member the leader, while all of them run. Returns the number of the new leader.
    ///
    /// # Errors
    ///
    /// When the leader or the other member does not answer, or refuses.
    pub fn move_leader(&self) -> Result<usize> {
        let (leader, next) = (self.leader()?, self.follower()?);
        let id = self.members[next].gateway.status()?.member;
        self.members[leader].gateway.move_leader(id)?;
        Ok(next)
    }

    /// Sets the flow of the connections of the others to a member, over which the member sends to them.
    fn set(&self, number: usize, flow: Flow) {
        for direction in [Direction::Requests, Direction::Replies] {
            self.peers[number].set(direction, flow);
        }
    }
}

impl Member for Etcd {
    /// One in front of the peer port of each member.
    type Peers = Vec<Proxy>;

    const SCHEME: &'static str = "etcd";

    fn launch(&mut self) -> Result<()> {
        self.launch()
    }

    fn wait_until_ready(&self) -> Result<()> {
        self.wait_until_healthy()
    }

    fn leader_of(members: &[Self]) -> Option<usize> {
        let running = members.iter().enumerate().filter(|(_, member)| !member.daemon.is_silent());
        let statuses: Vec<(usize, MemberStatus)> =
            running.filter_map(|(number, member)| Some((number, member.gateway.status().ok()?))).collect();
        // A former leader that was cut off may still report itself: the latest term decides.
        let (_, latest) = statuses.iter().max_by_key(|(_, status)| status.term)?;
        statuses.iter().find(|(_, status)| status.member == latest.leader).map(|&(number, _)| number)
    }

    /// A restart of the member would undo one direction: its own connections are cut by its process id.
    fn cut(cluster: &EtcdCluster, number: usize) -> Result<()> {
        let pid = cluster.members[number].pid().context("the member is not running")?;
        for (peer, proxy) in cluster.peers.iter().enumerate() {
            if peer == number { proxy.refuse() } else { proxy.cut_off(pid) }
        }
        Ok(())
    }

    /// The others receive nothing from the member; it receives only what comes over its own connections to them.
    fn deafen(cluster: &EtcdCluster, number: usize) {
        cluster.set(number, Flow::Hold);
        // etcd posts its messages, over connections of its own, to a member that is just connecting to it. Each of
        // these requests names its sender's URL.
        for other in (0..cluster.len()).filter(|&other| other != number) {
            cluster.peers[other].hold_requests_from(&cluster.members[number].peer_url);
        }
    }

    fn delay(cluster: &EtcdCluster, number: usize, delay: Duration) {
        cluster.set(number, Flow::Delay(delay));
    }

    fn heal(cluster: &EtcdCluster) {
        cluster.peers.iter().for_each(Proxy::pass);
    }
}
