//! The requests and CPU time that processes have used.

use std::{fs, time::Duration};

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};

/// What a server has used so far.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Requests, or what the server counts instead, that it has received.
    pub received: u64,
    /// What it has sent.
    pub sent: u64,
    /// CPU time.
    pub cpu: Duration,
}

/// Returns the CPU time of this process.
pub(crate) fn own_cpu() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec.unsigned_abs() as u32)
}

/// Returns the CPU time of another process, from proc_pid_stat(5).
pub(crate) fn cpu_of(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    // utime and stime are fields 14 and 15; the first field after the name in brackets is field 3.
    let ticks: u64 = fields
        .get(11..13)
        .context("/proc/PID/stat is too short")?
        .iter()
        .flat_map(|field| field.parse::<u64>())
        .sum();
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}
