//! The terminal: which group its keys reach, and which processes Ctrl-Z stops.
//!
//! The job has its own process group, so by default it is a *background* group of the terminal: reading from the
//! terminal stops the job (SIGTTIN), and Ctrl-C does not reach it. Therefore:
//!
//! * If standard input and output are both the terminal, the job gets the terminal before the command starts.
//! * Otherwise (`lockkit run ... | less`) a neighbour in the pipeline may need the terminal. The job gets it when it
//!   asks, that is when it is stopped by SIGTTIN or SIGTTOU; Ctrl-C and Ctrl-Z reach this program, which forwards them.
//! * This program gives the terminal away only if it is itself in the foreground.
//!
//! SIGTTOU is blocked in this program, so that `tcsetpgrp` works and messages appear even from the background (POSIX,
//! "tcsetpgrp": a process that blocks SIGTTOU is allowed to).

use std::{
    fs::File,
    io::{IsTerminal, stdin, stdout},
};

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::{
    process::{Pid, getpgid, getpgrp, getppid, getsid},
    termios::{tcgetpgrp, tcsetpgrp},
};

use crate::group::Group;

/// The controlling terminal of this process, which is or was in the foreground.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    own: Pid,
    given: bool,
}

impl Terminal {
    /// Returns the controlling terminal, if there is one.
    pub(crate) fn open() -> Option<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        SigSet::from(NixSignal::SIGTTOU).thread_block().ok()?;
        Some(Self { tty, own: getpgrp(), given: false })
    }

    /// Whether the job should have the terminal from its start.
    pub(crate) fn is_for_the_job(&self) -> bool {
        stdin().is_terminal() && stdout().is_terminal()
    }

    /// Makes the job the foreground group, if this process is in the foreground; returns whether the job has the
    /// terminal.
    pub(crate) fn give_to(&mut self, job: Group) -> bool {
        match tcgetpgrp(&self.tty) {
            Ok(foreground) if foreground == self.own => {
                self.given = tcsetpgrp(&self.tty, job.id()).is_ok();
            }
            // It saw only this process stop, and not its job. Another group has the terminal from the job.
            Ok(foreground) if is_of_the_shell(foreground) => self.given = false,
            _ => {}
        }
        self.given
    }

    /// Takes the terminal back from the job, or from the group to which the job has given it.
    pub(crate) fn take_back(&mut self) {
        if std::mem::take(&mut self.given) {
            let _ = tcsetpgrp(&self.tty, self.own);
        }
    }

    /// Whether a shell with job control, in another group of the session, would continue this process if it stopped.
    /// Without one (`docker run -it`, `xterm -e`) a stop would be for ever.
    pub(crate) fn has_a_shell(&self) -> bool {
        getsid(None).is_ok_and(|session| session != self.own)
    }
}

/// Whether this is the process group of the shell that started this process, or of the one that leads the session.
fn is_of_the_shell(group: Pid) -> bool {
    let shell = getppid().map(|shell| getpgid(Some(shell)));
    shell == Some(Ok(group)) || getsid(None) == Ok(group)
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}
