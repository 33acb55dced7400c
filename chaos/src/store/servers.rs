//! Stores with servers: what can happen to every server is done here, in one way for all.

use std::time::Duration;

use anyhow::Result;
use lockkit_testbed::{Etcd, Flow, Redis, ServerClock, ZooKeeper};

use super::{Menu, Store, gates::Gates};
use crate::fault::ServerFault;

/// What can happen to every server. The longest delay is in milliseconds.
const FAULTS: [ServerFault; 4] =
    [ServerFault::Kill, ServerFault::Stop, ServerFault::Silence, ServerFault::Slow(1_000)];

/// Servers behind gates. Every type that has this is a [`Store`].
pub(super) trait Servers: Send {
    /// See [`Store::url`].
    fn url(&self) -> String;

    /// See [`Store::menu`]; its faults are those that not every server can have.
    fn menu(&self) -> Menu;

    /// See [`Store::leader`].
    fn leader(&self) -> Result<usize> {
        Ok(0)
    }

    fn server(&mut self, number: usize) -> &mut dyn Server;

    fn gates(&self) -> &dyn Gates;

    /// Does a fault of the [`menu`](Self::menu) to a server.
    fn inflict(&mut self, fault: ServerFault, server: usize) -> Result<()>;

    /// Makes it good. A fault that [is over at once](ServerFault::is_over_at_once) is never asked for.
    fn undo(&mut self, _fault: ServerFault, _server: usize) {}

    /// See [`Store::settle`].
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    /// See [`Store::residue`].
    fn residue(&self) -> Result<Vec<String>>;
}

impl<S: Servers> Store for S {
    fn url(&self) -> String {
        Servers::url(self)
    }

    fn menu(&self) -> Menu {
        let menu = Servers::menu(self);
        Menu { faults: FAULTS.into_iter().chain(menu.faults).collect(), ..menu }
    }

    fn leader(&self) -> Result<usize> {
        Servers::leader(self)
    }

    fn inflict(&mut self, fault: ServerFault, member: usize) -> Result<()> {
        match fault {
            ServerFault::Kill => self.server(member).kill()?,
            ServerFault::Stop => self.server(member).pause()?,
            ServerFault::Silence => self.gates().set(member, Flow::Hold),
            ServerFault::Slow(ms) => self.gates().set(member, Flow::Delay(Duration::from_millis(ms.into()))),
            other => Servers::inflict(self, other, member)?,
        }
        Ok(())
    }

    fn undo(&mut self, fault: ServerFault, member: usize) -> Result<()> {
        match fault {
            ServerFault::Kill => self.server(member).restart()?,
            ServerFault::Stop => self.server(member).resume()?,
            ServerFault::Silence | ServerFault::Slow(_) => self.gates().set(member, Flow::Pass),
            other if other.is_over_at_once() => {}
            other => Servers::undo(self, other, member),
        }
        Ok(())
    }

    fn cut_client(&mut self, pid: u32) {
        self.gates().cut_client(pid);
    }

    fn heal_client(&mut self, pid: u32) {
        self.gates().heal_client(pid);
    }

    fn settle(&mut self) -> Result<()> {
        Servers::settle(self)
    }

    fn residue(&self) -> Result<Vec<String>> {
        Servers::residue(self)
    }
}

/// A server as a process.
pub(super) trait Server {
    fn kill(&mut self) -> Result<()>;
    fn restart(&mut self) -> Result<()>;
    fn pause(&self) -> Result<()>;
    fn resume(&self) -> Result<()>;
}

macro_rules! servers {
    ($($server:ty),*) => {$(
        impl Server for $server {
            fn kill(&mut self) -> Result<()> {
                self.kill()
            }

            fn restart(&mut self) -> Result<()> {
                self.restart()
            }

            fn pause(&self) -> Result<()> {
                self.pause()
            }

            fn resume(&self) -> Result<()> {
                self.resume()
            }
        }
    )*};
}

servers!(Etcd, Redis, ZooKeeper);

/// Steps a clock as this fault says; other faults are not on the menu.
pub(super) fn step(clock: &ServerClock, fault: ServerFault) -> Result<()> {
    match fault {
        ServerFault::ClockForward(ms) => clock.step_forward(Duration::from_millis(ms.into())),
        ServerFault::ClockBack(ms) => clock.step_back(Duration::from_millis(ms.into())),
        other => super::not_on_the_menu(other),
    }
}
