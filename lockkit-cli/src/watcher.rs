//! `lockkit watch-group`: ends the job when `lockkit run` no longer can.
//!
//! What can go wrong, and what then happens:
//!
//! * `lockkit run` is killed (-9, out of memory): the pipe from it ends, and the watcher kills the job's group at once.
//!   A lease outlives that by far. A file lock would not: it ends with the process. So the watcher shares the lock's
//!   descriptor (the lock belongs to the open file, not to the process) and drops it when the group is gone.
//! * `lockkit run` is stopped (Ctrl-Z, SIGSTOP) or starved, and renews no more: the watcher knows the deadline that
//!   was last acknowledged and kills the group shortly before it.
//! * The watcher is killed: `lockkit run`, its parent, starts another one.
//! * Both are killed at the same moment: the job runs on; only its fencing token protects then.
//!
//! The pipe carries lines: `group N`, `deadline NANOSECONDS` (on the clock of [`clock`]) or `deadline never`, `done`. The
//! watcher lives in a process group of its own, with every signal blocked, and keeps no descriptor but the pipe and the
//! lock: `$(lockkit run ...)` must not wait for it.

use std::{
    io::{self, PipeWriter, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::Stdio,
    time::Duration,
};

use nix::sys::signal::SigSet;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::ioctl_fionbio,
    process::{Pid, Signal, kill_process},
};

use crate::{clock, group::Group, program};

/// The hidden subcommand.
pub(crate) const NAME: &str = "watch-group";

/// The watcher kills this long before the deadline: after `lockkit run` itself should have done so.
const MARGIN: Duration = Duration::from_millis(50);

/// Longest sleep of the watcher: a poll does not count the time that the machine is suspended, the deadline does.
const LOOK_PAUSE: Duration = Duration::from_millis(250);

/// Longest unread text that is kept from a peer of another version, in bytes.
const LINE_BYTES_MAX: usize = 4096;

/// A watcher process, as `lockkit run` sees it.
#[derive(Debug)]
pub(crate) struct Watcher {
    pid: Pid,
    pipe: PipeWriter,
    deadline: Option<Duration>,
}

impl Watcher {
    /// Starts a watcher. It shares `lock`, an open file that is locked, and keeps it until the group is gone.
    pub(crate) fn start(lock: Option<OwnedFd>) -> io::Result<Self> {
        let (reader, pipe) = io::pipe()?;
        // Should the watcher be stopped, the pipe fills up: an error then, not a hang.
        ioctl_fionbio(&pipe, true)?;
        let mut command = program()?;
        command.arg(NAME).env_clear().current_dir("/").process_group(0);
        command.stdin(Stdio::from(OwnedFd::from(reader))).stderr(Stdio::null());
        command.stdout(lock.map_or_else(Stdio::null, Stdio::from));
        let pid = Pid::from_child(&command.spawn()?);
        Ok(Self { pid, pipe, deadline: None })
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Tells which group to watch.
    pub(crate) fn watch(&mut self, group: Group) -> io::Result<()> {
        self.tell(&format!("group {}\n", group.id().as_raw_nonzero()))
    }

    /// Tells until when the lock is held: `None` where a hold has no end of its own. Repeats nothing.
    pub(crate) fn set_deadline(&mut self, deadline: Option<Duration>) -> io::Result<()> {
        /// Differences below this come from reading two clocks one after the other.
        const SAME: Duration = Duration::from_millis(1);
        let same = match (self.deadline, deadline) {
            (Some(old), Some(new)) => old.abs_diff(new) < SAME,
            (old, new) => old == new,
        };
        if same {
            return Ok(());
        }
        self.deadline = deadline;
        match deadline {
            Some(deadline) => self.tell(&format!("deadline {}\n", deadline.as_nanos())),
            None => self.tell("deadline never\n"),
        }
    }

    /// Tells that the group is gone: the watcher ends without a signal to anybody.
    pub(crate) fn dismiss(mut self) {
        let _ = self.tell("done\n");
    }

    /// Ends a watcher that does not listen. Its pipe is closed after the signal is on its way, or it would take that
    /// for the death of `lockkit run`.
    pub(crate) fn kill(self) {
        let _ = kill_process(self.pid, Signal::KILL);
    }

    fn tell(&mut self, line: &str) -> io::Result<()> {
        // Shorter than PIPE_BUF: written as a whole or not at all.
        self.pipe.write_all(line.as_bytes())
    }
}

/// What the watcher knows.
#[derive(Debug, Default, PartialEq, Eq)]
struct Watch {
    group: Option<Group>,
    deadline: Option<Duration>,
    done: bool,
}

impl Watch {
    /// Takes in one line; what it does not understand it leaves alone.
    fn hear(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("group", number)) => self.group = number.parse().ok().and_then(Group::from_number),
            Some(("deadline", nanos)) => self.deadline = nanos.parse().ok().map(Duration::from_nanos),
            None if line == "done" => self.done = true,
            _ => {}
        }
    }

    /// Takes in every complete line of `text` and leaves the rest there.
    fn hear_all(&mut self, text: &mut Vec<u8>) {
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            self.hear(String::from_utf8_lossy(&line).trim_end());
        }
        text.truncate(LINE_BYTES_MAX);
    }
}

/// The watcher process. Returns when the job is over, one way or the other.
pub(crate) fn watch_group() {
    let _ = SigSet::all().thread_block();
    close_inherited();
    if let Some(group) = watch(io::stdin().as_fd()) {
        group.kill_and_wait();
    }
}

/// Reads the pipe until the group has to be killed, or (`None`) is gone.
fn watch(pipe: impl AsFd) -> Option<Group> {
    let mut watch = Watch::default();
    let mut unread = Vec::new();
    while !watch.done {
        let left = watch.deadline.map(|deadline| deadline.saturating_sub(clock::now() + MARGIN));
        if left == Some(Duration::ZERO) {
            return watch.group;
        }
        let pause = left.map_or(LOOK_PAUSE, |left| left.min(LOOK_PAUSE));
        let pause = Timespec { tv_sec: 0, tv_nsec: i64::from(pause.subsec_nanos()) };
        let readable = poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&pause));
        if readable != Ok(0) {
            let mut buffer = [0; 512];
            match rustix::io::read(&pipe, &mut buffer) {
                Ok(0) => return watch.group,
                Ok(length) => unread.extend(buffer.iter().take(length)),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return watch.group,
            }
            watch.hear_all(&mut unread);
        }
    }
    None
}

/// Closes what this process inherited beside its standard streams: descriptors that some ancestor left open for the
/// job. Nothing in this process owns them.
fn close_inherited() {
    let listed = std::fs::read_dir("/dev/fd").map(|entries| {
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect::<Vec<i32>>()
    });
    for descriptor in listed.unwrap_or_default().into_iter().filter(|descriptor| *descriptor > 2) {
        // The listing's own descriptor is among them, closed already: an error that says so.
        let _ = nix::unistd::close(descriptor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive_in_pieces() {
        let mut watch = Watch::default();
        let mut text = b"group 12\ndeadline 15".to_vec();
        watch.hear_all(&mut text);
        assert_eq!((watch.group, watch.deadline), (Group::from_number(12), None));
        text.extend(b"00\nnews\n");
        watch.hear_all(&mut text);
        assert_eq!(watch.deadline, Some(Duration::from_nanos(1500)));
        text.extend(b"deadline never\ndone\n");
        watch.hear_all(&mut text);
        assert_eq!(watch, Watch { group: Group::from_number(12), deadline: None, done: true });
    }

    #[test]
    fn no_line_makes_it_kill_everybody() {
        let mut watch = Watch::default();
        for number in ["0", "1", "-1", "", "x", "99999999999"] {
            watch.hear(&format!("group {number}"));
            assert_eq!(watch.group, None, "{number}");
        }
    }
}
