//! The process table.

use rustix::process::Pid;

use lockkit_testbed::eventually;

/// A line of the process table.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) state: char,
}

impl Process {
    /// Parses a line of `/proc/PID/stat`.
    pub(crate) fn parse(stat: &str) -> Option<Self> {
        let (pid, rest) = stat.split_once(" (")?;
        let mut fields = rest.rsplit_once(") ")?.1.split(' ');
        let state = fields.next()?.chars().next()?;
        let mut number = || fields.next()?.parse().ok();
        Some(Self { pid: pid.parse().ok()?, state, parent: number()?, group: number()? })
    }

    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }

    pub(crate) fn arguments(&self) -> String {
        let bytes = std::fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    }

    pub(crate) fn environment(&self) -> Vec<u8> {
        std::fs::read(format!("/proc/{}/environ", self.pid)).unwrap()
    }

    /// Returns the open descriptors and their targets.
    pub(crate) fn descriptors(&self) -> Vec<(i32, String)> {
        let mut descriptors: Vec<(i32, String)> = std::fs::read_dir(format!("/proc/{}/fd", self.pid))
            .unwrap()
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let target = std::fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned();
                Some((entry.file_name().to_str()?.parse().ok()?, target))
            })
            .collect();
        descriptors.sort();
        descriptors
    }
}

/// Returns every process that is not a zombie.
pub(crate) fn alive() -> Vec<Process> {
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("stat")).ok())
        .filter_map(|stat| Process::parse(&stat))
        .filter(Process::is_alive)
        .collect()
}

/// Returns the members of a group that are alive.
pub(crate) fn members(group: i32) -> Vec<Process> {
    alive().into_iter().filter(|process| process.group == group).collect()
}

/// Returns the watcher of a `lockkit run`, if there is one.
pub(crate) fn watcher_of(lockkit: Pid) -> Option<Process> {
    child_of(lockkit, |process| process.arguments().contains("watch-group"))
}

/// Waits for the command of a `lockkit run`; a process has no arguments while it executes another program.
pub(crate) fn command_of(lockkit: Pid) -> Process {
    eventually("the command", || running_command_of(lockkit))
}

/// Returns the current command of a `lockkit run`, if there is one.
pub(crate) fn running_command_of(lockkit: Pid) -> Option<Process> {
    child_of(lockkit, |process| {
        let arguments = process.arguments();
        !arguments.is_empty() && !arguments.starts_with("lockkit ")
    })
}

fn child_of(lockkit: Pid, wanted: impl Fn(&Process) -> bool) -> Option<Process> {
    let parent = lockkit.as_raw_nonzero().get();
    alive().into_iter().find(|process| process.parent == parent && wanted(process))
}

/// Whether a process, or one of its threads (`PID/task/TID`), blocks every signal that can be blocked.
pub(crate) fn blocks_all_signals(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim();
    let mask = u64::from_str_radix(mask, 16).unwrap();
    // KILL and STOP cannot be blocked, and the C library keeps 32 and 33.
    let ordinary = |signal: u32| !matches!(signal, 9 | 19);
    (1..32).filter(|signal| ordinary(*signal)).all(|signal| mask & (1 << (signal - 1)) != 0)
}
