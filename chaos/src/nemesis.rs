//! Carries the schedule out.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::{
    clock::now,
    fault::{Fault, Member, ServerFault, Until},
    hub::{Hub, Trap},
    schedule::{Schedule, Step},
    store::{Menu, Store},
    wire::ClientId,
};

/// Longest wait for somebody who falls into a trap: while servers are down nobody does.
const CATCH_MAX: Duration = Duration::from_secs(60);

/// Longest wait until a stopped or killed holder is overtaken.
const OVERTAKE_MAX: Duration = Duration::from_secs(60);

/// What came of one fault of the schedule.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Inflicted {
    pub(crate) fault: Fault,
    /// For people: with the server or client that it came to be.
    pub(crate) what: String,
    pub(crate) client: Option<ClientId>,
    /// The process that was cut off. Its place may have another one when that ends.
    #[serde(skip)]
    pub(crate) cut: Option<u32>,
    pub(crate) from: Duration,
    pub(crate) until: Duration,
    /// Why it could not be done.
    pub(crate) failed: Option<String>,
    /// Whether another client took over from the holder that was hit.
    pub(crate) is_overtaken: bool,
    /// When the store may have ended holds before their holders knew: those of this lock, or all.
    pub(crate) ended_holds: Option<EndedHolds>,
}

/// See [`Inflicted::ended_holds`].
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EndedHolds {
    pub(crate) at: Duration,
    pub(crate) lock: Option<String>,
}

/// Disturbs clients and servers.
pub(crate) struct Nemesis<'a> {
    pub(crate) hub: &'a Hub,
    pub(crate) store: &'a Mutex<Box<dyn Store>>,
    pub(crate) menu: &'a Menu,
    pub(crate) locks: &'a [String],
    pub(crate) ttl: Duration,
}

impl Nemesis<'_> {
    /// Carries out all steps; afterwards everybody is well, and every place is filled.
    pub(crate) fn run(&self, schedule: &Schedule, bar: &ProgressBar) -> Result<Vec<Inflicted>> {
        let mut inflicted = Vec::new();
        for (number, step) in schedule.0.iter().enumerate() {
            bar.set_message("quiet");
            thread::sleep(step.quiet);
            bar.set_message(step.faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
            inflicted.extend(self.step(step).with_context(|| format!("step {number}"))?);
            bar.inc(1);
        }
        Ok(inflicted)
    }

    fn step(&self, step: &Step) -> Result<Vec<Inflicted>> {
        let (traps, others): (Vec<_>, Vec<_>) = step.faults.iter().copied().partition(is_trap);
        let faults = self.with_members(&others)?;
        thread::scope(|scope| {
            let traps: Vec<_> = traps.iter().map(|&fault| scope.spawn(move || self.trap(fault))).collect();
            let mut inflicted = Vec::new();
            for (fault, member) in faults {
                inflicted.push((self.inflict(fault, member)?, member));
            }
            thread::sleep(step.lasts);
            // Who needs others to get well comes last.
            inflicted.sort_by_key(|(one, _)| needs_restart(one.fault));
            for (one, member) in &mut inflicted {
                self.undo(one, *member).with_context(|| format!("cannot undo {:?}", one.what))?;
            }
            self.store().settle()?;
            let mut inflicted: Vec<_> = inflicted.into_iter().map(|(one, _)| one).collect();
            for trap in traps {
                inflicted.push(trap.join().map_err(|_| anyhow::anyhow!("a trap panicked"))??);
            }
            Ok(inflicted)
        })
    }

    /// The faults with the servers that they mean now: never the same one twice.
    fn with_members(&self, faults: &[Fault]) -> Result<Vec<(Fault, usize)>> {
        let mut taken = Vec::new();
        let mut with_members = Vec::new();
        for &fault in faults {
            let mut number = match fault {
                Fault::Server { member: Member::Leader, .. } => self.store().leader()?,
                Fault::Server { member: Member::Number(number), .. } => number,
                _ => 0,
            };
            if !fault.is_of_client() {
                while taken.contains(&number) && taken.len() < self.menu.members {
                    number = (number + 1) % self.menu.members;
                }
                taken.push(number);
            }
            with_members.push((fault, number));
        }
        Ok(with_members)
    }

    fn inflict(&self, fault: Fault, member: usize) -> Result<Inflicted> {
        let mut one = Inflicted::begins(fault);
        match fault {
            Fault::Server { fault: of_server, .. } => {
                one.what = format!("{of_server} server {member}");
                one.failed = self.store().inflict(of_server, member).err().map(|error| format!("{error:#}"));
                one.ended_holds = of_server.ends_holds().then_some(EndedHolds { at: one.from, lock: None });
            }
            Fault::StopClient { slot } | Fault::KillClient { slot } | Fault::CutClient { slot } => {
                one.client = self.hub.clients().client(slot);
                let (client, pid) = one.client.zip(self.hub.clients().pid(slot)).context("an empty place")?;
                match fault {
                    Fault::StopClient { .. } => drop(self.hub.clients().stop(client)?),
                    Fault::KillClient { .. } => drop(self.hub.clients().kill(client)?),
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

    fn undo(&self, one: &mut Inflicted, member: usize) -> Result<()> {
        if one.failed.is_none() {
            match one.fault {
                Fault::Server { fault, .. } => self.store().undo(fault, member)?,
                Fault::StopClient { .. } => {
                    one.client.map_or(Ok(()), |client| self.hub.clients().resume(client))?;
                }
                Fault::KillClient { slot } => self.hub.clients().start(slot)?,
                Fault::CutClient { .. } => {
                    one.cut.into_iter().for_each(|pid| self.store().heal_client(pid));
                }
                Fault::StopHolder { .. } | Fault::KillHolder { .. } => {}
            }
        }
        let is_over = matches!(one.fault, Fault::Server { fault, .. } if fault.is_over_at_once());
        one.until = if is_over { one.from } else { now() };
        Ok(())
    }

    /// Catches a holder in its critical section.
    fn trap(&self, fault: Fault) -> Result<Inflicted> {
        let mut one = Inflicted::begins(fault);
        let (lock, trap, until) = match fault {
            Fault::StopHolder { lock, until } => (&self.locks[lock], Trap::Stop, until),
            Fault::KillHolder { lock } => (&self.locks[lock], Trap::Kill, Until::Overtaken),
            other => anyhow::bail!("{other} is no trap"),
        };
        let Some(caught) = self.hub.catch(lock, trap, CATCH_MAX) else {
            one.failed = Some("nobody came".to_owned());
            one.until = now();
            return Ok(one);
        };
        (one.from, one.client) = (now(), Some(caught.client));
        let verb = if trap == Trap::Stop { "stopped" } else { "killed" };
        one.what = format!("{} {verb} in its section of {lock}", caught.client);
        match until {
            Until::Overtaken => {
                if trap == Trap::Stop && self.menu.members == 0 && self.store().evict(lock)? {
                    one.ended_holds = Some(EndedHolds { at: now(), lock: Some(lock.clone()) });
                }
                one.is_overtaken = self.hub.wait_until_overtaken(lock, caught.token, OVERTAKE_MAX);
            }
            Until::Thousandths(ttl) => thread::sleep(self.ttl * ttl / 1_000),
        }
        match trap {
            Trap::Stop => self.hub.clients().resume(caught.client)?,
            Trap::Kill => self.hub.clients().start(caught.client.slot)?,
        }
        one.until = now();
        Ok(one)
    }

    fn store(&self) -> MutexGuard<'_, Box<dyn Store>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inflicted {
    fn begins(fault: Fault) -> Self {
        let from = now();
        let what = fault.to_string();
        Self {
            fault,
            what,
            client: None,
            cut: None,
            from,
            until: from,
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
