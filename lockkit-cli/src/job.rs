//! The job: a command in a process group of its own, its watcher, and the terminal.

use std::{
    ffi::OsString,
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
    exit::{Failure, SYSTEM, say, status_of_signal},
    group::Group,
    terminal::Terminal,
    trampoline::Gate,
    watcher::Watcher,
};

/// Watchers that are started for one job, should they be killed one after the other.
const WATCHERS_MAX: u32 = 8;

/// A running job.
#[derive(Debug)]
pub(crate) struct Job {
    group: Group,
    status: Option<u8>,
    watcher: Watcher,
    watchers: u32,
    deadline: Option<Duration>,
    /// The locked file of a lock that would end with this process; the watcher keeps it beyond.
    lock: Option<OwnedFd>,
    terminal: Option<Terminal>,
    /// Whether it was said that the job cannot be ended.
    refused: bool,
}

impl Job {
    /// Starts `command` with these changes to its environment; `None` takes a variable out.
    ///
    /// The watcher knows the group before the command starts, and the command starts in the foreground if it is to
    /// be there.
    pub(crate) fn start(
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, Option<String>)>,
        lock: Option<OwnedFd>,
    ) -> Result<Self, Failure> {
        let failed = |cause| Failure::system("start the command", cause);
        let mut watcher = start_watcher(lock.as_ref())?;
        let (gate, reader, mut trampoline) = Gate::before(command).map_err(failed)?;
        for (variable, value) in environment {
            set(&mut trampoline, variable, value);
        }
        let leader = trampoline.process_group(0).spawn().map_err(failed)?;
        drop(reader);
        let group = Group::led_by(Pid::from_child(&leader));
        watcher.watch(group).map_err(|cause| Failure::system("watch the job", cause))?;
        let mut terminal = Terminal::open();
        if let Some(terminal) = terminal.as_mut().filter(|terminal| terminal.is_for_the_job()) {
            terminal.give_to(group);
        }
        gate.open().map_err(failed)?;
        Ok(Self { group, status: None, watcher, watchers: 1, deadline: None, lock, terminal, refused: false })
    }

    pub(crate) fn group(&self) -> Group {
        self.group
    }

    /// The exit status of the command, once it has ended; other members of its group may run on.
    pub(crate) fn status(&self) -> Option<u8> {
        self.status
    }

    /// Takes note of every child that has ended or stopped. As the first process of a container this program gets
    /// other children than its own: they are taken off the process table.
    pub(crate) fn reap(&mut self) -> Result<(), Failure> {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            if pid == self.group.id() {
                match status.stopping_signal() {
                    Some(signal) => self.stopped(signal),
                    None => self.status = Some(shell_status(status)),
                }
            } else if pid == self.watcher.pid() && !status.stopped() {
                self.replace_watcher()?;
            }
        }
        Ok(())
    }

    /// Tells the watcher until when the lock is held.
    pub(crate) fn tell_deadline(&mut self, deadline: Option<Duration>) -> Result<(), Failure> {
        self.deadline = deadline;
        match self.watcher.set_deadline(deadline) {
            Ok(()) => Ok(()),
            Err(_) => self.replace_watcher(),
        }
    }

    /// Ends the job: asks its processes to end, or makes them.
    pub(crate) fn end(&mut self, kill: bool) {
        let sent = if kill { self.group.kill() } else { self.group.terminate() };
        if let Err(cause) = sent
            && !std::mem::replace(&mut self.refused, true)
        {
            say(format_args!("cannot end the job: {cause}"));
        }
    }

    /// Passes a signal on to the job.
    pub(crate) fn forward(&mut self, signal: Signal) {
        let sent = match signal {
            Signal::CONT => return self.resume(),
            // A stopped process would not notice that it should end.
            Signal::TERM | Signal::HUP => {
                self.group.send(signal).and_then(|()| self.group.send(Signal::CONT))
            }
            _ => self.group.send(signal),
        };
        if let Err(cause) = sent {
            say(format_args!("cannot pass {signal:?} on to the job: {cause}"));
        }
    }

    /// The group is gone: nobody needs to watch it any more, and the terminal is ours again.
    pub(crate) fn finish(self) {
        self.watcher.dismiss();
    }

    /// The command was stopped. Under a shell with job control this program stops as well, as one job; the watcher
    /// then guards the deadline. Without a terminal the job stays stopped and the lock is kept.
    fn stopped(&mut self, by: i32) {
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
                say(format_args!(
                    "stopped; if not continued within {left} s the job is killed, for its lock ends"
                ));
            }
            // Everything in this group is part of the job that the shell sees. Returns when continued.
            let _ = kill_current_process_group(Signal::STOP);
            self.resume();
        } else if by == Signal::TSTP.as_raw() {
            self.forward_continue();
        }
    }

    /// This program was continued: in the foreground it passes the terminal on again.
    fn resume(&mut self) {
        if let Some(terminal) = self.terminal.as_mut().filter(|terminal| terminal.is_for_the_job()) {
            terminal.give_to(self.group);
        }
        self.forward_continue();
    }

    fn forward_continue(&self) {
        let _ = self.group.send(Signal::CONT);
    }

    /// The watcher was killed, or does not listen.
    fn replace_watcher(&mut self) -> Result<(), Failure> {
        if self.watchers == WATCHERS_MAX {
            return Err(Failure::new(SYSTEM, "the watcher of the job was killed again and again"));
        }
        self.watchers += 1;
        let mut watcher = start_watcher(self.lock.as_ref())?;
        // An error: it is dead already, which `reap` will find.
        let _ = watcher.watch(self.group).and_then(|()| watcher.set_deadline(self.deadline));
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

/// The exit status that shells give to a process that ended like this.
fn shell_status(status: WaitStatus) -> u8 {
    match status.terminating_signal() {
        Some(signal) => status_of_signal(signal),
        None => status.exit_status().and_then(|status| u8::try_from(status).ok()).unwrap_or(u8::MAX),
    }
}
