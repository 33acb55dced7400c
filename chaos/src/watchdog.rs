//! Ends a run that takes too long or whose processes have too many threads.

use std::{
    fs,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process};

use crate::coordinator::Coordinator;

/// Maximum number of threads of one process. A client has about thirty, the coordinator one for each proxy and client.
const THREADS_MAX: usize = 150;

const CHECK_PAUSE: Duration = Duration::from_millis(500);

/// Watches this process and the clients of this coordinator. The servers end with this process.
pub(crate) fn watch(coordinator: &Arc<Coordinator>, longest: Duration) -> Result<()> {
    let (coordinator, start) = (Arc::downgrade(coordinator), Instant::now());
    thread::Builder::new().name("chaos-watchdog".to_owned()).spawn(move || {
        while let Some(coordinator) = coordinator.upgrade() {
            let pids = coordinator.clients().pids();
            let all = pids.iter().copied().chain([std::process::id()]);
            let offender = all.clone().find(|&pid| threads(pid) > THREADS_MAX);
            let why = match offender {
                Some(pid) => format!("process {pid} has {} threads", threads(pid)),
                None if start.elapsed() > longest => format!("it has not ended within {longest:.0?}"),
                None => {
                    drop(coordinator);
                    thread::sleep(CHECK_PAUSE);
                    continue;
                }
            };
            eprintln!("chaos: run aborted: {why}");
            for pid in pids {
                // This fails for a process that is gone.
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
