//! Three independent Redis servers, each with a clock of its own.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lockkit::backend::BackendUrl;
use lockkit_testbed::{RedisMasters, Server, ServerClock};

use super::{
    StoreInfo,
    client_network::{ClientNetwork, Proxies},
    redis_residue,
    servers::{Servers, step},
};
use crate::fault::ServerFault;

const NODES: usize = 3;

/// How long a node does not count after it has lost its data.
const MAX_TTL_S: u64 = 5;

/// What a node knows of itself.
const NODE: &str = "lockkit:redlock";

/// Reads the marker of a node, which begins with `ready` if the node counts.
const MARKER: [&str; 3] = ["HGET", NODE, "marker"];

/// Longest time until every node counts: a client waits for `max_ttl`, and starts again if that fails.
const SETTLE_MAX: Duration = Duration::from_secs(120);

const SETTLE_POLL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct RedlockStore {
    proxies: Proxies,
    nodes: RedisMasters,
    clocks: Vec<ServerClock>,
}

impl RedlockStore {
    pub(super) fn start() -> Result<Self> {
        let clocks = (0..NODES).map(|_| ServerClock::new()).collect::<Result<Vec<_>>>()?;
        let nodes = RedisMasters::start_on(&clocks)?;
        let proxies = Proxies::open((0..NODES).map(|number| nodes.node(number).endpoint()))?;
        let store = Self { proxies, nodes, clocks };
        let config = lockkit::redis::RedlockConfig::from_url(BackendUrl::parse(&Servers::url(&store))?)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(lockkit::redis::init(&config))?;
        Ok(store)
    }
}

impl Servers for RedlockStore {
    fn url(&self) -> String {
        format!("redlock://{}/?max_ttl={MAX_TTL_S}s", self.proxies.endpoints())
    }

    fn info(&self) -> StoreInfo {
        use ServerFault::{ClockBack, ClockForward, Wipe};
        StoreInfo {
            servers: NODES,
            has_leader: false,
            has_one_clock: false,
            has_queue: false,
            faults: vec![ClockForward(6_000), ClockBack(6_000), Wipe],
            failover: Duration::from_secs(2),
        }
    }

    fn server(&mut self, number: usize) -> &mut dyn Server {
        self.nodes.node_mut(number)
    }

    fn client_network(&self) -> &dyn ClientNetwork {
        &self.proxies
    }

    fn apply(&mut self, fault: ServerFault, server: usize) -> Result<()> {
        match fault {
            ServerFault::Wipe => self.nodes.node_mut(server).wipe(),
            other => step(&self.clocks[server], other),
        }
    }

    /// Waits until every node counts: a second one must not lose its data before.
    fn settle(&mut self) -> Result<()> {
        let start = Instant::now();
        for number in 0..NODES {
            loop {
                let marker = self.nodes.node(number).cli(&MARKER);
                if marker.as_ref().is_ok_and(|marker| marker.text().starts_with("ready ")) {
                    break;
                }
                ensure!(start.elapsed() < SETTLE_MAX, "node {number} still does not count: {marker:?}");
                std::thread::sleep(SETTLE_POLL);
            }
        }
        Ok(())
    }

    /// The marker of a node remains too.
    fn residue(&self, locks: &[String]) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for number in 0..NODES {
            let node = self.nodes.node(number);
            let keys = redis_residue(node, locks).with_context(|| format!("node {number}"))?;
            found.extend(keys.iter().filter(|key| *key != NODE).map(|key| format!("{key} at node {number}")));
        }
        Ok(found)
    }
}
