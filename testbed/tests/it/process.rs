//! Processes of the testbed's program, and of its servers.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

/// Starts the program with a server of this kind; returns the line that it prints, which names the server.
pub(crate) fn testbed(kind: &str) -> (Child, String) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_testbed"))
        .arg(kind)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (process, line)
}

/// The process id at the end of this line.
pub(crate) fn pid_in(line: &str) -> u32 {
    line.trim().rsplit(' ').next().unwrap().parse().unwrap()
}

/// The state letter of a process; `None` when there is none of this id.
pub(crate) fn state_of(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
