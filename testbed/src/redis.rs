//! One Redis server.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::{
    address::{free_ports, own_address},
    resp::{self, Reply},
    supervised::Supervised,
};

/// Longest time until a started server answers.
const START_MAX: Duration = Duration::from_secs(30);

/// Pause between two looks whether a started server answers.
const START_POLL: Duration = Duration::from_millis(10);

/// A running Redis server of its own, with an empty store that survives [`restart`](Self::restart).
///
/// Dropping the value ends the server and removes its folder; when the process that holds it is killed, a watcher
/// does both.
#[derive(Debug)]
pub struct Redis {
    /// `None` after [`kill`](Self::kill). Stands before the folder: the server ends first.
    server: Option<Supervised>,
    folder: TempDir,
    program: PathBuf,
    address: Ipv4Addr,
    port: u16,
    extra_arguments: Vec<String>,
}

impl Redis {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    ///
    /// When there is no program `redis-server` (with a hint how to install it), or when it does not answer (with the
    /// end of its log).
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// As [`start`](Self::start), with more arguments, such as `--maxmemory-policy allkeys-lru`.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_with(arguments: &[&str]) -> Result<Self> {
        let mut redis = Self::prepare(arguments)?;
        redis.restart()?;
        Ok(redis)
    }

    /// A server that is not started yet.
    pub(crate) fn prepare(arguments: &[&str]) -> Result<Self> {
        let program = which::which("redis-server").context(
            "there is no program `redis-server` on the PATH: install it (Debian, Ubuntu: `apt-get install redis-server`)",
        )?;
        let address = own_address();
        let [port] = free_ports(address)?;
        Ok(Self {
            server: None,
            folder: temporary_folder()?,
            program,
            address,
            port,
            extra_arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
        })
    }

    /// Address and port for clients, such as `127.3.9.1:40001`.
    pub fn endpoint(&self) -> String {
        format!("{}:{}", self.address, self.port)
    }

    /// The server as a backend URL without options, such as `redis://127.3.9.1:40001`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.endpoint())
    }

    /// The Unix socket that the server also listens on.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// The folder of the server, for files that it is to read.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The process id of the server; `None` after [`kill`](Self::kill).
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Supervised::pid)
    }

    /// Freezes the server (SIGSTOP), and returns when it has come to a stand: connections stay open, nothing is
    /// answered.
    ///
    /// # Errors
    ///
    /// When the server is not running.
    pub fn pause(&self) -> Result<()> {
        self.running()?.freeze()
    }

    /// Lets a frozen server go on (SIGCONT).
    ///
    /// # Errors
    ///
    /// When the server is not running.
    pub fn resume(&self) -> Result<()> {
        self.running()?.unfreeze()
    }

    /// Ends the server as `kill -9` does; its data stays.
    ///
    /// # Errors
    ///
    /// When the watcher of the server cannot be reached.
    pub fn kill(&mut self) -> Result<()> {
        self.server.take().map_or(Ok(()), Supervised::kill)
    }

    /// Ends the server, if it runs, and starts it again with the same data, address and port; waits until it answers.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.launch()?;
        self.wait_until_up()
    }

    /// Ends the server, if it runs, loses all its data and starts it again, with the same address and port.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and when the data cannot be removed.
    pub fn wipe(&mut self) -> Result<()> {
        self.kill()?;
        let data = self.data();
        std::fs::remove_dir_all(&data).with_context(|| format!("cannot remove {}", data.display()))?;
        self.restart()
    }

    /// Sends one command as an operator would.
    ///
    /// # Errors
    ///
    /// When the server does not answer, or answers with an error.
    pub fn cli(&self, words: &[&str]) -> Result<Reply> {
        self.command(words)
    }

    /// As [`cli`](Self::cli), with words that need not be text.
    ///
    /// # Errors
    ///
    /// As [`cli`](Self::cli).
    pub fn command(&self, words: &[impl AsRef<[u8]>]) -> Result<Reply> {
        resp::command(&self.endpoint(), words)
    }

    /// All keys that match the pattern, in alphabetical order.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn keys(&self, pattern: &str) -> Result<Vec<String>> {
        let reply = self.cli(&["KEYS", pattern])?;
        let mut keys: Vec<String> = reply.list().iter().map(|key| key.text().to_owned()).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    /// How often this command was executed, such as `evalsha` or `publish`, also from scripts.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn calls(&self, command: &str) -> Result<u64> {
        let stats = self.cli(&["INFO", "commandstats"])?;
        let prefix = format!("cmdstat_{command}:calls=");
        let calls = stats.text().lines().find_map(|line| line.strip_prefix(&prefix));
        Ok(calls.and_then(|rest| rest.split(',').next()).and_then(|count| count.parse().ok()).unwrap_or(0))
    }

    fn running(&self) -> Result<&Supervised> {
        self.server.as_ref().context("the server is not running")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(crate) fn launch(&mut self) -> Result<()> {
        std::fs::create_dir_all(self.data())?;
        let mut arguments: Vec<String> = [
            ("--bind", self.address.to_string()),
            ("--port", self.port.to_string()),
            ("--unixsocket", self.socket().display().to_string()),
            ("--dir", self.data().display().to_string()),
            ("--protected-mode", "no".to_owned()),
            ("--save", String::new()),
            // What was answered is in the file when the process is killed; only a crash of the machine loses it.
            ("--appendonly", "yes".to_owned()),
        ]
        .into_iter()
        .flat_map(|(option, value)| [option.to_owned(), value])
        .collect();
        arguments.extend(self.extra_arguments.iter().cloned());
        self.server = Some(Supervised::start(&self.program, &arguments, self.folder.path())?);
        Ok(())
    }

    pub(crate) fn wait_until_up(&self) -> Result<()> {
        let started = Instant::now();
        while self.cli(&["PING"]).is_err() {
            if self.running()?.has_ended() || started.elapsed() > START_MAX {
                bail!(
                    "redis-server at {} does not answer; end of its log:\n{}",
                    self.endpoint(),
                    self.log_end()
                );
            }
            std::thread::sleep(START_POLL);
        }
        Ok(())
    }

    fn log_end(&self) -> String {
        const LINES: usize = 20;
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

/// In memory where there is a place for that.
fn temporary_folder() -> Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("lockkit-redis-");
    Ok(builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir())?)
}
