//! What the processors of the machine do.

use std::{fmt::Display, fs, mem, time::Duration};

use anyhow::{Context, Result};

/// The share of their time that is free for another test program.
const FREE_SHARE: f64 = 0.2;

/// The processors since an earlier moment.
#[derive(Debug, Default)]
pub(crate) struct Processors {
    before: Option<Ticks>,
}

/// Sums of all processors since the machine started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    /// Waiting, or computing at a lowered priority.
    free: u64,
    all: u64,
}

impl Processors {
    /// Returns whether more than a fifth of the time since the last call was free. The first time, and if the system
    /// does not say, it was not.
    pub(crate) fn were_idle(&mut self) -> bool {
        let now = Ticks::now().ok();
        let before = mem::replace(&mut self.before, now);
        now.zip(before).is_some_and(|(now, before)| now.had_room_since(before))
    }
}

impl Ticks {
    fn now() -> Result<Self> {
        Self::parse(&fs::read_to_string("/proc/stat")?)
    }

    fn had_room_since(self, before: Self) -> bool {
        // The idle time of a processor may go back a little.
        let [free, all] = [self.free.saturating_sub(before.free), self.all.saturating_sub(before.all)];
        free as f64 > FREE_SHARE * all as f64
    }

    /// proc_stat(5): `user nice system idle iowait irq softirq steal` after the name `cpu`; later columns are part of
    /// the first two.
    fn parse(text: &str) -> Result<Self> {
        let line = text.lines().next().and_then(|line| line.strip_prefix("cpu "));
        let columns = line.context("/proc/stat does not begin with all processors")?.split_whitespace();
        let columns = columns.take(8).map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let [_, nice, _, idle, waiting, ..] = columns[..] else { anyhow::bail!("/proc/stat is too short") };
        Ok(Self { free: nice + idle + waiting, all: columns.iter().sum() })
    }
}

/// Returns the CPU time of a process, which may have ended and wait to be reaped, and of those of its child processes
/// that were reaped.
pub(crate) fn cpu_time(process: impl Display) -> Result<Duration> {
    let status = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // proc_pid_stat(5): field 2 is a name in parentheses; 14 to 17 are the times.
    let fields = status.rsplit_once(')').map(|(_, behind)| behind.split_whitespace().skip(11).take(4));
    let ticks = fields.context("the state of a process has no name")?.map(str::parse::<u64>);
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_secs_f64(ticks.sum::<Result<u64, _>>()? as f64 / ticks_per_second as f64))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn cpu_time_counts_child_processes() {
        let before = cpu_time("self").unwrap();
        let count =
            Command::new("sh").args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]).status();
        assert!(count.unwrap().success());
        assert!(cpu_time("self").unwrap() > before);
    }

    #[test]
    fn low_priority_and_waiting_are_free() {
        let ticks = Ticks::parse("cpu  1 20 300 4000 50000 6 7 8 900000 0\ncpu0 1 2\n").unwrap();
        assert_eq!(ticks, Ticks { free: 54_020, all: 54_342 });
        assert!(Ticks::parse("cpu  1 2 3\n").is_err() && Ticks::parse("").is_err());
    }

    #[test]
    fn more_than_a_fifth_of_the_time_is_room() {
        let ticks = |free, all| Ticks { free, all };
        assert!(ticks(121, 1_100).had_room_since(ticks(100, 1_000)));
        assert!(!ticks(120, 1_100).had_room_since(ticks(100, 1_000)));
        assert!(!ticks(99, 1_100).had_room_since(ticks(100, 1_000)));
    }

    #[test]
    fn each_look_begins_where_the_last_one_ended() {
        let mut processors = Processors::default();
        assert!(!processors.were_idle(), "there was no look before");
        let before = processors.before.unwrap();
        processors.before = Some(Ticks { free: 0, all: before.all });
        processors.were_idle();
        assert!(processors.before.unwrap().free.abs_diff(before.free) < before.free.div_ceil(2));
    }
}
