//! Ends a run that has got out of hand: one that does not end, or whose processes have too many threads.

use std::{
    fs,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process};

use crate::hub::Hub;

/// Threads of one process: a client has some thirty at most, the coordinator one for each proxy and client.
const THREADS_MAX: usize = 150;

const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// From now on this process, and the clients of this hub, are watched. The servers end with this process.
pub(crate) fn watch(hub: &Arc<Hub>, longest: Duration) -> Result<()> {
    let (hub, start) = (Arc::downgrade(hub), Instant::now());
    thread::Builder::new().name("chaos-watchdog".to_owned()).spawn(move || {
        while let Some(hub) = hub.upgrade() {
            let pids = hub.clients().pids();
            let all = pids.iter().copied().chain([std::process::id()]);
            let crowded = all.clone().find(|&pid| threads(pid) > THREADS_MAX);
            let why = match crowded {
                Some(pid) => format!("process {pid} has {} threads", threads(pid)),
                None if start.elapsed() > longest => format!("it does not end within {longest:.0?}"),
                None => {
                    drop(hub);
                    thread::sleep(LOOK_PAUSE);
                    continue;
                }
            };
            eprintln!("chaos: the run is ended: {why}");
            for pid in pids {
                // One that has gone needs no end.
                let _ = Pid::from_raw(pid.cast_signed()).map(|pid| kill_process(pid, Signal::KILL));
            }
            std::process::exit(2);
        }
    })?;
    Ok(())
}

fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}
