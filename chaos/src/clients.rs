//! The client processes: started, stopped, killed.

use std::{
    env, fs,
    fs::File,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use lockkit_core::support::lock;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    wire::{ClientId, ClientSetup},
    worker::ROLE,
};

/// Longest time until a process has stopped after SIGSTOP.
const STOP_MAX: Duration = Duration::from_secs(20);

/// Maximum number of clients in one run.
pub(crate) const CLIENTS_MAX: usize = 16;

/// Maximum number of clients in one slot during a run.
const GENERATIONS_MAX: u32 = 900;

/// All client processes of a run. Those that still run are killed on drop.
#[derive(Debug)]
pub(crate) struct Clients {
    /// The parameters of all clients; `client` differs.
    setup: ClientSetup,
    /// The folder for their output.
    logs: PathBuf,
    slots: Mutex<Vec<Slot>>,
}

/// A slot for one client process at a time.
#[derive(Debug, Default)]
struct Slot {
    process: Option<Child>,
    generation: u32,
    /// How many faults keep it stopped.
    stops: u32,
}

impl Clients {
    /// Creates empty slots. The seed of `setup` is that of the run.
    pub(crate) fn new(setup: ClientSetup, count: usize, logs: &Path) -> Result<Self> {
        ensure!(count <= CLIENTS_MAX, "{count} clients are more than {CLIENTS_MAX}");
        fs::create_dir_all(logs)?;
        let slots = Mutex::new((0..count).map(|_| Slot::default()).collect());
        Ok(Self { setup, logs: logs.to_owned(), slots })
    }

    pub(crate) fn len(&self) -> usize {
        self.slots().len()
    }

    /// Starts a client in every slot.
    pub(crate) fn start_all(&self) -> Result<()> {
        (0..self.len()).try_for_each(|slot| self.start(slot))
    }

    /// Starts a client in this slot, unless it has one.
    pub(crate) fn start(&self, slot: usize) -> Result<()> {
        let mut slots = self.slots();
        let entry = &mut slots[slot];
        if entry.process.is_some() {
            return Ok(());
        }
        ensure!(entry.generation < GENERATIONS_MAX, "too many clients were started");
        let client = ClientId { slot, generation: entry.generation };
        // The generation is part of the seed: otherwise all clients of a slot would do the same.
        let seed = self.setup.seed.wrapping_mul(31).wrapping_add(client.number() * 64);
        let setup = ClientSetup { client, seed, ..self.setup.clone() };
        let log = File::create(self.logs.join(format!("{client}.log")))?;
        let process = Command::new(env::current_exe()?)
            .env(ROLE, serde_json::to_string(&setup)?)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            // See `worker`: the kernel ends a stopped group whose parent has exited.
            .process_group(0)
            .spawn()
            .context("cannot start a client")?;
        entry.process = Some(process);
        entry.generation += 1;
        Ok(())
    }

    /// Returns the client in this slot.
    pub(crate) fn client(&self, slot: usize) -> Option<ClientId> {
        let slots = self.slots();
        let entry = slots.get(slot)?;
        entry.process.as_ref().map(|_| ClientId { slot, generation: entry.generation - 1 })
    }

    /// Returns the process id of the client in this slot.
    pub(crate) fn pid(&self, slot: usize) -> Option<u32> {
        self.slots().get(slot)?.process.as_ref().map(Child::id)
    }

    /// Stops this client until [`resume`](Self::resume) was called as often. Returns false if it is gone.
    pub(crate) fn stop(&self, client: ClientId) -> Result<bool> {
        let mut slots = self.slots();
        let Some((entry, pid)) = find(&mut slots, client) else { return Ok(false) };
        kill_process(pid, Signal::STOP)?;
        entry.stops += 1;
        let start = Instant::now();
        while !is_stopped(pid) {
            ensure!(start.elapsed() < STOP_MAX, "{client} does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(true)
    }

    pub(crate) fn resume(&self, client: ClientId) -> Result<()> {
        let mut slots = self.slots();
        let Some((entry, pid)) = find(&mut slots, client) else { return Ok(()) };
        entry.stops = entry.stops.saturating_sub(1);
        if entry.stops == 0 {
            kill_process(pid, Signal::CONT)?;
        }
        Ok(())
    }

    /// Kills this client with SIGKILL. Returns false if it is gone already.
    pub(crate) fn kill(&self, client: ClientId) -> Result<bool> {
        let mut slots = self.slots();
        let Some((entry, _)) = find(&mut slots, client) else { return Ok(false) };
        let Some(mut process) = entry.process.take() else { return Ok(false) };
        entry.stops = 0;
        process.kill()?;
        process.wait()?;
        Ok(true)
    }

    /// Waits until all clients have exited. Returns a message for each that failed.
    pub(crate) fn wait_for_all(&self, longest: Duration) -> Result<Vec<String>> {
        let (start, mut failed) = (Instant::now(), Vec::new());
        for slot in 0..self.len() {
            loop {
                let status = match &mut self.slots()[slot].process {
                    Some(process) => process.try_wait()?,
                    None => break,
                };
                if let Some(status) = status {
                    if !status.success() {
                        failed.push(format!("client {slot} ended with {status}"));
                    }
                    self.slots()[slot].process = None;
                    break;
                }
                if start.elapsed() > longest {
                    bail!("client {slot} does not end");
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(failed)
    }

    /// Returns a message for each client that has exited too early.
    pub(crate) fn ended_early(&self) -> Vec<String> {
        let mut slots = self.slots();
        let gone = slots.iter_mut().enumerate().filter_map(|(slot, entry)| {
            let status = entry.process.as_mut()?.try_wait().ok()??;
            Some(format!("client {slot} ended by itself: {status}"))
        });
        gone.collect()
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.slots().iter().filter_map(|entry| Some(entry.process.as_ref()?.id())).collect()
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        lock(&self.slots)
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        for entry in self.slots().iter_mut() {
            if let Some(mut process) = entry.process.take() {
                // A failure is ignored: a process whose pipe is closed exits by itself.
                let _ = process.kill();
                let _ = process.wait();
            }
        }
    }
}

/// Finds this client, not a later one of its slot.
fn find(slots: &mut [Slot], client: ClientId) -> Option<(&mut Slot, Pid)> {
    let entry = slots.get_mut(client.slot).filter(|entry| entry.generation == client.generation + 1)?;
    let pid = Pid::from_raw(entry.process.as_ref()?.id().cast_signed())?;
    Some((entry, pid))
}

/// Whether every thread has stopped or exited: the signal reaches them one by one.
fn is_stopped(pid: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
    threads.into_iter().flatten().flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['T', 'Z']))
    })
}
