//! Carries out the schedule.

use std::{
    sync::{Mutex, MutexGuard},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use lockkit_core::support::lock;
use serde::Serialize;

use crate::{
    clock::now,
    coordinator::{Coordinator, Trap},
    fault::{Fault, ServerFault, StopLength, Target},
    schedule::{Schedule, Step},
    store::{Store, StoreInfo},
    wire::ClientId,
};

/// Longest wait for a client that a trap catches: while servers are down no client acquires.
const CATCH_MAX: Duration = Duration::from_secs(60);

/// Longest wait until a stopped or killed holder is overtaken.
const OVERTAKE_MAX: Duration = Duration::from_secs(60);

/// Longest wait for the write of a resumed holder: the longest section takes 1.3 ttl.
const WRITE_MAX: Duration = Duration::from_secs(10);

/// A fault of the schedule as it was carried out.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AppliedFault {
    pub(crate) fault: Fault,
    /// A description with the server or client that it hit.
    pub(crate) what: String,
    pub(crate) client: Option<ClientId>,
    /// The process that was cut off. Its slot may have another one when the fault ends.
    #[serde(skip)]
    pub(crate) cut: Option<u32>,
    pub(crate) from: Duration,
    pub(crate) until: Duration,
    /// When all servers were healthy again, after a fault of a server; the end of any other fault.
    pub(crate) settled: Duration,
    /// Why it could not be carried out.
    pub(crate) failed: Option<String>,
    /// Whether another client acquired the lock of the holder that was hit.
    pub(crate) is_overtaken: bool,
    /// When the store may have ended holds before their deadline.
    pub(crate) ended_holds: Option<EndedHolds>,
}

/// Holds that the store may have ended before their deadline: those of one lock, or all.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EndedHolds {
    pub(crate) at: Duration,
    pub(crate) lock: Option<String>,
}

/// Applies faults to clients and servers.
pub(crate) struct Nemesis<'a> {
    pub(crate) coordinator: &'a Coordinator,
    pub(crate) store: &'a Mutex<Box<dyn Store>>,
    pub(crate) info: &'a StoreInfo,
    pub(crate) locks: &'a [String],
    pub(crate) ttl: Duration,
}

impl Nemesis<'_> {
    /// Carries out all steps. Afterwards all servers are healthy, and every slot has a client.
    pub(crate) fn run(&self, schedule: &Schedule, bar: &ProgressBar) -> Result<Vec<AppliedFault>> {
        let mut applied = Vec::new();
        for (number, step) in schedule.0.iter().enumerate() {
            bar.set_message("quiet");
            thread::sleep(step.quiet);
            bar.set_message(step.faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
            applied.extend(self.step(step).with_context(|| format!("step {number}"))?);
            bar.inc(1);
        }
        Ok(applied)
    }

    fn step(&self, step: &Step) -> Result<Vec<AppliedFault>> {
        let (traps, others): (Vec<_>, Vec<_>) = step.faults.iter().copied().partition(is_trap);
        let faults = self.with_servers(&others)?;
        thread::scope(|scope| {
            let traps: Vec<_> = traps.iter().map(|&fault| scope.spawn(move || self.trap(fault))).collect();
            let mut applied = Vec::new();
            for (fault, server) in faults {
                applied.push((self.apply(fault, server)?, server));
            }
            thread::sleep(step.lasts);
            // A server that needs the others to recover comes last.
            applied.sort_by_key(|(one, _)| needs_restart(one.fault));
            for (one, server) in &mut applied {
                self.undo(one, *server).with_context(|| format!("cannot undo {:?}", one.what))?;
            }
            self.store().settle()?;
            let settled = now();
            let mut applied: Vec<_> = applied.into_iter().map(|(one, _)| one).collect();
            for trap in traps {
                applied.push(trap.join().map_err(|_| anyhow::anyhow!("a trap panicked"))??);
            }
            for one in &mut applied {
                one.settled = if one.fault.is_of_client() { one.until } else { settled };
            }
            Ok(applied)
        })
    }

    /// Resolves the targets of the faults to servers, never to the same one twice.
    fn with_servers(&self, faults: &[Fault]) -> Result<Vec<(Fault, usize)>> {
        let mut used = Vec::new();
        let mut with_servers = Vec::new();
        for &fault in faults {
            let mut number = match fault {
                Fault::Server { target: Target::Leader, .. } => self.store().leader()?,
                Fault::Server { target: Target::Number(number), .. } => number,
                _ => 0,
            };
            if !fault.is_of_client() {
                while used.contains(&number) && used.len() < self.info.servers {
                    number = (number + 1) % self.info.servers;
                }
                used.push(number);
            }
            with_servers.push((fault, number));
        }
        Ok(with_servers)
    }

    fn apply(&self, fault: Fault, server: usize) -> Result<AppliedFault> {
        let mut one = AppliedFault::new(fault);
        match fault {
            Fault::Server { fault: of_server, .. } => {
                one.what = match of_server {
                    ServerFault::ClockForward(_) | ServerFault::ClockBack(_) if self.info.has_one_clock => {
                        format!("{of_server} all nodes")
                    }
                    _ => format!("{of_server} server {server}"),
                };
                one.failed = self.store().apply(of_server, server).err().map(|error| format!("{error:#}"));
                one.ended_holds = of_server.ends_holds().then_some(EndedHolds { at: one.from, lock: None });
            }
            Fault::StopClient { slot } | Fault::KillClient { slot } | Fault::CutClient { slot } => {
                let clients = self.coordinator.clients();
                let Some((client, pid)) = clients.client(slot).zip(clients.pid(slot)) else {
                    one.failed = Some("the other fault has killed the client".to_owned());
                    return Ok(one);
                };
                one.client = Some(client);
                match fault {
                    Fault::StopClient { .. } => drop(self.coordinator.clients().stop(client)?),
                    Fault::KillClient { .. } => drop(self.coordinator.clients().kill(client)?),
                    _ => {
                        self.store().cut_client(pid);
                        one.cut = Some(pid);
                    }
                }
            }
            Fault::StopHolder { .. } | Fault::KillHolder { .. } => {}
        }
        Ok(one)
    }

    fn undo(&self, one: &mut AppliedFault, server: usize) -> Result<()> {
        if one.failed.is_none() {
            match one.fault {
                Fault::Server { fault, .. } => self.store().undo(fault, server)?,
                Fault::StopClient { .. } => {
                    one.client.map_or(Ok(()), |client| self.coordinator.clients().resume(client))?;
                }
                Fault::KillClient { slot } => self.coordinator.clients().start(slot)?,
                Fault::CutClient { .. } => {
                    one.cut.into_iter().for_each(|pid| self.store().heal_client(pid));
                }
                Fault::StopHolder { .. } | Fault::KillHolder { .. } => {}
            }
        }
        let is_over = matches!(one.fault, Fault::Server { fault, .. } if fault.is_instant());
        one.until = if is_over { one.from } else { now() };
        Ok(())
    }

    /// Catches a holder in its critical section.
    fn trap(&self, fault: Fault) -> Result<AppliedFault> {
        let mut one = AppliedFault::new(fault);
        let (lock, trap, length) = match fault {
            Fault::StopHolder { lock, length } => (&self.locks[lock], Trap::Stop, length),
            Fault::KillHolder { lock } => (&self.locks[lock], Trap::Kill, StopLength::Overtaken),
            other => anyhow::bail!("not a trap: {other}"),
        };
        let Some(caught) = self.coordinator.catch(lock, trap, CATCH_MAX) else {
            one.failed = Some("no client acquired the lock".to_owned());
            one.until = now();
            return Ok(one);
        };
        (one.from, one.client) = (now(), Some(caught.client));
        let verb = if trap == Trap::Stop { "stopped" } else { "killed" };
        one.what = format!("{} {verb} in its section of {lock}", caught.client);
        match length {
            StopLength::Overtaken => {
                if trap == Trap::Stop && self.info.servers == 0 && self.store().evict(lock)? {
                    one.ended_holds = Some(EndedHolds { at: now(), lock: Some(lock.clone()) });
                }
                one.is_overtaken = self.coordinator.wait_until_overtaken(lock, caught.token, OVERTAKE_MAX);
            }
            StopLength::Thousandths(ttl) => thread::sleep(self.ttl * ttl / 1_000),
        }
        match trap {
            Trap::Stop => self.coordinator.clients().resume(caught.client)?,
            Trap::Kill => self.coordinator.clients().start(caught.client.slot)?,
        }
        one.until = now();
        if trap == Trap::Stop && one.is_overtaken {
            // Its late write is the test of the registers: the next fault must not kill the client before it.
            self.coordinator.wait_until_written(lock, caught.token, WRITE_MAX);
        }
        Ok(one)
    }

    fn store(&self) -> MutexGuard<'_, Box<dyn Store>> {
        lock(self.store)
    }
}

impl AppliedFault {
    fn new(fault: Fault) -> Self {
        let from = now();
        let what = fault.to_string();
        Self {
            fault,
            what,
            client: None,
            cut: None,
            from,
            until: from,
            settled: from,
            failed: None,
            is_overtaken: false,
            ended_holds: None,
        }
    }
}

fn is_trap(fault: &Fault) -> bool {
    matches!(fault, Fault::StopHolder { .. } | Fault::KillHolder { .. })
}

fn needs_restart(fault: Fault) -> bool {
    matches!(fault, Fault::Server { fault: ServerFault::Kill, .. })
}
