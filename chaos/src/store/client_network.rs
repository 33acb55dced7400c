//! The proxies between clients and servers.

use anyhow::Result;
use lockkit_testbed::{BehindProxies, Direction, Flow, Proxy};

/// The network between clients and servers, which can be disturbed.
pub(super) trait ClientNetwork {
    /// Cuts the client with this process id off from all servers.
    fn cut_client(&self, pid: u32);

    fn heal_client(&self, pid: u32);

    /// Sets what happens to the traffic between clients and this server.
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

    /// Returns the endpoints for clients, joined by commas.
    pub(super) fn endpoints(&self) -> String {
        self.0.iter().map(Proxy::endpoint).collect::<Vec<_>>().join(",")
    }
}

impl ClientNetwork for Proxies {
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

/// Clients of these stores learn addresses from the servers, so the testbed puts proxies between them by itself.
impl<S: BehindProxies> ClientNetwork for S {
    fn cut_client(&self, pid: u32) {
        BehindProxies::cut_client(self, pid);
    }

    fn heal_client(&self, pid: u32) {
        BehindProxies::heal_client(self, pid);
    }

    fn set(&self, server: usize, flow: Flow) {
        self.set_clients(server, flow);
    }
}
