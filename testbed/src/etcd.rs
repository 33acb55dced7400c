//! One etcd server.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::{
    Metrics,
    address::{free_port, own_address},
    gateway::Gateway,
    supervised::Supervised,
};

/// Longest time until a started server answers.
const START_MAX: Duration = Duration::from_secs(30);

/// Pause between two looks whether a started server answers.
const START_POLL: Duration = Duration::from_millis(20);

/// A running etcd server of its own: a single member with an empty store.
///
/// Dropping the value ends the server and removes its folder; when the process that holds it is killed, a watcher
/// does both.
#[derive(Debug)]
pub struct Etcd {
    /// `None` after [`kill`](Self::kill). Stands before the folder: the server ends first.
    server: Option<Supervised>,
    gateway: Gateway,
    folder: TempDir,
    program: PathBuf,
    address: Ipv4Addr,
    client_port: u16,
    peer_port: u16,
}

impl Etcd {
    /// Starts a server and waits until it is healthy.
    ///
    /// # Errors
    ///
    /// When there is no program `etcd` (with a hint how to install it), or when it does not become healthy (with the
    /// end of its log).
    pub fn start() -> Result<Self> {
        let program = which::which("etcd").context(
            "there is no program `etcd` on the PATH: install it (Debian, Ubuntu: `apt-get install etcd-server`)",
        )?;
        let address = own_address();
        let (client_port, peer_port) = (free_port(address)?, free_port(address)?);
        let mut etcd = Self {
            server: None,
            gateway: Gateway::new(&format!("http://{address}:{client_port}")),
            folder: temporary_folder()?,
            program,
            address,
            client_port,
            peer_port,
        };
        etcd.run()?;
        Ok(etcd)
    }

    /// Address and port for clients, such as `127.3.9.1:40001`.
    pub fn endpoint(&self) -> String {
        format!("{}:{}", self.address, self.client_port)
    }

    /// The server as a backend URL without options, such as `etcd://127.3.9.1:40001`.
    pub fn url(&self) -> String {
        format!("etcd://{}", self.endpoint())
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

    /// Ends the server, if it runs, and starts it again with the same data, address and ports; waits until it is
    /// healthy.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.run()
    }

    /// Turns authentication on. `user` may read and write all keys; the administrator `root` has the same password.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub fn enable_auth(&mut self, user: &str, password: &str) -> Result<()> {
        self.gateway.enable_auth(user, password)
    }

    /// The server's counters now.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn metrics(&self) -> Result<Metrics> {
        self.gateway.metrics()
    }

    /// All keys that start with `prefix` (ASCII, may be empty), oldest first.
    ///
    /// # Errors
    ///
    /// When the server does not answer, or a key is not UTF-8.
    pub fn keys(&self, prefix: &str) -> Result<Vec<String>> {
        self.gateway.keys(prefix)
    }

    /// Writes a key, without a lease.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn put(&self, key: &str, value: &str) -> Result<()> {
        self.gateway.put(key, value)
    }

    /// Deletes a key as an administrator would; whether it was there.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn delete(&self, key: &str) -> Result<bool> {
        Ok(self.gateway.delete(key)? > 0)
    }

    fn running(&self) -> Result<&Supervised> {
        self.server.as_ref().context("the server is not running")
    }

    fn run(&mut self) -> Result<()> {
        let clients = format!("http://{}", self.endpoint());
        let peers = format!("http://{}:{}", self.address, self.peer_port);
        let data = self.folder.path().join("data");
        let arguments = [
            format!("--data-dir={}", data.display()),
            format!("--listen-client-urls={clients}"),
            format!("--advertise-client-urls={clients}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=default={peers}"),
            "--logger=zap".to_owned(),
            "--log-level=error".to_owned(),
            "--log-outputs=stderr".to_owned(),
        ];
        self.server = Some(Supervised::start(&self.program, &arguments, self.folder.path())?);
        self.wait_until_healthy()
    }

    fn wait_until_healthy(&self) -> Result<()> {
        let started = Instant::now();
        while !self.gateway.is_healthy() {
            if self.running()?.has_ended() || started.elapsed() > START_MAX {
                bail!(
                    "etcd at {} does not become healthy; end of its log:\n{}",
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

/// In memory where there is a place for that: etcd waits for the disk at every write.
fn temporary_folder() -> Result<TempDir> {
    let builder = || {
        let mut builder = tempfile::Builder::new();
        builder.prefix("lockkit-etcd-");
        builder
    };
    match builder().tempdir_in(Path::new("/dev/shm")) {
        Ok(folder) => Ok(folder),
        Err(_) => Ok(builder().tempdir()?),
    }
}
