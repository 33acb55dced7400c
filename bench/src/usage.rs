//! What processes and servers have used.

use std::{fs, ops::Sub, time::Duration};

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// What the servers of a store have used so far, or in between. What a store does not count is absent.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Usage {
    /// CPU time in microseconds.
    pub cpu_us: u64,
    /// Requests: messages (etcd), packets (ZooKeeper), reads of a socket (Redis; several requests that arrive together
    /// are one).
    pub requests: Option<u64>,
    /// What they cause inside: commands with those in scripts (Redis), consensus proposals (etcd).
    pub commands: Option<u64>,
    /// Bytes from clients.
    pub bytes_in: Option<u64>,
    /// Bytes to clients.
    pub bytes_out: Option<u64>,
}

impl Usage {
    /// Adds the usage of another server of the same store.
    pub(crate) fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    fn with(self, other: Self, join: impl Fn(u64, u64) -> u64) -> Self {
        let both = |one: Option<u64>, other: Option<u64>| Some(join(one?, other?));
        Self {
            cpu_us: join(self.cpu_us, other.cpu_us),
            requests: both(self.requests, other.requests),
            commands: both(self.commands, other.commands),
            bytes_in: both(self.bytes_in, other.bytes_in),
            bytes_out: both(self.bytes_out, other.bytes_out),
        }
    }
}

impl Sub for Usage {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        self.with(earlier, u64::saturating_sub)
    }
}

/// Returns the CPU time of this process.
pub(crate) fn own_cpu() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec.unsigned_abs() as u32)
}

/// Returns the resident memory of this process, in bytes.
pub(crate) fn own_memory() -> Result<u64> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).context("/proc/self/statm is too short")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// Returns the CPU time of another process in microseconds: of the threads that it has now, so that differences count where
/// no thread ends in between. `/proc/PID/stat` has those that ended, too, but in steps of 10 ms.
pub(crate) fn cpu_of(pid: u32) -> Result<u64> {
    let mut nanos = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the two reads. The first number is the time that it ran.
        let times = fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
        nanos += times.split(' ').next().and_then(|time| time.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(nanos / 1_000)
}
