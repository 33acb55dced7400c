//! Three independent Redis servers, each on a clock of its own.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lockkit::backend::BackendUrl;
use lockkit_testbed::{RedisMasters, ServerClock};

use super::{
    Menu,
    gates::{Gates, Proxies},
    redis_residue,
    servers::{Server, Servers, step},
};
use crate::fault::ServerFault;

const NODES: usize = 3;

/// A node that has lost its data does not count for so long.
const MAX_TTL_S: u64 = 5;

/// What a node says of itself: begins with `ready` where it counts.
const MARKER: [&str; 3] = ["HGET", "lockkit:redlock", "marker"];

/// Longest time until every node counts: a client waits for `max_ttl`, and begins anew should that fail.
const SETTLE_MAX: Duration = Duration::from_secs(120);

const SETTLE_POLL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct RedlockStore {
    gates: Proxies,
    nodes: RedisMasters,
    clocks: Vec<ServerClock>,
}

impl RedlockStore {
    pub(super) fn start() -> Result<Self> {
        let clocks = (0..NODES).map(|_| ServerClock::new()).collect::<Result<Vec<_>>>()?;
        let nodes = RedisMasters::start_on(&clocks)?;
        let gates = Proxies::open((0..NODES).map(|number| nodes.node(number).endpoint()))?;
        let store = Self { gates, nodes, clocks };
        let config = lockkit::redis::RedlockConfig::from_url(BackendUrl::parse(&Servers::url(&store))?)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(lockkit::redis::init(&config))?;
        Ok(store)
    }
}

impl Servers for RedlockStore {
    fn url(&self) -> String {
        format!("redlock://{}/?max_ttl={MAX_TTL_S}s", self.gates.endpoints())
    }

    fn menu(&self) -> Menu {
        use ServerFault::{ClockBack, ClockForward, Wipe};
        Menu {
            members: NODES,
            has_leader: false,
            has_queue: false,
            faults: vec![ClockForward(6_000), ClockBack(6_000), Wipe],
            failover: Duration::from_secs(2),
        }
    }

    fn server(&mut self, number: usize) -> &mut dyn Server {
        self.nodes.node_mut(number)
    }

    fn gates(&self) -> &dyn Gates {
        &self.gates
    }

    fn inflict(&mut self, fault: ServerFault, server: usize) -> Result<()> {
        match fault {
            ServerFault::Wipe => self.nodes.node_mut(server).wipe(),
            other => step(&self.clocks[server], other),
        }
    }

    /// A second node must not lose its data while the first one does not count.
    fn settle(&mut self) -> Result<()> {
        let start = Instant::now();
        for number in 0..NODES {
            loop {
                let marker = self.nodes.node(number).cli(&MARKER);
                if marker.as_ref().is_ok_and(|marker| marker.text().starts_with("ready ")) {
                    break;
                }
                ensure!(start.elapsed() < SETTLE_MAX, "node {number} does not count again: {marker:?}");
                std::thread::sleep(SETTLE_POLL);
            }
        }
        Ok(())
    }

    fn residue(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for number in 0..NODES {
            let node = self.nodes.node(number);
            for key in redis_residue(node).with_context(|| format!("node {number}"))? {
                // A request came late, when its claim had ended: the lock has a ttl, but its metadata stay as long as the
                // counter does, or until the next claim (docs/guarantees.md, Redlock).
                let of_one_claim =
                    key.ends_with(":metadata") && node.cli(&["HLEN", &key])?.number() <= Some(2);
                if !of_one_claim {
                    found.push(format!("{key} at node {number}"));
                }
            }
        }
        Ok(found)
    }
}
