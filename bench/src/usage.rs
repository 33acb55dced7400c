//! What processes and servers have used.

use std::{fs, time::Duration};

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};

/// What a server has used so far.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Requests, or whatever the server counts, that it has received.
    pub received: u64,
    /// What it has sent.
    pub sent: u64,
    /// Time of the processor.
    pub cpu: Duration,
}

/// Time of the processor that this process has used.
pub(crate) fn own_cpu() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec.unsigned_abs() as u32)
}

/// Time of the processor that another process has used, from proc_pid_stat(5).
pub(crate) fn cpu_of(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    // utime and stime are fields 14 and 15; behind the name in brackets, field 3 is the first.
    let ticks: u64 =
        fields.get(11..13).context("a short stat")?.iter().flat_map(|field| field.parse::<u64>()).sum();
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}
