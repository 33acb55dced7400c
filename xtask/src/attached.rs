//! Child processes that end with their standard input, and so with this process, however this process ends.

use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};

use crate::project;

/// A program that runs until this is dropped.
#[derive(Debug)]
pub(crate) struct Attached(Child);

impl Attached {
    /// Starts a program that ends with its standard input. Returns its output as well.
    pub(crate) fn start(program: &mut Command) -> Result<(Self, ChildStdout)> {
        let mut child = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", project::shown(program)))?;
        let output = child.stdout.take();
        let attached = Self(child);
        Ok((attached, output.context("no output")?))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It ends in bounded time; its status does not matter any more.
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    #[test]
    fn program_ends_when_it_is_dropped() {
        let (program, output) =
            Attached::start(Command::new("sh").args(["-c", "echo ready; cat; echo ended"])).unwrap();
        let mut lines = BufReader::new(output).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        drop(program);
        assert_eq!(lines.next().unwrap().unwrap(), "ended");
    }
}
