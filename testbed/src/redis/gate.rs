//! Redis servers that everybody reaches through proxies, so that any of them, and any client, can be cut off.
//!
//! Clients find these servers by what the servers and Sentinels say, so that a client cannot have a proxy of its own: each
//! server has one for all, and says that it is there. A client is known by the process that
//! its connection belongs to, a server by the address that it comes from.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;

use super::Redis;
use crate::{Direction, Flow, Proxy, address::own_address, proxy::Speech};

/// Whether a server is reached directly or through a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entrance {
    Direct,
    Gate,
}

/// The proxies in front of a server, at one address, as the server announces one.
#[derive(Debug)]
pub(super) struct Gate {
    address: Ipv4Addr,
    /// Clients, replicas and Sentinels come here.
    data: Proxy,
    /// The other nodes of a cluster come here.
    bus: Option<Proxy>,
}

impl Gate {
    /// In front of these ports of a server.
    pub(super) fn open(server: Ipv4Addr, port: u16, bus_port: Option<u16>) -> Result<Self> {
        let address = own_address();
        let proxy = |port| Proxy::start_at(address, format!("{server}:{port}"), Speech::Any);
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
    /// Where others are told that the server is.
    pub(super) fn place(&self) -> (Ipv4Addr, u16) {
        self.gate.as_ref().map_or((self.address, self.port), |gate| (gate.address(), gate.port()))
    }

    pub(super) fn entrance(&self) -> Entrance {
        if self.gate.is_some() { Entrance::Gate } else { Entrance::Direct }
    }

    fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        self.gate.iter().flat_map(Gate::proxies)
    }

    fn cut_off(&self, other: &Self) {
        self.proxies().for_each(|proxy| proxy.cut_off_address(other.address.into()));
    }

    fn let_in(&self, other: &Self) {
        self.proxies().for_each(|proxy| proxy.let_in_address(other.address.into()));
    }
}

/// Servers that belong together and were started behind proxies. What they say to each other comes from their own addresses.
#[derive(Debug)]
pub(super) struct Gated<'a>(pub(super) Vec<&'a Redis>);

impl Gated<'_> {
    /// Cuts a process that is none of them from all of them.
    pub(super) fn cut_client(&self, pid: u32) {
        Proxy::cut_off_all(self.proxies(), pid);
    }

    pub(super) fn heal_client(&self, pid: u32) {
        self.proxies().for_each(|proxy| proxy.let_in(pid));
    }

    /// From now on this happens to what clients and a server send each other; what servers send each other passes.
    pub(super) fn set_clients(&self, number: usize, flow: Flow) {
        let servers: Vec<IpAddr> = self.0.iter().map(|server| server.address.into()).collect();
        for proxy in self.0[number].proxies() {
            proxy.spare(&servers);
            proxy.set(Direction::Requests, flow);
            proxy.set(Direction::Replies, flow);
        }
    }

    /// Cuts a server from the others, in both directions.
    pub(super) fn cut(&self, number: usize) {
        for (server, other) in self.pairs(number) {
            server.cut_off(other);
            other.cut_off(server);
        }
    }

    pub(super) fn heal(&self, number: usize) {
        for (server, other) in self.pairs(number) {
            server.let_in(other);
            other.let_in(server);
        }
    }

    fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        self.0.iter().flat_map(|server| server.proxies())
    }

    /// This server and each other one.
    fn pairs(&self, number: usize) -> impl Iterator<Item = (&Redis, &Redis)> {
        let others = self.0.iter().enumerate().filter(move |(other, _)| *other != number);
        others.map(move |(_, other)| (self.0[number], *other))
    }
}
