//! A ZooKeeper ensemble whose members can be cut from each other, or made deaf.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use super::{Membership, ZooKeeper, ZooKeeperOptions};
use crate::{
    Direction, Flow, Proxy,
    address::{free_ports, own_address},
    proxy::Speech,
};

/// Members of an ensemble: one may be missing.
const MEMBERS: usize = 3;

/// Longest time until the members agree on a leader.
const LEADER_MAX: Duration = Duration::from_secs(60);

/// Pause between two looks at it.
const LEADER_POLL: Duration = Duration::from_millis(20);

/// A ZooKeeper ensemble of three members, each on a loopback address of its own.
///
/// Members reach each other through proxies, so that one can be [cut](Self::cut) from the others, or
/// [hear nothing](Self::deafen) of its leader, while its clients still reach it.
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
    peers: Vec<Peer>,
}

/// The way from one member to another.
#[derive(Debug)]
struct Peer {
    from: usize,
    to: usize,
    address: Ipv4Addr,
    /// What a leader and its followers say to each other.
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

    /// As [`start`](Self::start), with other options than the default ones.
    ///
    /// # Errors
    ///
    /// As [`ZooKeeper::start`].
    pub fn start_with(options: ZooKeeperOptions) -> Result<Self> {
        let members = (0..MEMBERS).map(|_| ZooKeeper::prepare(options.clone()));
        let mut members = members.collect::<Result<Vec<_>>>()?;
        let ports = members.iter().map(|member| free_ports::<2>(member.address));
        let ports = ports.collect::<std::io::Result<Vec<_>>>()?;
        let mut peers = Vec::new();
        for (from, to) in (0..MEMBERS * MEMBERS).map(|n| (n / MEMBERS, n % MEMBERS)).filter(|(a, b)| a != b) {
            peers.push(Peer::new(from, to, ports[to].map(|port| (members[to].address, port).into()))?);
        }
        for (id, member) in members.iter_mut().enumerate() {
            let [quorum, election] = ports[id];
            let own = format!("server.{id}={}:{quorum}:{election}", member.address);
            let others = peers.iter().filter(|peer| peer.from == id).map(Peer::line);
            member.membership = Some(Membership { id, members: others.chain([own]).collect() });
        }
        let mut ensemble = Self { members, peers };
        ensemble.launch()?;
        Ok(ensemble)
    }

    /// The ensemble as a backend URL without options: `zk://` and the endpoints of all members.
    pub fn url(&self) -> String {
        let endpoints: Vec<_> = self.members.iter().map(ZooKeeper::endpoint).collect();
        format!("zk://{}", endpoints.join(","))
    }

    /// The member with this number, which is less than [`len`](Self::len).
    pub fn member(&self, number: usize) -> &ZooKeeper {
        &self.members[number]
    }

    /// The member with this number, to be killed or restarted.
    pub fn member_mut(&mut self, number: usize) -> &mut ZooKeeper {
        &mut self.members[number]
    }

    /// How many members there are.
    #[expect(clippy::len_without_is_empty, reason = "an ensemble has members")]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// The number of the leader, once there is one that says so itself.
    ///
    /// # Errors
    ///
    /// When there is none for a long time.
    pub fn leader(&self) -> Result<usize> {
        let started = Instant::now();
        loop {
            if let Some(leader) = self.current_leader() {
                return Ok(leader);
            }
            ensure!(started.elapsed() < LEADER_MAX, "the ZooKeeper ensemble has no leader");
            std::thread::sleep(LEADER_POLL);
        }
    }

    /// A member that follows the leader.
    ///
    /// # Errors
    ///
    /// As [`leader`](Self::leader).
    pub fn follower(&self) -> Result<usize> {
        Ok((self.leader()? + 1) % self.len())
    }

    /// Cuts a member from the others, in both directions: their connections are reset, and so are all new ones.
    /// Clients reach it as before, and hear that it serves no more. Until [`heal`](Self::heal).
    pub fn cut(&self, number: usize) {
        for peer in self.of(number) {
            peer.quorum.refuse();
            peer.election.refuse();
        }
    }

    /// From now on a member hears nothing of the others, nor they of it, while their connections stay open: until it
    /// notices, it goes on to serve its clients. Until [`heal`](Self::heal), which delivers all that was said.
    pub fn deafen(&self, number: usize) {
        for proxy in self.of(number).flat_map(|peer| [&peer.quorum, &peer.election]) {
            proxy.set(Direction::Requests, Flow::Hold);
            proxy.set(Direction::Replies, Flow::Hold);
        }
    }

    /// From now on this follower hears its leader so much later: its clients read what was true then. Until
    /// [`heal`](Self::heal).
    pub fn delay(&self, follower: usize, delay: Duration) {
        for peer in self.peers.iter().filter(|peer| peer.from == follower) {
            peer.quorum.set(Direction::Replies, Flow::Delay(delay));
        }
    }

    /// Lets all members reach each other.
    pub fn heal(&self) {
        for peer in &self.peers {
            peer.quorum.pass();
            peer.election.pass();
        }
    }

    /// Ends all members, loses all data, and starts them again with the same addresses.
    ///
    /// # Errors
    ///
    /// As [`ZooKeeper::wipe`].
    pub fn wipe(&mut self) -> Result<()> {
        self.members.iter_mut().try_for_each(|member| member.daemon.lose_data())?;
        self.launch()
    }

    fn launch(&mut self) -> Result<()> {
        // All first: none serves alone.
        self.members.iter_mut().try_for_each(ZooKeeper::launch)?;
        self.members.iter().try_for_each(ZooKeeper::wait_until_serving)
    }

    /// All ways from and to this member.
    fn of(&self, number: usize) -> impl Iterator<Item = &Peer> {
        self.peers.iter().filter(move |peer| peer.from == number || peer.to == number)
    }

    fn current_leader(&self) -> Option<usize> {
        let running = self.members.iter().enumerate().filter(|(_, member)| !member.daemon.is_silent());
        let known = running.filter_map(|(number, member)| Some((member.words().role().ok()?, number)));
        let leaders = known.filter(|(role, _)| role.mode == "leader");
        // One that was cut off may not know yet that its time is over: a later one has a higher epoch.
        leaders.max_by_key(|(role, _)| role.epoch).map(|(_, number)| number)
    }
}

impl Peer {
    /// `ports`: where the quorum and the election of `to` are.
    fn new(from: usize, to: usize, ports: [SocketAddr; 2]) -> Result<Self> {
        // A member has one address for all its ports.
        let address = own_address();
        let quorum = Proxy::start_at(address, ports[0], Speech::Quorum)?;
        let election = Proxy::start_at(address, ports[1], Speech::Election)?;
        Ok(Self { from, to, address, quorum, election })
    }

    /// The line of the configuration that tells `from` how to reach `to`.
    fn line(&self) -> String {
        let [quorum, election] = [&self.quorum, &self.election].map(|proxy| proxy.address().port());
        format!("server.{}={}:{quorum}:{election}", self.to, self.address)
    }
}
