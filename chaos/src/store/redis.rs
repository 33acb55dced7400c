//! One Redis server, on a clock that steps.

use std::time::Duration;

use anyhow::Result;
use lockkit_testbed::{Redis, ServerClock};

use super::{Menu, Store, gates::Gates, not_on_the_menu, redis_residue};
use crate::fault::ServerFault;

#[derive(Debug)]
pub(super) struct RedisStore {
    gates: Gates,
    server: Redis,
    clock: ServerClock,
}

impl RedisStore {
    pub(super) fn start() -> Result<Self> {
        let clock = ServerClock::new()?;
        let server = Redis::start_on(&clock)?;
        Ok(Self { gates: Gates::open([server.endpoint()])?, server, clock })
    }
}

impl Store for RedisStore {
    fn url(&self) -> String {
        format!("redis://{}", self.gates.endpoints())
    }

    fn menu(&self) -> Menu {
        use ServerFault::{ClockBack, ClockForward, Kill, Silence, Stop};
        Menu {
            members: 1,
            has_leader: false,
            can_cut_clients: true,
            faults: vec![Kill, Stop, Silence, ClockForward(6_000), ClockBack(6_000)],
            failover: Duration::from_secs(2),
        }
    }

    fn inflict(&mut self, fault: ServerFault, _member: usize) -> Result<()> {
        match fault {
            ServerFault::Kill => self.server.kill(),
            ServerFault::Stop => self.server.pause(),
            ServerFault::Silence => {
                self.gates.silence(0);
                Ok(())
            }
            ServerFault::ClockForward(ms) => self.clock.step_forward(Duration::from_millis(ms.into())),
            ServerFault::ClockBack(ms) => self.clock.step_back(Duration::from_millis(ms.into())),
            other => not_on_the_menu(other),
        }
    }

    fn undo(&mut self, fault: ServerFault, _member: usize) -> Result<()> {
        match fault {
            ServerFault::Kill => self.server.restart(),
            ServerFault::Stop => self.server.resume(),
            ServerFault::Silence => {
                self.gates.let_speak(0);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn cut_client(&mut self, pid: u32) {
        self.gates.cut_client(pid);
    }

    fn heal_client(&mut self, pid: u32) {
        self.gates.heal_client(pid);
    }

    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    fn residue(&self) -> Result<Vec<String>> {
        redis_residue(&self.server)
    }
}
