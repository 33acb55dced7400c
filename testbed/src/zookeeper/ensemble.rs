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
    proxy::Protocol,
    wait::wait_for_leader,
};

/// Members of an ensemble: it works without one of them.
const MEMBERS: usize = 3;

/// Longest time until the members agree on a leader.
const LEADER_MAX: Duration = Duration::from_secs(60);

/// A ZooKeeper ensemble of three members, each on a loopback address of its own.
///
/// Members reach each other through proxies. So one can be [cut](Self::cut) from the others, or
/// [receive nothing](Self::deafen) from its leader, while its clients still reach it.
///
/// ```no_run
/// let mut ensemble = lockkit_testbed::ZooKeeperEnsemble::start()?;
/// let leader = ensemble.leader()?;
/// ensemble.member_mut(leader).kill()?; // also pause, resume, restart
/// assert_ne!(ensemble.leader()?, leader);
/// # anyhow::Ok(())
/// ```
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    members: Vec<ZooKeeper>,
    routes: Vec<PeerRoute>,
}

/// The proxies through which one member reaches another.
#[derive(Debug)]
struct PeerRoute {
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
        let mut ensemble = Self { members, routes };
        ensemble.launch()?;
        Ok(ensemble)
    }

    /// Returns the ensemble as a backend URL without options: `zk://` and the endpoints of all members.
    pub fn url(&self) -> String {
        let endpoints: Vec<_> = self.members.iter().map(ZooKeeper::endpoint).collect();
        format!("zk://{}", endpoints.join(","))
    }

    /// Returns the member with this number, which is less than [`len`](Self::len).
    pub fn member(&self, number: usize) -> &ZooKeeper {
        &self.members[number]
    }

    /// Returns the member with this number, to be killed or restarted.
    pub fn member_mut(&mut self, number: usize) -> &mut ZooKeeper {
        &mut self.members[number]
    }

    /// Returns how many members there are.
    #[expect(clippy::len_without_is_empty, reason = "an ensemble has members")]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Waits until a member reports itself as the leader, and returns its number.
    ///
    /// # Errors
    ///
    /// When there is no leader within 60 s.
    pub fn leader(&self) -> Result<usize> {
        wait_for_leader("the ZooKeeper ensemble", LEADER_MAX, || self.current_leader())
    }

    /// Returns the number of a member that follows the leader.
    ///
    /// # Errors
    ///
    /// As [`leader`](Self::leader).
    pub fn follower(&self) -> Result<usize> {
        Ok((self.leader()? + 1) % self.len())
    }

    /// Cuts a member from the others in both directions, until [`heal`](Self::heal). Their connections are reset, and
    /// so are all new ones. Clients still reach the member, which replies that it does not serve.
    pub fn cut(&self, number: usize) {
        for route in self.routes_of(number) {
            route.quorum.refuse();
            route.election.refuse();
        }
    }

    /// Holds everything between a member and the others, until [`heal`](Self::heal) delivers it. Connections stay open,
    /// and the member serves its clients until it notices.
    pub fn deafen(&self, number: usize) {
        for proxy in self.routes_of(number).flat_map(|route| [&route.quorum, &route.election]) {
            proxy.set(Direction::Requests, Flow::Hold);
            proxy.set(Direction::Replies, Flow::Hold);
        }
    }

    /// Delays everything from the leader to this follower, until [`heal`](Self::heal): the follower's clients read
    /// stale data.
    pub fn delay(&self, follower: usize, delay: Duration) {
        for route in self.routes.iter().filter(|route| route.from == follower) {
            route.quorum.set(Direction::Replies, Flow::Delay(delay));
        }
    }

    /// Lets all members reach each other.
    pub fn heal(&self) {
        for route in &self.routes {
            route.quorum.pass();
            route.election.pass();
        }
    }

    /// Kills all members, deletes all data, and starts them again with the same addresses.
    ///
    /// # Errors
    ///
    /// As [`ZooKeeper::wipe`].
    pub fn wipe(&mut self) -> Result<()> {
        self.members.iter_mut().try_for_each(|member| member.daemon.lose_data())?;
        self.launch()
    }

    fn launch(&mut self) -> Result<()> {
        // Launch all before waiting for one: none serves alone.
        self.members.iter_mut().try_for_each(ZooKeeper::launch)?;
        self.members.iter().try_for_each(ZooKeeper::wait_until_serving)
    }

    /// All routes from and to this member.
    fn routes_of(&self, number: usize) -> impl Iterator<Item = &PeerRoute> {
        self.routes.iter().filter(move |route| route.from == number || route.to == number)
    }

    fn current_leader(&self) -> Option<usize> {
        let running = self.members.iter().enumerate().filter(|(_, member)| !member.daemon.is_silent());
        let roles = running.filter_map(|(number, member)| Some((member.commands().role().ok()?, number)));
        let leaders = roles.filter(|(role, _)| role.mode == "leader");
        // A former leader that was cut off may still report itself: its successor has a higher epoch.
        leaders.max_by_key(|(role, _)| role.epoch).map(|(_, number)| number)
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
