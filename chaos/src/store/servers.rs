//! Stores with servers, and the faults that every server can have.

use std::time::Duration;

use anyhow::Result;
use lockkit_testbed::{Flow, Server, ServerClock};

use super::{Store, StoreInfo, client_network::ClientNetwork};
use crate::fault::ServerFault;

/// The faults that every server can have. The longest delay is in milliseconds.
const FAULTS: [ServerFault; 4] =
    [ServerFault::Kill, ServerFault::Stop, ServerFault::BlockClients, ServerFault::DelayClients(1_000)];

/// Servers behind proxies. Every type with this trait is a [`Store`].
pub(super) trait Servers: Send {
    /// See [`Store::url`].
    fn url(&self) -> String;

    /// See [`Store::info`]. Its faults are those beyond [`FAULTS`].
    fn info(&self) -> StoreInfo;

    /// See [`Store::leader`].
    fn leader(&self) -> Result<usize> {
        Ok(0)
    }

    fn server(&mut self, number: usize) -> &mut dyn Server;

    fn client_network(&self) -> &dyn ClientNetwork;

    /// Applies a fault of [`info`](Self::info) to a server.
    fn apply(&mut self, fault: ServerFault, server: usize) -> Result<()>;

    /// Undoes a fault. Never called for an [instant](ServerFault::is_instant) one.
    fn undo(&mut self, _fault: ServerFault, _server: usize) {}

    /// See [`Store::settle`].
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    /// See [`Store::residue`].
    fn residue(&self, locks: &[String]) -> Result<Vec<String>>;
}

impl<S: Servers> Store for S {
    fn url(&self) -> String {
        Servers::url(self)
    }

    fn info(&self) -> StoreInfo {
        let info = Servers::info(self);
        StoreInfo { faults: FAULTS.into_iter().chain(info.faults).collect(), ..info }
    }

    fn leader(&self) -> Result<usize> {
        Servers::leader(self)
    }

    fn apply(&mut self, fault: ServerFault, server: usize) -> Result<()> {
        match fault {
            ServerFault::Kill => self.server(server).kill()?,
            ServerFault::Stop => self.server(server).pause()?,
            ServerFault::BlockClients => self.client_network().set(server, Flow::Hold),
            ServerFault::DelayClients(ms) => {
                self.client_network().set(server, Flow::Delay(Duration::from_millis(ms.into())))
            }
            other => Servers::apply(self, other, server)?,
        }
        Ok(())
    }

    fn undo(&mut self, fault: ServerFault, server: usize) -> Result<()> {
        match fault {
            ServerFault::Kill => self.server(server).restart()?,
            ServerFault::Stop => self.server(server).resume()?,
            ServerFault::BlockClients | ServerFault::DelayClients(_) => {
                self.client_network().set(server, Flow::Pass)
            }
            other if other.is_instant() => {}
            other => Servers::undo(self, other, server),
        }
        Ok(())
    }

    fn cut_client(&mut self, pid: u32) {
        self.client_network().cut_client(pid);
    }

    fn heal_client(&mut self, pid: u32) {
        self.client_network().heal_client(pid);
    }

    fn settle(&mut self) -> Result<()> {
        Servers::settle(self)
    }

    fn residue(&self, locks: &[String]) -> Result<Vec<String>> {
        Servers::residue(self, locks)
    }
}

/// Steps a clock as the fault says. Other faults are not supported.
pub(super) fn step(clock: &ServerClock, fault: ServerFault) -> Result<()> {
    match fault {
        ServerFault::ClockForward(ms) => clock.step_forward(Duration::from_millis(ms.into())),
        ServerFault::ClockBack(ms) => clock.step_back(Duration::from_millis(ms.into())),
        other => super::unsupported(other),
    }
}
