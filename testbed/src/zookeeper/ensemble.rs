//! A ZooKeeper ensemble whose members can be cut or delayed from each other.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use anyhow::Result;

use super::{Membership, ZooKeeper, ZooKeeperOptions};
use crate::{
    Direction, Flow, Proxy,
    address::{free_ports, own_address},
    cluster::{Cluster, MEMBERS, Member},
    proxy::Protocol,
};

/// A ZooKeeper ensemble.
pub type ZooKeeperEnsemble = Cluster<ZooKeeper>;

/// The proxies through which one member reaches another.
#[derive(Debug)]
pub struct PeerRoute {
    from: usize,
    to: usize,
    address: Ipv4Addr,
    /// Between a leader and its followers.
    quorum: Proxy,
    election: Proxy,
}

impl ZooKeeperEnsemble {
    /// Starts an ensemble and waits until all its members serve.
    ///
    /// # Errors
    ///
    /// As [`ZooKeeper::start`].
    pub fn start() -> Result<Self> {
        Self::start_with(ZooKeeperOptions::default())
    }

    /// As [`start`](Self::start), with these options.
    ///
    /// # Errors
    ///
    /// As [`ZooKeeper::start`].
    pub fn start_with(options: ZooKeeperOptions) -> Result<Self> {
        let members = (0..MEMBERS).map(|_| ZooKeeper::prepare(options.clone()));
        let mut members = members.collect::<Result<Vec<_>>>()?;
        let ports = members.iter().map(|member| free_ports::<2>(member.address));
        let ports = ports.collect::<std::io::Result<Vec<_>>>()?;
        let mut routes = Vec::new();
        for (from, to) in (0..MEMBERS * MEMBERS).map(|n| (n / MEMBERS, n % MEMBERS)).filter(|(a, b)| a != b) {
            routes.push(PeerRoute::new(from, to, ports[to].map(|port| (members[to].address, port).into()))?);
        }
        for (id, member) in members.iter_mut().enumerate() {
            let [quorum, election] = ports[id];
            let own = format!("server.{id}={}:{quorum}:{election}", member.address);
            let others = routes.iter().filter(|route| route.from == id).map(PeerRoute::line);
            member.membership = Some(Membership { id, members: others.chain([own]).collect() });
        }
        Self::launch(members, routes)
    }

    /// All routes from and to this member.
    fn routes_of(&self, number: usize) -> impl Iterator<Item = &PeerRoute> {
        self.peers.iter().filter(move |route| route.from == number || route.to == number)
    }
}

impl Member for ZooKeeper {
    type Peers = Vec<PeerRoute>;

    const SCHEME: &'static str = "zk";

    fn launch(&mut self) -> Result<()> {
        self.launch()
    }

    fn wait_until_ready(&self) -> Result<()> {
        self.wait_until_serving()
    }

    fn leader_of(members: &[Self]) -> Option<usize> {
        let running = members.iter().enumerate().filter(|(_, member)| !member.daemon.is_silent());
        let roles = running.filter_map(|(number, member)| Some((member.commands().role().ok()?, number)));
        let leaders = roles.filter(|(role, _)| role.mode == "leader");
        // A former leader that was cut off may still report itself: its successor has a higher epoch.
        leaders.max_by_key(|(role, _)| role.epoch).map(|(_, number)| number)
    }

    /// Their connections are reset, and so are all new ones. The member replies to its clients that it does not serve.
    fn cut(ensemble: &ZooKeeperEnsemble, number: usize) -> Result<()> {
        for route in ensemble.routes_of(number) {
            route.quorum.refuse();
            route.election.refuse();
        }
        Ok(())
    }

    /// In both directions. The member serves its clients until it notices.
    fn deafen(ensemble: &ZooKeeperEnsemble, number: usize) {
        for proxy in ensemble.routes_of(number).flat_map(|route| [&route.quorum, &route.election]) {
            proxy.set(Direction::Requests, Flow::Hold);
            proxy.set(Direction::Replies, Flow::Hold);
        }
    }

    /// Everything from the leader to this follower: the follower's clients read stale data.
    fn delay(ensemble: &ZooKeeperEnsemble, follower: usize, delay: Duration) {
        for route in ensemble.peers.iter().filter(|route| route.from == follower) {
            route.quorum.set(Direction::Replies, Flow::Delay(delay));
        }
    }

    fn heal(ensemble: &ZooKeeperEnsemble) {
        for route in &ensemble.peers {
            route.quorum.pass();
            route.election.pass();
        }
    }
}

impl PeerRoute {
    /// Starts the proxies; `ports` are the quorum port and the election port of `to`.
    fn new(from: usize, to: usize, ports: [SocketAddr; 2]) -> Result<Self> {
        // In ZooKeeper's configuration a member has one address for all its ports.
        let address = own_address();
        let quorum = Proxy::start_at(address, ports[0], Protocol::Quorum)?;
        let election = Proxy::start_at(address, ports[1], Protocol::Election)?;
        Ok(Self { from, to, address, quorum, election })
    }

    /// The line of the configuration by which `from` reaches `to`.
    fn line(&self) -> String {
        let [quorum, election] = [&self.quorum, &self.election].map(|proxy| proxy.address().port());
        format!("server.{}={}:{quorum}:{election}", self.to, self.address)
    }
}
