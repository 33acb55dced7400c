//! `lockkit exec-when-told`: becomes the job's command, once the watcher knows about it.
//!
//! The group of a job has a number only after its first process was made. Were that process the command itself, a
//! kill -9 of `lockkit run` in the moment between the two would leave a job that nobody watches. So it is this program
//! first, which waits at a gate, a pipe whose other end only `lockkit run` has: told to go it executes the command,
//! told nothing (`lockkit run` is gone) it ends.

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
pub(crate) const NAME: &str = "exec-when-told";

const GO: &[u8] = b"go";

/// The end of the gate's pipe that says whether the command may start.
#[derive(Debug)]
pub(crate) struct Gate(PipeWriter);

impl Gate {
    /// A gate, and the program that waits at it to execute `command`. Keep the reader until it is spawned.
    pub(crate) fn before(command: &[OsString]) -> io::Result<(Self, PipeReader, Command)> {
        let (reader, writer) = io::pipe()?;
        // The one descriptor that the trampoline inherits beside those that are meant for the command.
        fcntl_setfd(&reader, FdFlags::empty())?;
        let mut trampoline = program()?;
        trampoline.arg(NAME).arg(reader.as_raw_fd().to_string()).arg("--").args(command);
        Ok((Self(writer), reader, trampoline))
    }

    /// Lets the command start.
    pub(crate) fn open(mut self) -> io::Result<()> {
        self.0.write_all(GO)
    }
}

/// The other side: waits at the gate with this descriptor, and becomes the command. Returns only if that fails.
pub(crate) fn exec_when_told(gate: i32, command: &[OsString]) -> u8 {
    let told = std::fs::read(format!("/dev/fd/{gate}"));
    // The command must not inherit the gate. Nothing in this process owns the descriptor: it came with the exec.
    let _ = nix::unistd::close(gate);
    match told {
        Ok(told) if told == GO => {}
        Ok(_) => return SYSTEM,
        Err(cause) => {
            say(format_args!("cannot start the command: /dev/fd: {cause}"));
            return SYSTEM;
        }
    }
    let Some((program, arguments)) = command.split_first() else { return NOT_FOUND };
    let cause = Command::new(program).args(arguments).exec();
    say(format_args!("{}: {cause}", program.to_string_lossy()));
    if cause.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }
}
