//! The process group of a job: the unit that gets signals, and whose end frees the lock.

use std::{io, thread, time::Duration};

use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process_group, test_kill_process_group},
};

/// Longest pause between two checks of a group that is ending.
pub(crate) const GROUP_CHECK_PAUSE_MAX: Duration = Duration::from_millis(50);

/// A process group, identified by the process id of the command that leads it.
///
/// The kernel does not reuse a group's number while a member lives or is an unreaped zombie. After the last member is
/// gone, the number is free until the next check of the group (at most [`GROUP_CHECK_PAUSE_MAX`] later). Process ids
/// are assigned in a circle, so the number recurs only after every other one was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group(Pid);

impl Group {
    pub(crate) fn led_by(leader: Pid) -> Self {
        Self(leader)
    }

    /// Returns the group with this number, which must be above 1: a signal to "group" 0 or 1 would reach this process
    /// or all processes.
    pub(crate) fn from_number(number: i32) -> Option<Self> {
        if number > 1 { Pid::from_raw(number).map(Self) } else { None }
    }

    pub(crate) fn id(self) -> Pid {
        self.0
    }

    /// Sends a signal to every member; succeeds for a group without members.
    pub(crate) fn send(self, signal: Signal) -> io::Result<()> {
        match kill_process_group(self.0, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(cause) => Err(cause.into()),
        }
    }

    /// Asks every member to end. SIGCONT, because a stopped process handles SIGTERM only once it is continued.
    pub(crate) fn terminate(self) -> io::Result<()> {
        self.send(Signal::TERM)?;
        self.send(Signal::CONT)
    }

    /// Kills every member. A process that forks at this moment cannot escape: the kernel restarts a fork with a signal
    /// pending, after the signal.
    pub(crate) fn kill(self) -> io::Result<()> {
        self.send(Signal::KILL)
    }

    /// Kills every member and waits until all are gone; a member blocked in the kernel (a dead network disk) may take
    /// arbitrarily long.
    pub(crate) fn kill_and_wait(self) {
        let mut pause = Duration::from_micros(200);
        loop {
            let _ = self.kill();
            if !self.is_alive() {
                return;
            }
            thread::sleep(pause);
            pause = (pause * 2).min(GROUP_CHECK_PAUSE_MAX);
        }
    }

    /// Whether a member can still run. Zombies cannot, and must not count: in a container whose first process does not
    /// reap, they stay for ever.
    pub(crate) fn is_alive(self) -> bool {
        let has_own = match test_kill_process_group(self.0) {
            Err(Errno::SRCH) => return false,
            // All members belong to other users. The table may hide those (hidepid in proc(5)).
            Err(_) => false,
            Ok(()) => true,
        };
        let runs = |members| match members {
            Members::Running => true,
            Members::Ended => false,
            Members::Unseen => !has_own,
        };
        // The table is not read atomically. It is read in the order of process ids, so a child is read after its
        // parent, unless the ids have just wrapped between the two: hence the second read.
        (0..2).any(|_| members_of(self.0).map_or(true, runs))
    }
}

/// What the process table shows of the members of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Members {
    Running,
    /// All that it shows are zombies.
    Ended,
    Unseen,
}

/// Searches the process table; fails if it cannot be read.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn members_of(group: Pid) -> io::Result<Members> {
    // The table of another pid namespace shows other ids.
    if std::fs::read_link("/proc/self")?.to_str() != Some(&*std::process::id().to_string()) {
        return Err(io::Error::other("/proc is that of another pid namespace"));
    }
    let mut members = Members::Unseen;
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit) {
            continue;
        }
        // A process that ends between the two reads is no longer a member.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        match runs_as_member(&stat, group.as_raw_nonzero().get()) {
            Some(true) => return Ok(Members::Running),
            Some(false) => members = Members::Ended,
            None => {}
        }
    }
    Ok(members)
}

/// Platforms without a readable process table have a first process that reaps zombies.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn members_of(_group: Pid) -> io::Result<Members> {
    Ok(Members::Running)
}

/// Parses a line of `/proc/PID/stat` (proc_pid_stat(5)): `pid (name) state ppid pgrp ... num_threads ...`. Returns whether
/// the process can run; `None` for one that is no member.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn runs_as_member(stat: &str, group: i32) -> Option<bool> {
    const STATE: usize = 0;
    const PGRP: usize = 2;
    const NUM_THREADS: usize = 17;
    // The name may contain anything, even parentheses and spaces: the last `) ` ends it.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field).and_then(|text| text.parse::<i32>().ok());
    if number(PGRP) != Some(group) {
        return None;
    }
    // A process whose first thread has ended looks like a zombie while its other threads run.
    let ended = matches!(fields.get(STATE), Some(&"Z" | &"X" | &"x"));
    Some(!ended || number(NUM_THREADS).is_some_and(|threads| threads > 1))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn odd_process_names_do_not_shift_the_fields() {
        let stat = |state: &str, threads: u32| {
            format!("7 (a) Z 1 9 (b) {state} 1 42 42 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 {threads} 0 5 0")
        };
        assert_eq!(runs_as_member(&stat("S", 1), 42), Some(true));
        assert_eq!(runs_as_member(&stat("T", 1), 42), Some(true), "stopped is alive");
        assert_eq!(runs_as_member(&stat("S", 1), 9), None);
        assert_eq!(runs_as_member(&stat("Z", 1), 42), Some(false));
        assert_eq!(runs_as_member(&stat("Z", 2), 42), Some(true), "the first thread has ended, another runs");
        assert_eq!(runs_as_member("", 42), None);
    }

    #[test]
    fn group_numbers_that_mean_all_processes_are_refused() {
        assert_eq!([-7, 0, 1].map(Group::from_number), [None; 3]);
        assert!(Group::from_number(2).is_some());
    }
}
