//! An etcd cluster whose members can be cut from each other.

use std::time::Duration;

use anyhow::{Context, Result};

use super::{ETCD, Etcd, gateway::MemberStatus};
use crate::{Direction, Flow, Proxy, daemon::Daemon, wait::wait_for_leader};

/// Members of a cluster: it works without one of them.
const MEMBERS: usize = 3;

/// Longest time until the members agree on a leader.
const LEADER_MAX: Duration = Duration::from_secs(30);

/// An etcd cluster of three members, each on a loopback address of its own.
///
/// Members reach each other through proxies. So one can be [cut](Self::cut) from the others while its clients still
/// reach it.
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
        let members = (0..MEMBERS).map(|n| Etcd::prepare(&format!("m{n}"), Daemon::new(ETCD)?));
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

    /// Returns the cluster as a backend URL without options: `etcd://` and the endpoints of all members.
    pub fn url(&self) -> String {
        let endpoints: Vec<_> = self.members.iter().map(Etcd::endpoint).collect();
        format!("etcd://{}", endpoints.join(","))
    }

    /// Returns the member with this number, which is less than [`len`](Self::len).
    pub fn member(&self, number: usize) -> &Etcd {
        &self.members[number]
    }

    /// Returns the member with this number, to be killed or restarted.
    pub fn member_mut(&mut self, number: usize) -> &mut Etcd {
        &mut self.members[number]
    }

    /// Returns how many members there are.
    #[expect(clippy::len_without_is_empty, reason = "a cluster has members")]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Waits until a member reports itself as the leader, and returns its number.
    ///
    /// # Errors
    ///
    /// When there is no leader within 30 s.
    pub fn leader(&self) -> Result<usize> {
        wait_for_leader("the etcd cluster", LEADER_MAX, || self.current_leader())
    }

    /// Makes another member the leader, while all of them run. Returns the number of the new leader.
    ///
    /// # Errors
    ///
    /// When the leader or the other member does not answer, or refuses.
    pub fn move_leader(&self) -> Result<usize> {
        let leader = self.leader()?;
        let next = (leader + 1) % self.len();
        let id = self.members[next].gateway.status()?.member;
        self.members[leader].gateway.move_leader(id)?;
        Ok(next)
    }

    /// Cuts a running member from the others in both directions, until [`heal`](Self::heal). Clients still reach it.
    ///
    /// A restart of the member would undo one direction: its own connections are cut by its process id.
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

    /// Holds everything on the connections of the others to a member, until [`heal`](Self::heal) delivers it.
    ///
    /// All connections stay open. The others receive nothing from the member; it receives only what comes over its own
    /// connections to them.
    pub fn deafen(&self, number: usize) {
        self.set(number, Flow::Hold);
        // etcd posts its messages, over connections of its own, to a member that is just connecting to it. Each of
        // these requests names its sender's URL.
        for other in (0..self.len()).filter(|&other| other != number) {
            self.peers[other].hold_requests_from(&self.members[number].peer_url);
        }
    }

    /// Delays everything on the connections of the others to a member, until [`heal`](Self::heal).
    pub fn delay(&self, number: usize, delay: Duration) {
        self.set(number, Flow::Delay(delay));
    }

    /// Lets all members reach each other.
    pub fn heal(&self) {
        self.peers.iter().for_each(Proxy::pass);
    }

    /// Kills all members, deletes all data, and starts them again with the same addresses.
    ///
    /// # Errors
    ///
    /// As [`Etcd::wipe`].
    pub fn wipe(&mut self) -> Result<()> {
        self.members.iter_mut().try_for_each(Etcd::lose_data)?;
        self.launch()
    }

    /// Sets the flow of the connections of the others to a member, over which the member sends to them.
    fn set(&self, number: usize, flow: Flow) {
        for direction in [Direction::Requests, Direction::Replies] {
            self.peers[number].set(direction, flow);
        }
    }

    fn launch(&mut self) -> Result<()> {
        // Launch all before waiting for one: none is healthy alone.
        self.members.iter_mut().try_for_each(Etcd::launch)?;
        self.members.iter().try_for_each(Etcd::wait_until_healthy)
    }

    fn current_leader(&self) -> Option<usize> {
        let running = self.members.iter().enumerate().filter(|(_, member)| !member.daemon.is_silent());
        let statuses: Vec<(usize, MemberStatus)> =
            running.filter_map(|(number, member)| Some((number, member.gateway.status().ok()?))).collect();
        // A former leader that was cut off may still report itself: the latest term decides.
        let (_, latest) = statuses.iter().max_by_key(|(_, status)| status.term)?;
        statuses.iter().find(|(_, status)| status.member == latest.leader).map(|&(number, _)| number)
    }
}
