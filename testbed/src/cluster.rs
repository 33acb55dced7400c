//! What servers, and clusters of them, have in common.

use std::{fmt::Debug, ops::DerefMut, time::Duration};

use anyhow::Result;

use crate::{Daemon, Etcd, Redis, ZooKeeper, wait::wait_for_leader};

/// Members of a cluster: it works without one of them.
pub(crate) const MEMBERS: usize = 3;

/// Longest time until the members agree on a leader.
const LEADER_MAX: Duration = Duration::from_secs(120);

/// A server process that can be killed and started again.
pub trait Server: DerefMut<Target = Daemon> {
    /// Starts the server again, with its data and at the same address.
    ///
    /// # Errors
    ///
    /// When the server does not start.
    fn restart(&mut self) -> Result<()>;

    /// Returns host and port for clients.
    fn endpoint(&self) -> String;
}

macro_rules! impl_server {
    ($($server:ty),*) => {$(
        impl Server for $server {
            fn restart(&mut self) -> Result<()> {
                self.restart()
            }

            fn endpoint(&self) -> String {
                self.endpoint()
            }
        }
    )*};
}

impl_server!(Etcd, Redis, ZooKeeper);

/// What the members of a [`Cluster`] do each in their own way.
pub trait Member: Server + Debug + Send + Sized + 'static {
    /// The proxies through which members reach each other.
    type Peers: Debug + Send;

    /// The scheme of backend URLs.
    const SCHEME: &'static str;

    /// Starts the process, and does not wait for it.
    ///
    /// # Errors
    ///
    /// When it does not start.
    fn launch(&mut self) -> Result<()>;

    /// Waits until the member serves, which needs a majority of the others.
    ///
    /// # Errors
    ///
    /// When it does not serve for a long time.
    fn wait_until_ready(&self) -> Result<()>;

    /// Returns the number of the member that reports itself as the leader.
    fn leader_of(members: &[Self]) -> Option<usize>;

    /// See [`Cluster::cut`].
    ///
    /// # Errors
    ///
    /// When the member is not running.
    fn cut(cluster: &Cluster<Self>, number: usize) -> Result<()>;

    /// See [`Cluster::deafen`].
    fn deafen(cluster: &Cluster<Self>, number: usize);

    /// See [`Cluster::delay`].
    fn delay(cluster: &Cluster<Self>, number: usize, delay: Duration);

    /// See [`Cluster::heal`].
    fn heal(cluster: &Cluster<Self>);
}

/// Three members with one leader, each on a loopback address of its own.
///
/// Members reach each other through proxies. So one can be [cut](Self::cut) from the others, or
/// [receive nothing](Self::deafen) from them, while its clients still reach it.
///
/// ```no_run
/// let mut cluster = lockkit_testbed::EtcdCluster::start()?; // also ZooKeeperEnsemble
/// let leader = cluster.leader()?;
/// cluster.member_mut(leader).kill()?; // also pause, resume, restart
/// assert_ne!(cluster.leader()?, leader);
/// # anyhow::Ok(())
/// ```
#[derive(Debug)]
pub struct Cluster<M: Member> {
    pub(crate) members: Vec<M>,
    pub(crate) peers: M::Peers,
}

impl<M: Member> Cluster<M> {
    /// Starts all members, and waits until they serve.
    pub(crate) fn launch(members: Vec<M>, peers: M::Peers) -> Result<Self> {
        let mut cluster = Self { members, peers };
        // Launch all before waiting for one: none serves alone.
        cluster.members.iter_mut().try_for_each(M::launch)?;
        cluster.members.iter().try_for_each(M::wait_until_ready)?;
        Ok(cluster)
    }

    /// Returns the cluster as a backend URL without options: the scheme and the endpoints of all members.
    pub fn url(&self) -> String {
        let endpoints: Vec<_> = self.members.iter().map(M::endpoint).collect();
        format!("{}://{}", M::SCHEME, endpoints.join(","))
    }

    /// Returns the member with this number, which is less than [`len`](Self::len).
    pub fn member(&self, number: usize) -> &M {
        &self.members[number]
    }

    /// Returns the member with this number, to be killed or restarted.
    pub fn member_mut(&mut self, number: usize) -> &mut M {
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
    /// When there is no leader within two minutes.
    pub fn leader(&self) -> Result<usize> {
        wait_for_leader(&format!("the cluster {}", self.url()), LEADER_MAX, || M::leader_of(&self.members))
    }

    /// Returns the number of a member that follows the leader.
    ///
    /// # Errors
    ///
    /// As [`leader`](Self::leader).
    pub fn follower(&self) -> Result<usize> {
        Ok((self.leader()? + 1) % self.len())
    }

    /// Cuts a running member from the others in both directions, until [`heal`](Self::heal). Clients still reach it.
    ///
    /// # Errors
    ///
    /// When the member is not running.
    pub fn cut(&self, number: usize) -> Result<()> {
        M::cut(self, number)
    }

    /// Holds what the others send to a member, or both send, until [`heal`](Self::heal) delivers it. Connections stay
    /// open.
    pub fn deafen(&self, number: usize) {
        M::deafen(self, number);
    }

    /// Delays what the others, or a leader, send to a member, until [`heal`](Self::heal).
    pub fn delay(&self, number: usize, delay: Duration) {
        M::delay(self, number, delay);
    }

    /// Lets all members reach each other.
    pub fn heal(&self) {
        M::heal(self);
    }
}
