//! One Redis server, with a clock that can be stepped.

use std::time::Duration;

use anyhow::Result;
use lockkit_testbed::{Redis, Server, ServerClock};

use super::{
    StoreInfo,
    client_network::{ClientNetwork, Proxies},
    redis_residue,
    servers::{Servers, step},
};
use crate::fault::ServerFault;

#[derive(Debug)]
pub(super) struct RedisStore {
    proxies: Proxies,
    server: Redis,
    clock: ServerClock,
}

impl RedisStore {
    pub(super) fn start() -> Result<Self> {
        let clock = ServerClock::new()?;
        let server = Redis::start_on(&clock)?;
        Ok(Self { proxies: Proxies::open([server.endpoint()])?, server, clock })
    }
}

impl Servers for RedisStore {
    fn url(&self) -> String {
        format!("redis://{}", self.proxies.endpoints())
    }

    fn info(&self) -> StoreInfo {
        use ServerFault::{ClockBack, ClockForward};
        StoreInfo {
            servers: 1,
            has_leader: false,
            has_one_clock: false,
            has_queue: true,
            faults: vec![ClockForward(6_000), ClockBack(6_000)],
            failover: Duration::from_secs(2),
        }
    }

    fn server(&mut self, _number: usize) -> &mut dyn Server {
        &mut self.server
    }

    fn client_network(&self) -> &dyn ClientNetwork {
        &self.proxies
    }

    fn apply(&mut self, fault: ServerFault, _server: usize) -> Result<()> {
        step(&self.clock, fault)
    }

    fn residue(&self, locks: &[String]) -> Result<Vec<String>> {
        redis_residue(&self.server, locks)
    }
}
