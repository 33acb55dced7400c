//! The job: a command in its own process group, its watcher, and the terminal.

use std::{
    ffi::OsString,
    io::ErrorKind,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::Command,
    time::Duration,
};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_current_process_group, wait};

use crate::{
    clock,
    exit::{Failure, SYSTEM, status_of_signal},
    group::Group,
    log::{self, say_or_drop},
    terminal::Terminal,
    trampoline::Gate,
    watcher::Watcher,
};

/// Watchers started for one job, at most; one that was killed is replaced.
const WATCHERS_MAX: u32 = 8;

/// A running job.
#[derive(Debug)]
pub(crate) struct Job {
    group: Group,
    status: Option<u8>,
    was_started: bool,
    watcher: Watcher,
    watchers_started: u32,
    deadline: Option<Duration>,
    /// The locked file of a lock that would end with this process; the watcher keeps it open longer.
    lock: Option<OwnedFd>,
    terminal: Option<Terminal>,
    /// Whether it was reported that the job cannot be signalled.
    signal_failure_reported: bool,
}

impl Job {
    /// Starts `command` with these changes of its environment; `None` removes a variable.
    ///
    /// The watcher knows the group and the deadline of the lock before the command starts, and a foreground command is
    /// in the foreground from its start.
    pub(crate) fn start(
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, Option<String>)>,
        lock: Option<OwnedFd>,
        deadline: Option<Duration>,
    ) -> Result<Self, Failure> {
        let failed = |cause| Failure::system("start the command", cause);
        let mut watcher = start_watcher(lock.as_ref())?;
        let (gate, reader, mut trampoline) = Gate::before(command).map_err(failed)?;
        for (variable, value) in environment {
            set(&mut trampoline, variable, value);
        }
        let leader = trampoline.process_group(0).spawn().map_err(failed)?;
        let group = Group::led_by(Pid::from_child(&leader));
        watcher.watch(group, deadline).map_err(|cause| Failure::system("watch the job", cause))?;
        let mut terminal = Terminal::open();
        if let Some(terminal) = terminal.as_mut().filter(|terminal| terminal.is_for_the_job()) {
            terminal.give_to(group);
        }
        let was_started = match gate.open(reader) {
            // Nobody waits there any more: the watcher has killed the group at its deadline, which `reap` finds.
            Err(cause) if cause.kind() == ErrorKind::BrokenPipe => false,
            opened => opened.map(|()| true).map_err(failed)?,
        };
        Ok(Self {
            group,
            status: None,
            was_started,
            watcher,
            watchers_started: 1,
            deadline,
            lock,
            terminal,
            signal_failure_reported: false,
        })
    }

    pub(crate) fn group(&self) -> Group {
        self.group
    }

    /// Returns the deadline that the watcher has.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Returns the exit status of the command, once it has ended; other members of its group may still run.
    pub(crate) fn status(&self) -> Option<u8> {
        self.status
    }

    /// Whether the command was allowed to start, before its process ended.
    pub(crate) fn was_started(&self) -> bool {
        self.was_started
    }

    /// Handles every child that has ended or stopped. As the first process of a container, this program gets foreign
    /// children, too; it reaps them.
    pub(crate) fn reap(&mut self) -> Result<(), Failure> {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            if pid == self.group.id() {
                match status.stopping_signal() {
                    Some(signal) => self.handle_stop(signal),
                    None => self.status = Some(shell_status(status)),
                }
            } else if pid == self.watcher.pid() && !status.stopped() {
                self.replace_watcher()?;
            }
        }
        Ok(())
    }

    /// Sends the deadline of the lock to the watcher.
    pub(crate) fn send_deadline(&mut self, deadline: Option<Duration>) -> Result<(), Failure> {
        self.deadline = deadline;
        match self.watcher.set_deadline(deadline) {
            Ok(()) => Ok(()),
            Err(_) => self.replace_watcher(),
        }
    }

    /// Ends the job: with SIGTERM, or with SIGKILL if `kill`.
    pub(crate) fn end(&mut self, kill: bool) {
        let sent = if kill { self.group.kill() } else { self.group.terminate() };
        if let Err(cause) = sent
            && !std::mem::replace(&mut self.signal_failure_reported, true)
        {
            say_or_drop(format_args!("cannot end the job: {cause}"));
        }
    }

    /// Forwards a signal to the job.
    pub(crate) fn forward(&mut self, signal: Signal) {
        let sent = match signal {
            Signal::CONT => return self.resume(),
            // A stopped process does not handle the signal.
            Signal::TERM | Signal::HUP => {
                self.group.send(signal).and_then(|()| self.group.send(Signal::CONT))
            }
            _ => self.group.send(signal),
        };
        if let Err(cause) = sent {
            say_or_drop(format_args!("cannot forward {signal:?} to the job: {cause}"));
        }
    }

    /// Dismisses the watcher, after the group is gone, and takes the terminal back.
    pub(crate) fn finish(self) {
        self.watcher.dismiss();
    }

    /// Handles a stopped command. Under a shell with job control this program stops as well, as one job; meanwhile the
    /// watcher guards the deadline. Without a terminal the job stays stopped and the lock is kept.
    fn handle_stop(&mut self, by: i32) {
        let Some(terminal) = &mut self.terminal else { return };
        let asks_for_terminal = by == Signal::TTIN.as_raw() || by == Signal::TTOU.as_raw();
        if asks_for_terminal && terminal.give_to(self.group) {
            self.forward_continue();
            return;
        }
        if terminal.has_a_shell() {
            terminal.take_back();
            if let Some(deadline) = self.deadline {
                let left = deadline.saturating_sub(clock::now()).as_secs();
                say_or_drop(format_args!(
                    "stopped; continue it (fg) within {left} s, or the job is killed before its lock ends"
                ));
            }
            // A stopped printer prints nothing. While it is waited for, the watcher guards the deadline.
            log::finish();
            // The shell sees this whole group as one job. Returns when continued.
            let _ = kill_current_process_group(Signal::STOP);
            self.resume();
        } else if by == Signal::TSTP.as_raw() {
            self.forward_continue();
        }
    }

    /// Handles a continued program: in the foreground it gives the terminal to the job again.
    fn resume(&mut self) {
        if let Some(terminal) = self.terminal.as_mut().filter(|terminal| terminal.is_for_the_job()) {
            terminal.give_to(self.group);
        }
        self.forward_continue();
    }

    fn forward_continue(&self) {
        let _ = self.group.send(Signal::CONT);
    }

    /// Replaces a watcher that was killed or does not read its pipe.
    fn replace_watcher(&mut self) -> Result<(), Failure> {
        if self.watchers_started == WATCHERS_MAX {
            return Err(Failure::new(
                SYSTEM,
                format!("the job's watcher process was killed {WATCHERS_MAX} times"),
            ));
        }
        self.watchers_started += 1;
        let mut watcher = start_watcher(self.lock.as_ref())?;
        // An error means that it is dead already, which `reap` will notice.
        let _ = watcher.watch(self.group, self.deadline);
        std::mem::replace(&mut self.watcher, watcher).kill();
        Ok(())
    }
}

fn start_watcher(lock: Option<&OwnedFd>) -> Result<Watcher, Failure> {
    lock.map(|lock| lock.as_fd().try_clone_to_owned())
        .transpose()
        .and_then(Watcher::start)
        .map_err(|cause| Failure::system("start the job's watcher", cause))
}

fn set(command: &mut Command, variable: &str, value: Option<String>) {
    match value {
        Some(value) => command.env(variable, value),
        None => command.env_remove(variable),
    };
}

/// Returns the exit status that shells report for a process that ended like this.
fn shell_status(status: WaitStatus) -> u8 {
    match status.terminating_signal() {
        Some(signal) => status_of_signal(signal),
        None => status.exit_status().and_then(|status| u8::try_from(status).ok()).unwrap_or(u8::MAX),
    }
}
