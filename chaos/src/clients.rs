//! The client processes: started, stopped, killed.

use std::{
    env, fs,
    fs::File,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    wire::{ClientId, Orders},
    worker::ROLE,
};

/// Longest time until a process that was sent SIGSTOP stands still.
const STOP_MAX: Duration = Duration::from_secs(20);

/// Clients of one run: more are a mistake.
pub(crate) const CLIENTS_MAX: usize = 16;

/// How often one place may be filled in a run.
const GENERATIONS_MAX: u32 = 900;

/// All client processes of a run. Those that are left are killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Clients {
    /// What all are started with, but for the client itself.
    orders: Orders,
    /// Where they write what is not for the coordinator.
    logs: PathBuf,
    slots: Mutex<Vec<Slot>>,
}

/// A place for one client process at a time.
#[derive(Debug, Default)]
struct Slot {
    process: Option<Child>,
    generation: u32,
    /// Stopped by so many.
    stops: u32,
}

impl Clients {
    /// No client yet. The seed of `orders` is that of the run.
    pub(crate) fn new(orders: Orders, count: usize, logs: &Path) -> Result<Self> {
        ensure!(count <= CLIENTS_MAX, "{count} clients are more than {CLIENTS_MAX}");
        fs::create_dir_all(logs)?;
        let slots = Mutex::new((0..count).map(|_| Slot::default()).collect());
        Ok(Self { orders, logs: logs.to_owned(), slots })
    }

    pub(crate) fn len(&self) -> usize {
        self.slots().len()
    }

    /// Fills every place.
    pub(crate) fn start_all(&self) -> Result<()> {
        (0..self.len()).try_for_each(|slot| self.start(slot))
    }

    /// Fills this place anew, unless it is filled.
    pub(crate) fn start(&self, slot: usize) -> Result<()> {
        let mut slots = self.slots();
        let place = &mut slots[slot];
        if place.process.is_some() {
            return Ok(());
        }
        ensure!(place.generation < GENERATIONS_MAX, "too many clients were started");
        let client = ClientId { slot, generation: place.generation };
        // A seed for each: by its place alone, all that fill it would do the same.
        let seed = self.orders.seed.wrapping_mul(31).wrapping_add(client.number() * 64);
        let orders = Orders { client, seed, ..self.orders.clone() };
        let log = File::create(self.logs.join(format!("{client}.log")))?;
        let process = Command::new(env::current_exe()?)
            .env(ROLE, serde_json::to_string(&orders)?)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            // See `worker` for what this is good for.
            .process_group(0)
            .spawn()
            .context("cannot start a client")?;
        place.process = Some(process);
        place.generation += 1;
        Ok(())
    }

    /// The client in this place.
    pub(crate) fn client(&self, slot: usize) -> Option<ClientId> {
        let slots = self.slots();
        let place = slots.get(slot)?;
        place.process.as_ref().map(|_| ClientId { slot, generation: place.generation - 1 })
    }

    /// The process in this place.
    pub(crate) fn pid(&self, slot: usize) -> Option<u32> {
        self.slots().get(slot)?.process.as_ref().map(Child::id)
    }

    /// Stops this client where it stands, until as many [`resume`](Self::resume) it; false when it is gone.
    pub(crate) fn stop(&self, client: ClientId) -> Result<bool> {
        let mut slots = self.slots();
        let Some((place, pid)) = found(&mut slots, client) else { return Ok(false) };
        kill_process(pid, Signal::STOP)?;
        place.stops += 1;
        let start = Instant::now();
        while !stands_still(pid) {
            ensure!(start.elapsed() < STOP_MAX, "{client} does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(true)
    }

    pub(crate) fn resume(&self, client: ClientId) -> Result<()> {
        let mut slots = self.slots();
        let Some((place, pid)) = found(&mut slots, client) else { return Ok(()) };
        place.stops = place.stops.saturating_sub(1);
        if place.stops == 0 {
            kill_process(pid, Signal::CONT)?;
        }
        Ok(())
    }

    /// Ends this client as `kill -9` does; false when it is gone already.
    pub(crate) fn kill(&self, client: ClientId) -> Result<bool> {
        let mut slots = self.slots();
        let Some((place, _)) = found(&mut slots, client) else { return Ok(false) };
        let Some(mut process) = place.process.take() else { return Ok(false) };
        place.stops = 0;
        process.kill()?;
        process.wait()?;
        Ok(true)
    }

    /// Waits until all have ended by themselves, and says which of them failed.
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

    /// Those that have ended although nobody asked them to.
    pub(crate) fn deserted(&self) -> Vec<String> {
        let mut slots = self.slots();
        let gone = slots.iter_mut().enumerate().filter_map(|(slot, place)| {
            let status = place.process.as_mut()?.try_wait().ok()??;
            Some(format!("client {slot} ended by itself: {status}"))
        });
        gone.collect()
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.slots().iter().filter_map(|place| Some(place.process.as_ref()?.id())).collect()
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        for place in self.slots().iter_mut() {
            if let Some(mut process) = place.process.take() {
                // Nobody is left to hear of a failure, and a process whose pipe is closed ends by itself.
                let _ = process.kill();
                let _ = process.wait();
            }
        }
    }
}

/// This very client, not the one after it.
fn found(slots: &mut [Slot], client: ClientId) -> Option<(&mut Slot, Pid)> {
    let place = slots.get_mut(client.slot).filter(|place| place.generation == client.generation + 1)?;
    let pid = Pid::from_raw(place.process.as_ref()?.id().cast_signed())?;
    Some((place, pid))
}

/// Whether every thread has stopped, or ended: the signal reaches them one by one.
fn stands_still(pid: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
    threads.into_iter().flatten().flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['T', 'Z']))
    })
}
