//! Proxies between all clients and the servers.

use anyhow::Result;
use lockkit_testbed::{Direction, Flow, Proxy};

/// One proxy in front of each server.
#[derive(Debug)]
pub(super) struct Gates(Vec<Proxy>);

impl Gates {
    /// In front of these places.
    pub(super) fn open(endpoints: impl IntoIterator<Item = String>) -> Result<Self> {
        Ok(Self(endpoints.into_iter().map(Proxy::start).collect::<Result<_>>()?))
    }

    /// Where clients come, joined by commas.
    pub(super) fn endpoints(&self) -> String {
        self.0.iter().map(Proxy::endpoint).collect::<Vec<_>>().join(",")
    }

    /// Keeps what clients and this server send each other.
    pub(super) fn silence(&self, member: usize) {
        self.set(member, Flow::Hold);
    }

    /// Delivers it, and what comes from now on.
    pub(super) fn let_speak(&self, member: usize) {
        self.set(member, Flow::Pass);
    }

    pub(super) fn cut_client(&self, pid: u32) {
        self.0.iter().for_each(|proxy| proxy.cut_off(pid));
    }

    pub(super) fn heal_client(&self, pid: u32) {
        self.0.iter().for_each(|proxy| proxy.let_in(pid));
    }

    fn set(&self, member: usize, flow: Flow) {
        for direction in [Direction::Requests, Direction::Replies] {
            self.0[member].set(direction, flow);
        }
    }
}
