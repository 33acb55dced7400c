//! A Redis master and its replicas.

use anyhow::Result;

use super::{
    Redis,
    gate::Entrance,
    nodes::{endpoints, launch_all, wait_until},
};

/// Nodes: a master and two replicas.
const NODES: usize = 3;

/// A Redis master with two replicas, which nobody watches: a [promotion](Self::promote) is the test's.
///
/// A node that is restarted has the role again that it was started with: number 0 is the master.
///
/// ```no_run
/// let mut replicas = lockkit_testbed::RedisReplicas::start()?;
/// replicas.node(1).stop_replicating()?; // what is written from now on is not on node 1
/// replicas.node_mut(0).kill()?;
/// replicas.promote(1)?;
/// # anyhow::Ok(())
/// ```
#[derive(Debug)]
pub struct RedisReplicas {
    nodes: Vec<Redis>,
}

impl RedisReplicas {
    /// Starts the nodes and waits until the replicas have what the master has.
    ///
    /// # Errors
    ///
    /// As [`Redis::start`].
    pub fn start() -> Result<Self> {
        Self::start_at(Entrance::Direct)
    }

    pub(super) fn start_at(entrance: Entrance) -> Result<Self> {
        let master = Redis::prepare_at(entrance, &[])?;
        let (host, port) = master.place();
        let (host, port) = (host.to_string(), port.to_string());
        let mut nodes = vec![master];
        for _ in 1..NODES {
            nodes.push(Redis::prepare_at(entrance, &["--replicaof", &host, &port])?);
        }
        launch_all(&mut nodes)?;
        let replicas = Self { nodes };
        replicas.wait_until_in_sync(0)?;
        Ok(replicas)
    }

    /// All nodes as a backend URL without options: `redis://` and their endpoints.
    pub fn url(&self) -> String {
        format!("redis://{}", endpoints(&self.nodes))
    }

    /// The node with this number, which is less than [`len`](Self::len).
    pub fn node(&self, number: usize) -> &Redis {
        &self.nodes[number]
    }

    /// The node with this number, to be killed or restarted.
    pub fn node_mut(&mut self, number: usize) -> &mut Redis {
        &mut self.nodes[number]
    }

    /// All nodes, by their numbers.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// How many nodes there are.
    #[expect(clippy::len_without_is_empty, reason = "there are nodes")]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Makes a node the master, and the others that run its replicas; returns when it takes writes. The others learn
    /// it in the background, see [`wait_until_in_sync`](Self::wait_until_in_sync).
    ///
    /// # Errors
    ///
    /// When a node that runs does not answer.
    pub fn promote(&self, number: usize) -> Result<()> {
        let master = &self.nodes[number];
        master.cli(&["REPLICAOF", "NO", "ONE"])?;
        let (host, port) = master.place();
        let (host, port) = (host.to_string(), port.to_string());
        for (_, other) in self.running().filter(|&(other, _)| other != number) {
            other.cli(&["REPLICAOF", &host, &port])?;
        }
        Ok(())
    }

    /// Waits until the running nodes are this master and replicas of it that have all that it has now.
    ///
    /// # Errors
    ///
    /// When that does not come about.
    pub fn wait_until_in_sync(&self, master: usize) -> Result<()> {
        wait_until("all replicas are in sync with their master", || self.are_in_sync(master))
    }

    pub(super) fn are_in_sync(&self, master: usize) -> Result<bool> {
        let (host, port) = self.nodes[master].place();
        let place = [host.to_string(), port.to_string()];
        let written = self.nodes[master].info("replication")?;
        let mut in_sync = written.get("role") == Some("master");
        for (_, replica) in self.running().filter(|&(number, _)| number != master) {
            let heard = replica.info("replication")?;
            in_sync &= heard.get("master_link_status") == Some("up")
                && ["master_host", "master_port"].map(|part| heard.get(part))
                    == [Some(&*place[0]), Some(&*place[1])]
                && heard.number("slave_repl_offset") >= written.number("master_repl_offset");
        }
        Ok(in_sync)
    }

    /// The nodes that can be asked, with their numbers.
    pub(super) fn running(&self) -> impl Iterator<Item = (usize, &Redis)> {
        self.nodes.iter().enumerate().filter(|(_, node)| !node.is_silent())
    }
}
