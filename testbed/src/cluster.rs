//! What clusters of any server have in common.

use std::{ops::DerefMut, time::Duration};

use anyhow::Result;

use crate::{Daemon, Etcd, EtcdCluster, Redis, ZooKeeper, ZooKeeperEnsemble};

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

/// Members with one leader, which can be cut from each other while their clients still reach them. The methods of the
/// types say what exactly they do.
#[expect(clippy::len_without_is_empty, reason = "a cluster has members")]
pub trait Cluster: Send + 'static {
    /// The server of one member.
    type Member: Server;

    /// Returns how many members there are.
    fn len(&self) -> usize;

    /// Returns the member with this number, which is less than [`len`](Self::len).
    fn member(&self, number: usize) -> &Self::Member;

    /// Returns the member with this number, to be killed or restarted.
    fn member_mut(&mut self, number: usize) -> &mut Self::Member;

    /// Waits until there is a leader, and returns its number.
    ///
    /// # Errors
    ///
    /// When there is none for a long time.
    fn leader(&self) -> Result<usize>;

    /// Cuts a member from the others in both directions, until [`heal`](Self::heal).
    ///
    /// # Errors
    ///
    /// When the member is not running.
    fn cut(&self, number: usize) -> Result<()>;

    /// Holds what the others send to a member, or both send, until [`heal`](Self::heal) delivers it.
    fn deafen(&self, number: usize);

    /// Delays what the others send to a member, until [`heal`](Self::heal).
    fn delay(&self, number: usize, delay: Duration);

    /// Lets all members reach each other.
    fn heal(&self);
}

macro_rules! impl_cluster {
    ($cluster:ty, $member:ty, $cut:expr) => {
        impl Cluster for $cluster {
            type Member = $member;

            fn len(&self) -> usize {
                self.len()
            }

            fn member(&self, number: usize) -> &$member {
                self.member(number)
            }

            fn member_mut(&mut self, number: usize) -> &mut $member {
                self.member_mut(number)
            }

            fn leader(&self) -> Result<usize> {
                self.leader()
            }

            fn cut(&self, number: usize) -> Result<()> {
                $cut(self, number)
            }

            fn deafen(&self, number: usize) {
                self.deafen(number);
            }

            fn delay(&self, number: usize, delay: Duration) {
                self.delay(number, delay);
            }

            fn heal(&self) {
                self.heal();
            }
        }
    };
}

impl_cluster!(EtcdCluster, Etcd, EtcdCluster::cut);
impl_cluster!(ZooKeeperEnsemble, ZooKeeper, |ensemble: &ZooKeeperEnsemble, number| {
    ensemble.cut(number);
    Ok(())
});
