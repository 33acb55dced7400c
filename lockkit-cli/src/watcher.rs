//! `lockkit watch-group`: ends the job when `lockkit run` cannot.
//!
//! Failure cases:
//!
//! * `lockkit run` is killed (-9, out of memory): its pipe closes, and the watcher kills the job's group at once. A
//!   lease lasts far longer than that, but a file lock would end with the process. So the watcher shares the lock's
//!   descriptor (the lock belongs to the open file, not to the process) and closes it when the group is gone.
//! * `lockkit run` is stopped (Ctrl-Z, SIGSTOP) or starved, and sends no renewals: the watcher knows the last
//!   acknowledged deadline and kills the group shortly before it. It gets the first deadline together with the group,
//!   before the command starts: `lockkit run` may be stopped before it sends another one.
//! * The watcher is killed: `lockkit run`, its parent, starts another one.
//! * Both are killed at the same moment: the job continues, and only its fencing token protects the resource.
//!
//! The pipe carries lines: `group N`, `deadline NANOSECONDS` (on the clock of [`clock`]) or `deadline never`, `done`.
//! The watcher has its own process group, blocks every signal, and keeps no descriptor except the pipe and the lock:
//! `$(lockkit run ...)` must not wait for it.

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

/// The watcher kills this long before the deadline: later than `lockkit run` itself does.
const MARGIN: Duration = Duration::from_millis(50);

/// Longest sleep of the watcher: a poll does not count suspended time, the deadline does.
const CLOCK_CHECK_MAX: Duration = Duration::from_millis(250);

/// Longest incomplete line that is kept, in bytes, in case the peer has another version.
const LINE_BYTES_MAX: usize = 4096;

/// A watcher process, as `lockkit run` sees it.
#[derive(Debug)]
pub(crate) struct Watcher {
    pid: Pid,
    pipe: PipeWriter,
    deadline: Option<Duration>,
}

impl Watcher {
    /// Starts a watcher. It shares `lock`, an open locked file, and keeps it open until the group is gone.
    pub(crate) fn start(lock: Option<OwnedFd>) -> io::Result<Self> {
        let (reader, pipe) = io::pipe()?;
        // If the watcher is stopped, the pipe fills up: a write must fail then, not block.
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

    /// Sends the group to watch and the deadline of its lock; `None` for a hold without a deadline.
    pub(crate) fn watch(&mut self, group: Group, deadline: Option<Duration>) -> io::Result<()> {
        self.deadline = deadline;
        self.send(&format!("group {}\n{}", group.id().as_raw_nonzero(), deadline_line(deadline)))
    }

    /// Sends the deadline of the lock, if it has changed; `None` for a hold without a deadline.
    pub(crate) fn set_deadline(&mut self, deadline: Option<Duration>) -> io::Result<()> {
        /// Smaller differences come from reading two clocks one after the other.
        const SAME: Duration = Duration::from_millis(1);
        let same = match (self.deadline, deadline) {
            (Some(old), Some(new)) => old.abs_diff(new) < SAME,
            (old, new) => old == new,
        };
        if same {
            return Ok(());
        }
        self.deadline = deadline;
        self.send(&deadline_line(deadline))
    }

    /// Reports that the group is gone: the watcher ends without sending a signal.
    pub(crate) fn dismiss(mut self) {
        let _ = self.send("done\n");
    }

    /// Kills a watcher that does not read its pipe. The pipe closes after the signal was sent; otherwise the watcher
    /// would take the closed pipe for the death of `lockkit run`.
    pub(crate) fn kill(self) {
        let _ = kill_process(self.pid, Signal::KILL);
    }

    fn send(&mut self, line: &str) -> io::Result<()> {
        // Shorter than PIPE_BUF: written completely or not at all.
        self.pipe.write_all(line.as_bytes())
    }
}

/// Returns the line that sends a deadline.
fn deadline_line(deadline: Option<Duration>) -> String {
    match deadline {
        Some(deadline) => format!("deadline {}\n", deadline.as_nanos()),
        None => "deadline never\n".into(),
    }
}

/// What the watcher has read so far.
#[derive(Debug, Default, PartialEq, Eq)]
struct WatchState {
    group: Option<Group>,
    deadline: Option<Duration>,
    done: bool,
}

impl WatchState {
    /// Applies one line; ignores unknown lines.
    fn apply_line(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("group", number)) => self.group = number.parse().ok().and_then(Group::from_number),
            Some(("deadline", nanos)) => self.deadline = nanos.parse().ok().map(Duration::from_nanos),
            None if line == "done" => self.done = true,
            _ => {}
        }
    }

    /// Returns the time until the group must be killed, if there is a deadline.
    fn left(&self, now: Duration) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_sub(now + MARGIN))
    }

    /// Applies every complete line of `text` and keeps the rest there.
    fn apply_lines(&mut self, text: &mut Vec<u8>) {
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            self.apply_line(String::from_utf8_lossy(&line).trim_end());
        }
        text.truncate(LINE_BYTES_MAX);
    }
}

/// Runs the watcher process. Returns when the job is over.
pub(crate) fn watch_group() {
    let _ = SigSet::all().thread_block();
    close_inherited();
    if let Some(group) = watch(io::stdin().as_fd()) {
        group.kill_and_wait();
    }
}

/// Reads the pipe until the group must be killed, or (`None`) is gone.
fn watch(pipe: impl AsFd) -> Option<Group> {
    let mut watch = WatchState::default();
    let mut unread = Vec::new();
    while !watch.done {
        let left = watch.left(clock::now());
        if left == Some(Duration::ZERO) {
            return watch.group;
        }
        let pause = pause(left);
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
            watch.apply_lines(&mut unread);
        }
    }
    None
}

/// Returns how long the watcher sleeps.
fn pause(left: Option<Duration>) -> Duration {
    left.map_or(CLOCK_CHECK_MAX, |left| left.min(CLOCK_CHECK_MAX))
}

/// Closes all inherited descriptors except the standard streams: some ancestor left them open for the job. No value of
/// this process owns them.
fn close_inherited() {
    let listed = std::fs::read_dir("/dev/fd").map(|entries| {
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect::<Vec<i32>>()
    });
    for descriptor in listed.unwrap_or_default().into_iter().filter(|descriptor| *descriptor > 2) {
        // The listing's own descriptor is among them and already closed, which is an error that does not matter.
        let _ = nix::unistd::close(descriptor);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn group_is_sent_together_with_its_deadline() {
        let (mut reader, pipe) = io::pipe().unwrap();
        let mut watcher = Watcher { pid: rustix::process::getpid(), pipe, deadline: None };
        let (group, deadline) = (Group::from_number(12).unwrap(), Some(Duration::from_nanos(1500)));
        watcher.watch(group, deadline).unwrap();
        let mut text = [0; 64];
        let length = reader.read(&mut text).unwrap();
        assert_eq!(&text[..length], b"group 12\ndeadline 1500\n");
        // It is not sent again.
        watcher.set_deadline(deadline).unwrap();
        drop(watcher);
        assert_eq!(reader.read(&mut text).unwrap(), 0);
    }

    /// Those of a short ttl are small.
    #[test]
    fn each_renewal_is_sent_and_counts_from_the_deadline_that_was_sent() {
        let (mut reader, pipe) = io::pipe().unwrap();
        let first = Duration::from_secs(1);
        let mut watcher = Watcher { pid: rustix::process::getpid(), pipe, deadline: Some(first) };
        for micros in [600, 1_200, 1_800, 2_400] {
            watcher.set_deadline(Some(first + Duration::from_micros(micros))).unwrap();
        }
        watcher.set_deadline(None).unwrap();
        drop(watcher);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "deadline 1001200000\ndeadline 1002400000\ndeadline never\n");
    }

    #[test]
    fn lines_arrive_in_pieces() {
        let mut watch = WatchState::default();
        let mut text = b"group 12\ndeadline 15".to_vec();
        watch.apply_lines(&mut text);
        assert_eq!((watch.group, watch.deadline), (Group::from_number(12), None));
        text.extend(b"00\nnews\n");
        watch.apply_lines(&mut text);
        assert_eq!(watch.deadline, Some(Duration::from_nanos(1500)));
        text.extend(b"deadline never\ndone\n");
        watch.apply_lines(&mut text);
        assert_eq!(watch, WatchState { group: Group::from_number(12), deadline: None, done: true });
    }

    #[test]
    fn group_is_killed_before_the_deadline_and_the_clock_is_checked_until_then() {
        let ms = Duration::from_millis;
        let mut watch = WatchState::default();
        assert_eq!(watch.left(ms(7)), None);
        watch.apply_line("deadline 10000000000");
        assert_eq!(watch.left(ms(9_000)), Some(ms(950)));
        assert_eq!(watch.left(ms(9_950)), Some(Duration::ZERO));
        assert_eq!(watch.left(ms(11_000)), Some(Duration::ZERO));
        assert_eq!([None, Some(ms(950)), Some(ms(20))].map(pause), [ms(250), ms(250), ms(20)]);
    }

    #[test]
    fn line_without_an_end_is_cut() {
        let (mut watch, mut text) = (WatchState::default(), vec![b'x'; 10 * LINE_BYTES_MAX]);
        watch.apply_lines(&mut text);
        assert_eq!(text.len(), LINE_BYTES_MAX);
    }

    #[test]
    fn no_line_selects_group_0_or_1() {
        let mut watch = WatchState::default();
        for number in ["0", "1", "-1", "", "x", "99999999999"] {
            watch.apply_line(&format!("group {number}"));
            assert_eq!(watch.group, None, "{number}");
        }
    }
}
