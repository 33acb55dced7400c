//! Runs the tests that a mutation names.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    process::{Command, ExitStatus, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::{
    scratch::Scratch,
    switch::{REACHED, SWITCH},
};
use crate::{counts::TestCounts, programs::Program, project};

/// The stack of a thread, in bytes: 64 MiB.
const STACK: &str = "67108864";

/// The result of a run of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrialResult {
    Passed,
    Failed,
    TimedOut,
    /// No test matched.
    NoTest,
}

/// Runs programs with these arguments, with this mutation switched on or with none.
pub(super) fn try_programs(
    scratch: &Scratch,
    programs: &[&Program],
    arguments: &[String],
    mutation: Option<&str>,
    log_name: &str,
    time_max: Duration,
) -> Result<TrialResult> {
    let log_path = scratch.log(log_name);
    let log = File::create(&log_path).with_context(|| format!("cannot write {}", log_path.display()))?;
    let start = Instant::now();
    for program in programs {
        let mut command = program.command();
        command.args(arguments);
        // Without optimisation, the frame of a function with many variants is as large as all of them together.
        command.env("RUST_MIN_STACK", STACK);
        if let Some(name) = mutation {
            command.env(SWITCH, name).env(REACHED, scratch.reached(name));
        }
        match run_bounded(&command, &log, time_max.saturating_sub(start.elapsed()))? {
            None => return Ok(TrialResult::TimedOut),
            Some(status) if !status.success() => return Ok(TrialResult::Failed),
            Some(_) => {}
        }
    }
    let output = fs::read(&log_path)?;
    let mut counts =
        String::from_utf8_lossy(&output).lines().filter_map(TestCounts::parse).collect::<Vec<_>>();
    counts.retain(|counts| counts.passed > 0);
    Ok(if counts.is_empty() { TrialResult::NoTest } else { TrialResult::Passed })
}

/// Runs a command in a process group that is killed when the standard input ends: when it is closed here, or when this
/// process ends in any way.
const BOUND_TO_INPUT: &str = r#"
exec 3<&0
{ cat <&3; kill -KILL 0; } >/dev/null 2>&1 &
exec "$@" 3<&- </dev/null
"#;

/// Runs a command. `None` if it was still running after `time_max`: then it was killed with its child processes.
fn run_bounded(command: &Command, log: &File, time_max: Duration) -> Result<Option<ExitStatus>> {
    let mut shell = Command::new("sh");
    shell.args(["-c", BOUND_TO_INPUT, "sh"]);
    let mut group = project::wrapped(shell, command);
    group.process_group(0).stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log.try_clone()?);
    let mut child = group.spawn().context("cannot start sh")?;
    let input = child.stdin.take();
    let (send_status, status) = mpsc::channel();
    let waiter = thread::spawn(move || send_status.send(child.wait()));
    let status = status.recv_timeout(time_max);
    drop(input);
    match status {
        Ok(status) => Ok(Some(status?)),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            // Wait until it is gone: the next trial must not share the machine with it.
            let _ = waiter.join();
            Ok(None)
        }
    }
}
