//! The coordinator: collects the reports of the clients and serves their registers, by one clock.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use lockkit_core::support::{lock, unpoisoned};
use serde::Serialize;

use crate::{
    clients::{CLIENTS_MAX, Clients},
    clock::now,
    register::Registers,
    wire::{ClientId, ClientMessage, CoordinatorMessage, line},
};

/// A message of a client, and when it arrived.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) at: Duration,
    pub(crate) client: ClientId,
    pub(crate) message: ClientMessage,
}

/// What happens to the next client that reads the registers of a lock, before it gets the answer: it is in its critical
/// section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trap {
    Stop,
    Kill,
}

/// A holder that was stopped or killed by a trap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CaughtHolder {
    pub(crate) client: ClientId,
    pub(crate) token: u64,
}

/// The state of a run while it lasts.
#[derive(Debug)]
pub(crate) struct Coordinator {
    clients: Clients,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    registers: Registers,
    reports: Vec<Report>,
    trap: Option<(String, Trap)>,
    caught: Option<CaughtHolder>,
    /// One connection per client.
    writers: Vec<(ClientId, Arc<Mutex<TcpStream>>)>,
    closed: BTreeSet<ClientId>,
    is_finishing: bool,
    /// Failures of the coordinator itself.
    errors: Vec<String>,
}

impl Coordinator {
    /// Starts to accept connections. `clients` must not have been started.
    pub(crate) fn start(listener: TcpListener, clients: Clients) -> Result<Arc<Self>> {
        let coordinator = Arc::new(Self { clients, state: Mutex::default(), changed: Condvar::new() });
        let taking = Arc::downgrade(&coordinator);
        std::thread::Builder::new().name("chaos-accept".to_owned()).spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let Some(coordinator) = taking.upgrade() else { return };
                // The thread of a killed client ends shortly after it.
                if Arc::strong_count(&coordinator) > 4 * CLIENTS_MAX {
                    coordinator.failed("too many connections");
                    continue;
                }
                let serving = std::thread::Builder::new().name("chaos-client".to_owned());
                // Without a thread the client gets no answer, and the run fails.
                let _ = serving.spawn(move || coordinator.serve(stream));
            }
        })?;
        Ok(coordinator)
    }

    pub(crate) fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Sets a trap for the next client that reads these registers. Returns the client, or `None` after `longest`.
    pub(crate) fn catch(&self, lock: &str, trap: Trap, longest: Duration) -> Option<CaughtHolder> {
        let mut state = self.state();
        (state.trap, state.caught) = (Some((lock.to_owned(), trap)), None);
        let mut state = self.wait(state, longest, |state| state.caught.is_some());
        state.trap = None;
        state.caught.take()
    }

    /// Waits until a client with a higher token has written. Returns whether one has.
    pub(crate) fn wait_until_overtaken(&self, lock: &str, token: u64, longest: Duration) -> bool {
        let state = self.state();
        let state = self.wait(state, longest, |state| state.registers.is_overtaken(lock, token));
        state.registers.is_overtaken(lock, token)
    }

    /// Waits until the holder of this token has written, for at most `longest`.
    pub(crate) fn wait_until_written(&self, lock: &str, token: u64, longest: Duration) {
        let state = self.state();
        drop(self.wait(state, longest, |state| state.registers.has_written(lock, token)));
    }

    /// Asks all clients to finish and waits until they have closed. Returns those that have not.
    pub(crate) fn finish(&self, longest: Duration) -> Vec<ClientId> {
        let mut state = self.state();
        state.is_finishing = true;
        let writers = state.writers.clone();
        drop(state);
        for (_, writer) in writers {
            // A client that is gone is reported below.
            let _ = send(&writer, &CoordinatorMessage::Finish);
        }
        let all: Vec<_> = (0..self.clients.len()).filter_map(|slot| self.clients.client(slot)).collect();
        let state = self.state();
        let state = self.wait(state, longest, |state| all.iter().all(|one| state.closed.contains(one)));
        all.into_iter().filter(|client| !state.closed.contains(client)).collect()
    }

    /// Calls a function with everything that was recorded so far.
    pub(crate) fn inspect<T>(&self, inspect: impl FnOnce(&Registers, &[Report]) -> T) -> T {
        let state = self.state();
        inspect(&state.registers, &state.reports)
    }

    /// Failures of the coordinator itself.
    pub(crate) fn errors(&self) -> Vec<String> {
        self.state().errors.clone()
    }

    fn failed(&self, what: impl Into<String>) {
        self.state().errors.push(what.into());
    }

    /// Serves one client until its end.
    fn serve(&self, stream: TcpStream) {
        let served = stream.try_clone().context("no second handle").and_then(|reading| {
            // Answers are short, and clients wait for them.
            stream.set_nodelay(true)?;
            let (mut client, writer) = (None, Arc::new(Mutex::new(stream)));
            for text in BufReader::new(reading).lines() {
                // A killed client may have sent a part of a line.
                let Ok(message) =
                    text.map_err(drop).and_then(|text| serde_json::from_str(&text).map_err(drop))
                else {
                    break;
                };
                if let ClientMessage::Hello { client: new } = message {
                    client = Some(new);
                    self.welcome(new, &writer);
                }
                self.receive(client.context("a message before Hello")?, message, &writer)?;
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
            let _ = send(writer, &CoordinatorMessage::Finish);
        }
    }

    fn receive(&self, client: ClientId, message: ClientMessage, writer: &Mutex<TcpStream>) -> Result<()> {
        let at = now();
        let mut state = self.state();
        if let ClientMessage::UseRegisters { number, lock, token, request } = message {
            let reading = state.registers.serve(at, client, &lock, token, request);
            let is_current = reading.fenced.is_some() && request == crate::wire::RegisterRequest::Read;
            let trap = state.trap.take_if(|(trapped, _)| is_current && *trapped == lock);
            drop(state);
            if let Some((_, trap)) = trap {
                self.apply_trap(trap, CaughtHolder { client, token })?;
            }
            self.changed.notify_all();
            // This fails if the client was killed.
            let _ = send(writer, &CoordinatorMessage::Answer { number, reading });
            return Ok(());
        }
        if matches!(message, ClientMessage::Closed { .. }) {
            state.closed.insert(client);
        }
        if !matches!(message, ClientMessage::Hello { .. }) {
            state.reports.push(Report { at, client, message });
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Stops or kills the client before it gets the answer, that is, between its read and its write.
    fn apply_trap(&self, trap: Trap, caught: CaughtHolder) -> Result<()> {
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
            state = unpoisoned(self.changed.wait_timeout(state, left)).0;
        }
        state
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn send(writer: &Mutex<TcpStream>, message: &CoordinatorMessage) -> std::io::Result<()> {
    lock(writer).write_all(&line(message))
}
