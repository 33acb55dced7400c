//! An etcd cluster whose members can be cut from each other.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::{Direction, Etcd, Flow, Proxy, daemon::Daemon, gateway::MemberStatus};

/// Members of a cluster: one may be missing.
const MEMBERS: usize = 3;

/// Longest time until the members agree on a leader.
const LEADER_MAX: Duration = Duration::from_secs(30);

/// Pause between two looks at it.
const LEADER_POLL: Duration = Duration::from_millis(20);

/// An etcd cluster of three members, each on a loopback address of its own.
///
/// Members reach each other through proxies, so that one can be [cut](Self::cut) from the others while its clients
/// still reach it.
///
/// ```no_run
/// let mut cluster = lockkit_testbed::EtcdCluster::start()?;
/// let leader = cluster.leader()?;
/// cluster.member_mut(leader).kill()?; // also pause, resume, restart
/// assert_ne!(cluster.leader()?, leader);
/// # anyhow::Ok(())
/// ```
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Etcd>,
    /// In front of the peer port of each member.
    peers: Vec<Proxy>,
}

impl EtcdCluster {
    /// Starts a cluster and waits until all its members are healthy.
    ///
    /// # Errors
    ///
    /// As [`Etcd::start`].
    pub fn start() -> Result<Self> {
        let members = (0..MEMBERS).map(|n| Etcd::prepare(&format!("m{n}"), Daemon::new("etcd")?));
        let mut members = members.collect::<Result<Vec<_>>>()?;
        let peers = members.iter().map(|member| Proxy::start(member.peer_endpoint()));
        let peers = peers.collect::<Result<Vec<_>>>()?;
        let urls: Vec<_> = peers.iter().map(|peer| format!("http://{}", peer.endpoint())).collect();
        let all: Vec<_> = urls.iter().enumerate().map(|(n, url)| format!("m{n}={url}")).collect();
        for (member, url) in members.iter_mut().zip(urls) {
            (member.peer_url, member.initial_cluster) = (url, all.join(","));
        }
        let mut cluster = Self { members, peers };
        cluster.launch()?;
        Ok(cluster)
    }

    /// The cluster as a backend URL without options: `etcd://` and the endpoints of all members.
    pub fn url(&self) -> String {
        let endpoints: Vec<_> = self.members.iter().map(Etcd::endpoint).collect();
        format!("etcd://{}", endpoints.join(","))
    }

    /// The member with this number, which is less than [`len`](Self::len).
    pub fn member(&self, number: usize) -> &Etcd {
        &self.members[number]
    }

    /// The member with this number, to be killed or restarted.
    pub fn member_mut(&mut self, number: usize) -> &mut Etcd {
        &mut self.members[number]
    }

    /// How many members there are.
    #[expect(clippy::len_without_is_empty, reason = "a cluster has members")]
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
            ensure!(started.elapsed() < LEADER_MAX, "the etcd cluster has no leader");
            std::thread::sleep(LEADER_POLL);
        }
    }

    /// Makes another member the leader, while all of them run; the number of the new leader.
    ///
    /// # Errors
    ///
    /// When the leader or the other member does not answer, or refuses.
    pub fn move_leader(&self) -> Result<usize> {
        let leader = self.leader()?;
        let next = (leader + 1) % self.len();
        let id = self.members[next].gateway().status()?.member;
        self.members[leader].gateway().move_leader(id)?;
        Ok(next)
    }

    /// Cuts a running member from the others, in both directions; clients reach it as before. Until
    /// [`heal`](Self::heal); a restart of the member would undo half of it.
    ///
    /// # Errors
    ///
    /// When the member is not running.
    pub fn cut(&self, number: usize) -> Result<()> {
        let pid = self.members[number].pid().context("the member is not running")?;
        for (peer, proxy) in self.peers.iter().enumerate() {
            if peer == number { proxy.refuse() } else { proxy.cut_off(pid) }
        }
        Ok(())
    }

    /// From now on a member is not heard by the others, and hears of them only what comes over its own connections to
    /// them; all connections stay open. Until [`heal`](Self::heal), which delivers all that was said.
    pub fn deafen(&self, number: usize) {
        self.set(number, Flow::Hold);
    }

    /// From now on the others hear a member so much later. Until [`heal`](Self::heal).
    pub fn delay(&self, number: usize, delay: Duration) {
        self.set(number, Flow::Delay(delay));
    }

    /// Lets all members reach each other.
    pub fn heal(&self) {
        self.peers.iter().for_each(Proxy::pass);
    }

    /// Ends all members, loses all data, and starts them again with the same addresses.
    ///
    /// # Errors
    ///
    /// As [`Etcd::wipe`].
    pub fn wipe(&mut self) -> Result<()> {
        self.members.iter_mut().try_for_each(Etcd::lose_data)?;
        self.launch()
    }

    /// What happens to the connections of the others to a member: over these it speaks to them.
    fn set(&self, number: usize, flow: Flow) {
        for direction in [Direction::Requests, Direction::Replies] {
            self.peers[number].set(direction, flow);
        }
    }

    fn launch(&mut self) -> Result<()> {
        // All first: none is healthy alone.
        self.members.iter_mut().try_for_each(Etcd::launch)?;
        self.members.iter().try_for_each(Etcd::wait_until_healthy)
    }

    fn current_leader(&self) -> Option<usize> {
        let running = self.members.iter().enumerate().filter(|(_, member)| !member.is_silent());
        let known: Vec<(usize, MemberStatus)> =
            running.filter_map(|(number, member)| Some((number, member.gateway().status().ok()?))).collect();
        // One that was cut off may not know yet that its time is over.
        let (_, latest) = known.iter().max_by_key(|(_, status)| status.term)?;
        known.iter().find(|(_, status)| status.member == latest.leader).map(|&(number, _)| number)
    }
}
