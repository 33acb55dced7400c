//! A Redis master and its replicas.

use anyhow::Result;

use super::{
    Redis, ServerClock,
    front_proxies::Route,
    nodes::{endpoints, has_numbered_nodes, launch_all, running, wait_until},
};

/// Nodes: a master and two replicas.
const NODES: usize = 3;

/// A Redis master with two replicas, without Sentinels: only the test [promotes](Self::promote) a replica.
///
/// A restarted node returns to its first role: number 0 is the master.
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

has_numbered_nodes!(RedisReplicas);

impl RedisReplicas {
    /// Starts the nodes and waits until the replicas have what the master has.
    ///
    /// # Errors
    ///
    /// As [`Redis::start`].
    pub fn start() -> Result<Self> {
        Self::start_at(Route::Direct, None)
    }

    pub(super) fn start_at(route: Route, clock: Option<&ServerClock>) -> Result<Self> {
        let master = Redis::prepare_at(route, &[])?;
        let [host, port] = master.announced_address();
        let mut nodes = vec![master];
        for _ in 1..NODES {
            nodes.push(Redis::prepare_at(route, &["--replicaof", &host, &port])?);
        }
        if let Some(clock) = clock {
            nodes.iter_mut().try_for_each(|node| node.use_clock(clock))?;
        }
        launch_all(&mut nodes)?;
        let replicas = Self { nodes };
        replicas.wait_until_in_sync(0)?;
        Ok(replicas)
    }

    /// Returns all nodes as a backend URL without options: `redis://` and their endpoints.
    pub fn url(&self) -> String {
        format!("redis://{}", endpoints(&self.nodes))
    }

    /// Makes a node the master, and the other running nodes its replicas. Returns when the master takes writes; the
    /// replicas follow in the background, see [`wait_until_in_sync`](Self::wait_until_in_sync).
    ///
    /// # Errors
    ///
    /// When a node that runs does not answer.
    pub fn promote(&self, number: usize) -> Result<()> {
        let master = &self.nodes[number];
        master.cli(&["REPLICAOF", "NO", "ONE"])?;
        let [host, port] = master.announced_address();
        for (_, other) in running(&self.nodes).filter(|&(other, _)| other != number) {
            other.cli(&["REPLICAOF", &host, &port])?;
        }
        Ok(())
    }

    /// Waits until the running nodes are this master and replicas that have all its data.
    ///
    /// # Errors
    ///
    /// When they are not within three minutes.
    pub fn wait_until_in_sync(&self, master: usize) -> Result<()> {
        wait_until("all replicas are in sync with their master", || self.are_in_sync(master))
    }

    pub(super) fn are_in_sync(&self, master: usize) -> Result<bool> {
        let address = self.nodes[master].announced_address();
        let written = self.nodes[master].info("replication")?;
        let mut in_sync = written.get("role") == Some("master");
        for (_, replica) in running(&self.nodes).filter(|&(number, _)| number != master) {
            let received = replica.info("replication")?;
            in_sync &= received.get("master_link_status") == Some("up")
                && ["master_host", "master_port"].map(|part| received.get(part))
                    == address.each_ref().map(|part| Some(&**part))
                && received.number("slave_repl_offset") >= written.number("master_repl_offset");
        }
        Ok(in_sync)
    }
}
