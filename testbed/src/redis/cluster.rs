//! A Redis Cluster.

use std::ops::RangeInclusive;

use anyhow::{Context, Result};

use super::{
    Migration, Redis, ServerClock,
    front_proxies::{BehindProxies, FrontProxies, Route},
    nodes::{endpoints, has_numbered_nodes, running, wait_for, wait_until},
};
use crate::address::free_ports;

/// Nodes that own slots at the start; each has one replica.
const MASTERS: usize = 3;
const NODES: usize = 2 * MASTERS;

/// Hash slots of a cluster.
const SLOTS: usize = 16_384;

/// A node that is silent for this time counts as down, in milliseconds: short for tests, long enough for a busy
/// machine.
const NODE_TIMEOUT_MS: &str = "5000";

/// How often a member is started, each time with other ports, if another process takes its ports before it binds them.
const STARTS_MAX: usize = 5;

/// What such a server logs before it exits.
const PORT_TAKEN: &str = "Failed listening on port";

/// A Redis Cluster of three masters and three replicas. At the start the nodes 0 to 2 are the masters, and node `n + 3`
/// is the replica of node `n`.
///
/// ```no_run
/// let mut cluster = lockkit_testbed::RedisCluster::start()?;
/// let owner = cluster.owner(cluster.slot("k")?)?;
/// cluster.node_mut(owner).kill()?; // also pause, restart
/// cluster.wait_until_master(owner + 3)?;
/// # anyhow::Ok(())
/// ```
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
    /// The ids of the nodes.
    ids: Vec<String>,
}

has_numbered_nodes!(RedisCluster);

/// What a node reports of itself.
#[derive(Debug)]
struct MemberReport {
    epoch: u64,
    slots: Vec<RangeInclusive<usize>>,
}

impl RedisCluster {
    /// Starts a cluster, and waits until all nodes report that all slots are served.
    ///
    /// # Errors
    ///
    /// As [`Redis::start`].
    pub fn start() -> Result<Self> {
        Self::start_at(Route::Direct, None)
    }

    /// As [`start`](Self::start), with proxies in front of each node, as [`BehindProxies`] needs them. All nodes are on
    /// this wall clock.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_behind_proxies(clock: &ServerClock) -> Result<Self> {
        Self::start_at(Route::Proxied, Some(clock))
    }

    fn start_at(route: Route, clock: Option<&ServerClock>) -> Result<Self> {
        // Launch all before waiting for one: they start at the same time.
        let members = (0..NODES).map(|_| Redis::launch_member(route, clock)).collect::<Result<Vec<_>>>()?;
        let members =
            members.into_iter().map(|member| wait_for_member(member, clock)).collect::<Result<Vec<_>>>()?;
        let (nodes, bus_ports): (Vec<_>, Vec<_>) = members.into_iter().unzip();
        let ids = nodes.iter().map(|node| Ok(node.cli(&["CLUSTER", "MYID"])?.text().to_owned()));
        let ids = ids.collect::<Result<_>>()?;
        let cluster = Self { nodes, ids };
        cluster.spread_slots()?;
        cluster.introduce(&bus_ports)?;
        cluster.assign_replicas()?;
        Ok(cluster)
    }

    /// Returns the cluster as a backend URL without options: `redis+cluster://` and the endpoints of all nodes.
    pub fn url(&self) -> String {
        format!("redis+cluster://{}", endpoints(&self.nodes))
    }

    /// Returns the slot of a key.
    ///
    /// # Errors
    ///
    /// When no node answers.
    pub fn slot(&self, key: &str) -> Result<usize> {
        let (_, node) = running(&self.nodes).next().context("no node runs")?;
        let slot = node.cli(&["CLUSTER", "KEYSLOT", key])?.number();
        Ok(usize::try_from(slot.context("CLUSTER KEYSLOT returned no number")?)?)
    }

    /// Waits until a running node reports that it owns this slot, and returns its number.
    ///
    /// # Errors
    ///
    /// When there is none within three minutes.
    pub fn owner(&self, slot: usize) -> Result<usize> {
        wait_for("a node owns the slot", || self.owner_now(slot))
    }

    /// Begins to migrate a slot. Its keys stay on the source for now.
    ///
    /// # Errors
    ///
    /// When a node does not answer, or `to` owns the slot already.
    pub fn migrate(&self, slot: usize, to: usize) -> Result<Migration<'_>> {
        Migration::begin(self, slot, self.owner(slot)?, to)
    }

    /// Makes a replica take over from its master, and waits until it has. If it [does not
    /// replicate](Redis::stop_replicating), it takes over without the latest writes.
    ///
    /// # Errors
    ///
    /// When the node is not a replica, or most masters are down.
    pub fn failover(&self, replica: usize) -> Result<()> {
        let node = &self.nodes[replica];
        let words = ["CLUSTER", "FAILOVER", "FORCE"];
        node.cli(if node.is_replicating()? { &words[..2] } else { &words })?;
        self.wait_until_master(replica)
    }

    /// Waits until a replica has all data that its master has now.
    ///
    /// # Errors
    ///
    /// When it has not within three minutes.
    pub fn wait_until_in_sync(&self, master: usize, replica: usize) -> Result<()> {
        let written = self.nodes[master].info("replication")?.number("master_repl_offset");
        wait_until("the replica has what its master has", || {
            Ok(self.nodes[replica].info("replication")?.number("slave_repl_offset") >= written)
        })
    }

    /// Waits until this node is a master, and all running nodes report that all slots are served.
    ///
    /// # Errors
    ///
    /// When it is not within three minutes.
    pub fn wait_until_master(&self, number: usize) -> Result<()> {
        wait_until("the replica is the master", || self.nodes[number].is_master())?;
        self.wait_until_healthy()
    }

    /// Waits until all running nodes report that all slots are served.
    ///
    /// # Errors
    ///
    /// When they do not within three minutes.
    pub fn wait_until_healthy(&self) -> Result<()> {
        wait_until("all slots are served", || {
            self.each_running(|node| Ok(node.cli(&["CLUSTER", "INFO"])?.text().contains("cluster_state:ok")))
        })
    }

    /// The id of a node.
    pub(super) fn id(&self, number: usize) -> &str {
        &self.ids[number]
    }

    fn each_running(&self, condition: impl Fn(&Redis) -> Result<bool>) -> Result<bool> {
        for (_, node) in running(&self.nodes) {
            if !condition(node)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Assigns the slots to the masters. Each node gets its own first epoch, because nodes with equal epochs would have
    /// to resolve the conflict first.
    fn spread_slots(&self) -> Result<()> {
        for (number, node) in self.nodes.iter().enumerate() {
            node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()])?;
        }
        for (number, master) in self.nodes[..MASTERS].iter().enumerate() {
            let start = SLOTS * number / MASTERS;
            let end = SLOTS * (number + 1) / MASTERS - 1;
            master.cli(&["CLUSTER", "ADDSLOTSRANGE", &start.to_string(), &end.to_string()])?;
        }
        Ok(())
    }

    /// Introduces every node to every other. Gossip would do it, too, but takes longer.
    fn introduce(&self, bus_ports: &[u16]) -> Result<()> {
        for (number, node) in self.nodes.iter().enumerate() {
            for (other, bus_port) in self.nodes.iter().zip(bus_ports).take(number) {
                let [host, port] = other.announced_address();
                node.cli(&["CLUSTER", "MEET", &host, &port, &bus_port.to_string()])?;
            }
        }
        wait_until("all nodes know each other", || {
            self.each_running(|node| {
                let known = node.cli(&["CLUSTER", "NODES"])?;
                Ok(self.ids.iter().all(|id| known.text().contains(&**id))
                    && !known.text().contains("handshake"))
            })
        })
    }

    fn assign_replicas(&self) -> Result<()> {
        for (number, replica) in self.nodes[MASTERS..].iter().enumerate() {
            replica.cli(&["CLUSTER", "REPLICATE", &self.ids[number]])?;
        }
        wait_until("the replicas replicate", || {
            let are_known = self.each_running(|node| {
                Ok(node.cli(&["CLUSTER", "NODES"])?.text().matches("slave").count() == MASTERS)
            })?;
            let mut replicate = true;
            for replica in &self.nodes[MASTERS..] {
                replicate &= replica.is_replicating()?;
            }
            Ok(are_known && replicate)
        })?;
        self.wait_until_healthy()
    }

    fn owner_now(&self, slot: usize) -> Result<Option<usize>> {
        let mut owner = None;
        for (number, node) in running(&self.nodes) {
            let member = MemberReport::of(node)?;
            // A former owner that was cut off may still report the slot: the latest epoch decides.
            if member.slots.iter().any(|slots| slots.contains(&slot)) {
                owner = owner.max(Some((member.epoch, number)));
            }
        }
        Ok(owner.map(|(_, number)| number))
    }
}

impl BehindProxies for RedisCluster {
    fn servers(&self) -> Vec<&Redis> {
        self.nodes.iter().collect()
    }
}

impl MemberReport {
    /// Parses lines such as `ID 127.3.9.1:40001@40002 myself,master - 0 0 1 connected 0-5460 [93-<-ID]`.
    fn of(node: &Redis) -> Result<Self> {
        let nodes = node.cli(&["CLUSTER", "NODES"])?;
        let own = nodes
            .text()
            .lines()
            .find(|line| line.contains("myself"))
            .context("the node is not in a cluster")?;
        let fields: Vec<&str> = own.split(' ').collect();
        let epoch =
            fields.get(6).and_then(|epoch| epoch.parse().ok()).context("the node reports no epoch")?;
        let is_master = fields.get(2).is_some_and(|flags| flags.contains("master"));
        let slots = fields.iter().skip(8).filter(|_| is_master).filter_map(|slots| range(slots)).collect();
        Ok(Self { epoch, slots })
    }
}

fn range(slots: &str) -> Option<RangeInclusive<usize>> {
    let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// Waits until a member answers. If its port was taken, starts another member in its place.
fn wait_for_member(mut member: (Redis, u16), clock: Option<&ServerClock>) -> Result<(Redis, u16)> {
    let mut starts = 1;
    loop {
        match member.0.wait_until_up() {
            Ok(()) => return Ok(member),
            Err(error) if starts < STARTS_MAX && error.to_string().contains(PORT_TAKEN) => {
                member = Redis::launch_member(member.0.route(), clock)?;
                starts += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

impl Redis {
    /// Launches a member; returns it with its port for the other members.
    fn launch_member(route: Route, clock: Option<&ServerClock>) -> Result<(Self, u16)> {
        let (mut node, bus_port) = Self::prepare_member(route)?;
        if let Some(clock) = clock {
            node.use_clock(clock)?;
        }
        node.launch()?;
        Ok((node, bus_port))
    }

    /// Prepares a member that is not started yet; returns it with its port for the other members.
    fn prepare_member(route: Route) -> Result<(Self, u16)> {
        let mut member =
            Self::prepare(&["--cluster-enabled", "yes", "--cluster-node-timeout", NODE_TIMEOUT_MS])?;
        let [port, own_bus_port] = free_ports(member.address)?;
        member.port = port;
        let mut bus_port = own_bus_port;
        if route == Route::Proxied {
            let front = FrontProxies::open(member.address, port, Some(own_bus_port))?;
            bus_port = front.bus_port().unwrap_or(own_bus_port);
            member.front = Some(front);
            let own = ["--bind-source-addr".to_owned(), member.address.to_string()];
            member.extra_arguments.extend(own);
        }
        let [host, port] = member.announced_address();
        let (own_bus, bus) = (own_bus_port.to_string(), bus_port.to_string());
        let more = [
            ["--cluster-port", &own_bus],
            ["--cluster-announce-ip", &host],
            ["--cluster-announce-port", &port],
            ["--cluster-announce-bus-port", &bus],
            // A replica is promoted however stale it is, and never moves to another master.
            ["--cluster-replica-validity-factor", "0"],
            ["--cluster-allow-replica-migration", "no"],
        ];
        member.extra_arguments.extend(more.as_flattened().iter().map(|&word| word.to_owned()));
        Ok((member, bus_port))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn member_whose_port_is_taken_is_replaced() {
        let (mut node, bus_port) = Redis::prepare_member(Route::Direct).unwrap();
        let (_taken, endpoint) = (TcpListener::bind((node.address, bus_port)).unwrap(), node.endpoint());
        node.launch().unwrap();
        let (node, _) = wait_for_member((node, bus_port), None).unwrap();
        assert_ne!(node.endpoint(), endpoint);
        assert!(node.cli(&["CLUSTER", "MYID"]).is_ok());
    }
}
