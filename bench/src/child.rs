//! Both ends of the talk between the benchmark and the process of a row.

use std::{
    ffi::OsString,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines, stdin},
    process::{ChildStdin, ChildStdout, Command},
    task::JoinHandle,
    time::timeout,
};

use crate::job::{GO, MISSING, READY};

/// Longest time for the end of a process that has printed its result.
const END_MAX: Duration = Duration::from_secs(30);

/// Why a row has no result.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Problem {
    /// It is not installed.
    Missing(String),
    /// It failed.
    Failed(String),
}

impl From<anyhow::Error> for Problem {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(format!("{error:#}"))
    }
}

/// A process that is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Child {
    process: tokio::process::Child,
    /// Closed when the result is read: then the process closes its clients.
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    errors: JoinHandle<String>,
}

impl Child {
    /// Starts this program again, for one of its hidden commands.
    pub(crate) fn own(command: &str, job: &impl Serialize) -> Result<Self> {
        let job = serde_json::to_string(job)?;
        Self::start(&[std::env::current_exe()?.into(), command.into(), job.into()])
    }

    /// Starts a program with its arguments.
    pub(crate) fn start(command: &[OsString]) -> Result<Self> {
        let (program, arguments) = command.split_first().context("no program")?;
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let output = process.stdout.take().context("no output")?;
        let mut errors = process.stderr.take().context("no error output")?;
        let errors = tokio::spawn(async move {
            let mut text = Vec::new();
            // What was read until an error is all there is.
            let _ = errors.read_to_end(&mut text).await;
            String::from_utf8_lossy(&text).into_owned()
        });
        let input = process.stdin.take();
        Ok(Self { process, input, output: BufReader::new(output).lines(), errors })
    }

    /// Waits until the process can run.
    pub(crate) async fn ready(&mut self, within: Duration) -> Result<(), Problem> {
        match self.line(within).await? {
            line if line == READY => Ok(()),
            line => Err(Problem::Failed(format!("printed {line:?} instead of {READY:?}"))),
        }
    }

    /// Makes the process run.
    pub(crate) async fn go(&mut self) -> Result<(), Problem> {
        let input = self.input.as_mut().context("the process has no input")?;
        Ok(input.write_all(format!("{GO}\n").as_bytes()).await.context("write to the process")?)
    }

    /// Waits for the result. The process closes its clients when [`end`](Self::end) is called, so that the servers'
    /// counters can be read before that.
    pub(crate) async fn result<T: DeserializeOwned>(&mut self, within: Duration) -> Result<T, Problem> {
        let line = self.line(within).await?;
        Ok(serde_json::from_str(&line).with_context(|| format!("not a result: {line:.200}"))?)
    }

    /// Waits for the end of the process, which must be a success.
    pub(crate) async fn end(mut self) -> Result<(), Problem> {
        drop(self.input.take());
        let status = timeout(END_MAX, self.process.wait()).await;
        let status = status.context("the process does not end")?.context("wait for the process")?;
        if status.success() { Ok(()) } else { Err(self.problem(status).await) }
    }

    /// Kills the process, as `kill -9` does.
    pub(crate) fn kill(&mut self) -> Result<()> {
        Ok(self.process.start_kill()?)
    }

    async fn line(&mut self, within: Duration) -> Result<String, Problem> {
        match timeout(within, self.output.next_line()).await {
            Ok(line) => match line.context("read from the process")? {
                Some(line) => Ok(line),
                None => {
                    let status = timeout(END_MAX, self.process.wait()).await;
                    let status =
                        status.context("the process does not end")?.context("wait for the process")?;
                    Err(self.problem(status).await)
                }
            },
            Err(_) => Err(Problem::Failed(format!("printed nothing for {within:?}"))),
        }
    }

    async fn problem(&mut self, status: ExitStatus) -> Problem {
        let errors = (&mut self.errors).await.unwrap_or_default();
        let reason = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given").trim();
        match status.code() {
            Some(MISSING) => Problem::Missing(reason.to_owned()),
            _ => Problem::Failed(format!("{status}: {reason}")),
        }
    }
}

/// In the process of a row: reports that it can run, and waits until it must.
pub(crate) async fn ready() -> Result<()> {
    println!("{READY}");
    let mut line = String::new();
    BufReader::new(stdin()).read_line(&mut line).await?;
    ensure!(line.trim() == GO, "expected {GO:?}, not {line:?}");
    Ok(())
}

/// In the process of a row: prints the result, and waits until it is read.
pub(crate) async fn report(result: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(result)?);
    let mut rest = Vec::new();
    stdin().read_to_end(&mut rest).await?;
    if !rest.is_empty() {
        bail!("unexpected input after {GO:?}");
    }
    Ok(())
}
