//! What the clients report, and the registers that they use: one place, by one clock.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::{
    clients::{CLIENTS_MAX, Clients},
    clock::now,
    register::Registers,
    wire::{ClientId, Said, Told, line},
};

/// Something that a client reported, and when that came.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) at: Duration,
    pub(crate) client: ClientId,
    pub(crate) said: Said,
}

/// What happens to whoever reads the registers of a lock next, before the answer is sent: in its critical section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trap {
    Stop,
    Kill,
}

/// Who was caught, and with which token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caught {
    pub(crate) client: ClientId,
    pub(crate) token: u64,
}

/// Everything that is known of a run while it lasts.
#[derive(Debug)]
pub(crate) struct Hub {
    clients: Clients,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    registers: Registers,
    reports: Vec<Report>,
    trap: Option<(String, Trap)>,
    caught: Option<Caught>,
    /// One connection per client.
    writers: Vec<(ClientId, Arc<Mutex<TcpStream>>)>,
    closed: BTreeSet<ClientId>,
    is_finishing: bool,
    /// What went wrong in the coordinator itself.
    errors: Vec<String>,
}

impl Hub {
    /// Takes connections from now on. `clients` have not been started.
    pub(crate) fn start(listener: TcpListener, clients: Clients) -> Result<Arc<Self>> {
        let hub = Arc::new(Self { clients, state: Mutex::default(), changed: Condvar::new() });
        let taking = Arc::downgrade(&hub);
        std::thread::Builder::new().name("chaos-accept".to_owned()).spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let Some(hub) = taking.upgrade() else { return };
                // One that is killed leaves its thread within moments.
                if Arc::strong_count(&hub) > 4 * CLIENTS_MAX {
                    hub.failed("too many connections");
                    continue;
                }
                let serving = std::thread::Builder::new().name("chaos-client".to_owned());
                // Without a thread the client hears nothing, and the run does not end well.
                let _ = serving.spawn(move || hub.serve(stream));
            }
        })?;
        Ok(hub)
    }

    pub(crate) fn clients(&self) -> &Clients {
        &self.clients
    }

    /// The next one who reads these registers is caught; who it was, unless nobody came for so long.
    pub(crate) fn catch(&self, lock: &str, trap: Trap, longest: Duration) -> Option<Caught> {
        let mut state = self.state();
        (state.trap, state.caught) = (Some((lock.to_owned(), trap)), None);
        let mut state = self.wait(state, longest, |state| state.caught.is_some());
        state.trap = None;
        state.caught.take()
    }

    /// Waits until somebody with a higher token has written; whether it was so.
    pub(crate) fn wait_until_overtaken(&self, lock: &str, token: u64, longest: Duration) -> bool {
        let state = self.state();
        let state = self.wait(state, longest, |state| state.registers.is_overtaken(lock, token));
        state.registers.is_overtaken(lock, token)
    }

    /// Tells all clients to finish, and waits until they have closed; those that have not.
    pub(crate) fn finish(&self, longest: Duration) -> Vec<ClientId> {
        let mut state = self.state();
        state.is_finishing = true;
        let writers = state.writers.clone();
        drop(state);
        for (_, writer) in writers {
            // One that is gone is found below.
            let _ = send(&writer, &Told::Finish);
        }
        let all: Vec<_> = (0..self.clients.len()).filter_map(|slot| self.clients.client(slot)).collect();
        let state = self.state();
        let state = self.wait(state, longest, |state| all.iter().all(|one| state.closed.contains(one)));
        all.into_iter().filter(|client| !state.closed.contains(client)).collect()
    }

    /// Looks at everything so far.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Registers, &[Report]) -> T) -> T {
        let state = self.state();
        look(&state.registers, &state.reports)
    }

    /// What went wrong in the coordinator itself.
    pub(crate) fn errors(&self) -> Vec<String> {
        self.state().errors.clone()
    }

    fn failed(&self, what: impl Into<String>) {
        self.state().errors.push(what.into());
    }

    /// Serves one client until its end.
    fn serve(&self, stream: TcpStream) {
        let served = stream.try_clone().context("no second handle").and_then(|reading| {
            // Answers are short and waited for.
            stream.set_nodelay(true)?;
            let (mut client, writer) = (None, Arc::new(Mutex::new(stream)));
            for text in BufReader::new(reading).lines() {
                // A client that is killed is cut off in the middle of a line.
                let Ok(said) = text.map_err(drop).and_then(|text| serde_json::from_str(&text).map_err(drop))
                else {
                    break;
                };
                if let Said::Hello { client: new } = said {
                    client = Some(new);
                    self.welcome(new, &writer);
                }
                self.heard(client.context("a client without a name")?, said, &writer)?;
            }
            if let Some(client) = client {
                self.state().writers.retain(|(other, _)| *other != client);
            }
            Ok(())
        });
        if let Err(error) = served {
            self.failed(format!("{error:#}"));
        }
    }

    fn welcome(&self, client: ClientId, writer: &Arc<Mutex<TcpStream>>) {
        let mut state = self.state();
        state.writers.push((client, Arc::clone(writer)));
        let is_late = state.is_finishing;
        drop(state);
        if is_late {
            let _ = send(writer, &Told::Finish);
        }
    }

    fn heard(&self, client: ClientId, said: Said, writer: &Mutex<TcpStream>) -> Result<()> {
        let at = now();
        let mut state = self.state();
        if let Said::Ask { number, lock, token, what } = said {
            let reading = state.registers.serve(at, client, &lock, token, what);
            let is_current = reading.fenced.is_some() && what == crate::wire::Ask::Read;
            let trap = state.trap.take_if(|(trapped, _)| is_current && *trapped == lock);
            drop(state);
            if let Some((_, trap)) = trap {
                self.spring(trap, Caught { client, token })?;
            }
            self.changed.notify_all();
            // To one that was killed: it is gone.
            let _ = send(writer, &Told::Answer { number, reading });
            return Ok(());
        }
        if matches!(said, Said::Closed { .. }) {
            state.closed.insert(client);
        }
        if !matches!(said, Said::Hello { .. }) {
            state.reports.push(Report { at, client, said });
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Before the answer: so the client stands, or ends, between its read and its write.
    fn spring(&self, trap: Trap, caught: Caught) -> Result<()> {
        let hit = match trap {
            Trap::Stop => self.clients.stop(caught.client)?,
            Trap::Kill => self.clients.kill(caught.client)?,
        };
        if hit {
            self.state().caught = Some(caught);
        }
        Ok(())
    }

    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        longest: Duration,
        is_so: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        let until = Instant::now() + longest;
        while !is_so(&state) {
            let Some(left) = until.checked_duration_since(Instant::now()) else { return state };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn send(writer: &Mutex<TcpStream>, told: &Told) -> std::io::Result<()> {
    writer.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line(told))
}
