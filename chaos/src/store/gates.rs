//! The proxies that clients reach servers through.

use anyhow::Result;
use lockkit_testbed::{Direction, Flow, Proxy, RedisCluster, RedisSentinels};

/// The way of clients to the servers, which can be disturbed.
pub(super) trait Gates {
    /// Cuts the client with this process off from all servers.
    fn cut_client(&self, pid: u32);

    fn heal_client(&self, pid: u32);

    /// From now on this happens to what clients and this server send each other.
    fn set(&self, server: usize, flow: Flow);
}

/// One proxy in front of each server.
#[derive(Debug)]
pub(super) struct Proxies(Vec<Proxy>);

impl Proxies {
    /// Opens proxies in front of these endpoints.
    pub(super) fn open(endpoints: impl IntoIterator<Item = String>) -> Result<Self> {
        Ok(Self(endpoints.into_iter().map(Proxy::start).collect::<Result<_>>()?))
    }

    /// The endpoints for clients, joined by commas.
    pub(super) fn endpoints(&self) -> String {
        self.0.iter().map(Proxy::endpoint).collect::<Vec<_>>().join(",")
    }
}

impl Gates for Proxies {
    fn cut_client(&self, pid: u32) {
        self.0.iter().for_each(|proxy| proxy.cut_off(pid));
    }

    fn heal_client(&self, pid: u32) {
        self.0.iter().for_each(|proxy| proxy.let_in(pid));
    }

    fn set(&self, server: usize, flow: Flow) {
        for direction in [Direction::Requests, Direction::Replies] {
            self.0[server].set(direction, flow);
        }
    }
}

/// Clients of these learn from the servers where the others are, so that the servers bring their proxies along.
macro_rules! gates_of_their_own {
    ($servers:ty) => {
        impl Gates for $servers {
            fn cut_client(&self, pid: u32) {
                self.cut_client(pid);
            }

            fn heal_client(&self, pid: u32) {
                self.heal_client(pid);
            }

            fn set(&self, server: usize, flow: Flow) {
                self.set_clients(server, flow);
            }
        }
    };
}

gates_of_their_own!(RedisSentinels);
gates_of_their_own!(RedisCluster);
