//! `lockkit exec-at-gate`: becomes the job's command once the watcher knows its group.
//!
//! A group has a number only after its first process was started. If that process were the command, a kill -9 of
//! `lockkit run` right then would leave a job without a watcher. So the first process is this program. It waits at a
//! gate: a pipe whose other end only `lockkit run` has. When it reads the go-ahead, it executes the command; when the
//! pipe closes without one (`lockkit run` is gone), it ends.

use std::{
    ffi::OsString,
    io::{self, ErrorKind, PipeReader, PipeWriter, Write},
    os::{fd::AsRawFd, unix::process::CommandExt},
    process::Command,
};

use rustix::io::{FdFlags, fcntl_setfd};

use crate::{
    exit::{NOT_EXECUTABLE, NOT_FOUND, SYSTEM, say},
    program,
};

/// The hidden subcommand.
pub(crate) const NAME: &str = "exec-at-gate";

const GO: &[u8] = b"go";

/// The writing end of the gate: opens it, so that the command may start.
#[derive(Debug)]
pub(crate) struct Gate(PipeWriter);

impl Gate {
    /// Returns a gate, and the program that waits there to execute `command`. Keep the reader until the gate is opened.
    pub(crate) fn before(command: &[OsString]) -> io::Result<(Self, PipeReader, Command)> {
        let (reader, writer) = io::pipe()?;
        // The only descriptor that the trampoline inherits besides those of the command.
        fcntl_setfd(&reader, FdFlags::empty())?;
        let mut trampoline = program()?;
        trampoline.arg(NAME).arg(reader.as_raw_fd().to_string()).arg("--").args(command);
        Ok((Self(writer), reader, trampoline))
    }

    /// Lets the command start; fails with `BrokenPipe` if nobody waits there any more.
    pub(crate) fn open(mut self, reader: PipeReader) -> io::Result<()> {
        // This process must not count as waiting there.
        drop(reader);
        self.0.write_all(GO)
    }
}

/// Waits at the gate with this descriptor, and becomes the command. Returns only if that fails.
pub(crate) fn exec_at_gate(gate: i32, command: &[OsString]) -> u8 {
    let message = std::fs::read(format!("/dev/fd/{gate}"));
    // The command must not inherit the gate. No value of this process owns the descriptor: it was inherited over the
    // exec.
    let _ = nix::unistd::close(gate);
    match message {
        Ok(message) if message == GO => {}
        Ok(_) => return SYSTEM,
        Err(cause) => {
            say(format_args!("cannot start the command: /dev/fd: {cause}"));
            return SYSTEM;
        }
    }
    let Some((program, arguments)) = command.split_first() else { return NOT_FOUND };
    let cause = Command::new(program).args(arguments).exec();
    say(format_args!("cannot execute {}: {cause}", program.to_string_lossy()));
    if cause.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_where_nobody_waits_cannot_be_opened() {
        let (gate, reader, trampoline) = Gate::before(&["true".into()]).unwrap();
        drop(trampoline);
        assert_eq!(gate.open(reader).unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}
