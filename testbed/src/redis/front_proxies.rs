//! Proxies in front of the servers of a group, so that any server and any client can be cut off.
//!
//! Clients learn the addresses of these servers from the servers and Sentinels, so a client cannot have its own proxy.
//! Each server has one for all clients, and announces the proxy's address as its own. A client is recognised by the
//! process that owns its connection, a server by its source address.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;

use super::Redis;
use crate::{Direction, Flow, Proxy, address::own_address, proxy::Protocol};

/// How others reach a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Direct,
    Proxied,
}

/// The proxies in front of a server. They share an address, because a server announces only one.
#[derive(Debug)]
pub(super) struct FrontProxies {
    address: Ipv4Addr,
    /// For clients, replicas and Sentinels.
    data: Proxy,
    /// For the other nodes of a cluster.
    bus: Option<Proxy>,
}

impl FrontProxies {
    /// Starts proxies in front of these ports of a server.
    pub(super) fn open(server: Ipv4Addr, port: u16, bus_port: Option<u16>) -> Result<Self> {
        let address = own_address();
        let proxy = |port| Proxy::start_at(address, format!("{server}:{port}"), Protocol::Any);
        Ok(Self { address, data: proxy(port)?, bus: bus_port.map(proxy).transpose()? })
    }

    pub(super) fn address(&self) -> Ipv4Addr {
        self.address
    }

    pub(super) fn port(&self) -> u16 {
        self.data.address().port()
    }

    pub(super) fn bus_port(&self) -> Option<u16> {
        self.bus.as_ref().map(|bus| bus.address().port())
    }

    fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        [&self.data].into_iter().chain(&self.bus)
    }
}

impl Redis {
    /// The address and the port that the server announces: its proxy's if it has one.
    pub(super) fn announced_address(&self) -> [String; 2] {
        let (address, port) =
            self.front.as_ref().map_or((self.address, self.port), |front| (front.address(), front.port()));
        [address.to_string(), port.to_string()]
    }

    pub(super) fn route(&self) -> Route {
        if self.front.is_some() { Route::Proxied } else { Route::Direct }
    }

    fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        self.front.iter().flat_map(FrontProxies::proxies)
    }

    fn cut_off(&self, other: &Self) {
        self.proxies().for_each(|proxy| proxy.cut_off_address(other.address.into()));
    }

    fn let_in(&self, other: &Self) {
        self.proxies().for_each(|proxy| proxy.let_in_address(other.address.into()));
    }
}

/// A group of servers that is behind proxies if it was started so. A server's own address is the source address of its
/// connections to the others.
pub trait BehindProxies {
    /// Returns all servers; their numbers below are those of this list.
    fn servers(&self) -> Vec<&Redis>;

    /// Cuts the client with this process id from all servers, as [`Proxy::cut_off`] does.
    fn cut_client(&self, pid: u32) {
        let servers = self.servers();
        let proxies: Vec<&Proxy> = servers.iter().flat_map(|server| server.proxies()).collect();
        Proxy::cut_off_all(&proxies, pid);
    }

    /// Lets a client reach the servers again.
    fn heal_client(&self, pid: u32) {
        self.servers().iter().flat_map(|server| server.proxies()).for_each(|proxy| proxy.let_in(pid));
    }

    /// Sets the flow between clients and a server; what servers send each other passes.
    fn set_clients(&self, number: usize, flow: Flow) {
        let servers = self.servers();
        let addresses: Vec<IpAddr> = servers.iter().map(|server| server.address.into()).collect();
        for proxy in servers[number].proxies() {
            proxy.set_exempt(&addresses);
            proxy.set(Direction::Requests, flow);
            proxy.set(Direction::Replies, flow);
        }
    }

    /// Cuts a server from the others in both directions, until [`heal`](Self::heal). Clients still reach it.
    fn cut(&self, number: usize) {
        for (server, other) in pairs(&self.servers(), number) {
            server.cut_off(other);
            other.cut_off(server);
        }
    }

    /// Lets a server reach the others again.
    fn heal(&self, number: usize) {
        for (server, other) in pairs(&self.servers(), number) {
            server.let_in(other);
            other.let_in(server);
        }
    }
}

/// Pairs a server with each other one.
fn pairs<'r>(servers: &[&'r Redis], number: usize) -> impl Iterator<Item = (&'r Redis, &'r Redis)> {
    let others = servers.iter().enumerate().filter(move |(other, _)| *other != number);
    others.map(move |(_, other)| (servers[number], *other))
}
