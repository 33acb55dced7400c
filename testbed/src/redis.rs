//! One Redis server, and in the folder those that belong together.

mod clock;
mod cluster;
mod gate;
mod looks;
mod masters;
mod migration;
mod nodes;
mod old;
mod replicas;
mod sentinels;
#[cfg(feature = "tls")]
mod tls;

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

pub use self::{
    clock::ServerClock, cluster::RedisCluster, masters::RedisMasters, migration::Migration, old::OldRedis,
    replicas::RedisReplicas, sentinels::RedisSentinels,
};
use self::{
    gate::{Entrance, Gate},
    nodes::wait_until,
};
use crate::{
    address::{free_ports, own_address},
    daemon::Daemon,
    resp::{self, Pending, Reply},
};

/// A script that still runs after this time makes the server answer `BUSY`, in milliseconds.
const BUSY_AFTER_MS: &str = "5";

/// A running Redis server of its own, with an empty store that survives [`restart`](Self::restart).
///
/// Dropping the value ends the server and removes its folder; when the process that holds it is killed, a watcher
/// does both.
#[derive(Debug)]
pub struct Redis {
    daemon: Daemon,
    program: PathBuf,
    address: Ipv4Addr,
    /// Never encrypted.
    port: u16,
    /// The way of everybody but the testbed, where there is one.
    gate: Option<Gate>,
    /// For clients that speak TLS, where they must.
    tls_port: Option<u16>,
    /// What the program wants to read before its options.
    leading: Vec<String>,
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

    /// As [`start`](Self::start), on a wall clock that can be stepped.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_on(clock: &ServerClock) -> Result<Self> {
        let mut redis = Self::prepare_on(clock)?;
        redis.restart()?;
        Ok(redis)
    }

    /// A server that is not started yet.
    fn prepare(arguments: &[&str]) -> Result<Self> {
        Self::prepare_at(Entrance::Direct, arguments)
    }

    fn prepare_at(entrance: Entrance, arguments: &[&str]) -> Result<Self> {
        let mut redis = Self::prepare_program("redis-server")?;
        let (port, own) = (redis.port, redis.address.to_string());
        let mut always =
            ["--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0"].map(str::to_owned).to_vec();
        if entrance == Entrance::Gate {
            let gate = redis.gate.insert(Gate::open(redis.address, port, None)?);
            let port = gate.port().to_string();
            // Others are cut off by where they come from.
            always.extend(["--replica-announce-port", &port, "--bind-source-addr", &own].map(str::to_owned));
        }
        always.extend(["--replica-announce-ip".to_owned(), redis.place().0.to_string()]);
        redis.extra_arguments.extend(always);
        redis.extra_arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        Ok(redis)
    }

    fn prepare_on(clock: &ServerClock) -> Result<Self> {
        let mut redis = Self::prepare(&[])?;
        let server = std::mem::replace(&mut redis.program, which::which("env")?);
        redis.leading = clock.environment().into();
        redis.leading.push(server.display().to_string());
        Ok(redis)
    }

    fn prepare_program(name: &str) -> Result<Self> {
        let program = which::which(name).with_context(|| {
            format!("there is no program `{name}` on the PATH: install it (Debian, Ubuntu: `apt-get install {name}`)")
        })?;
        let address = own_address();
        let [port] = free_ports(address)?;
        let (leading, extra_arguments) = (Vec::new(), Vec::new());
        Ok(Self {
            daemon: Daemon::new("redis")?,
            program,
            address,
            port,
            gate: None,
            tls_port: None,
            leading,
            extra_arguments,
        })
    }

    /// Address and port for clients, such as `127.3.9.1:40001`.
    pub fn endpoint(&self) -> String {
        let (host, port) = self.place();
        format!("{host}:{}", self.tls_port.unwrap_or(port))
    }

    /// The server as a backend URL without options, such as `redis://127.3.9.1:40001`, or `rediss://...` with TLS.
    pub fn url(&self) -> String {
        let scheme = if self.tls_port.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{}", self.endpoint())
    }

    /// For the testbed itself: without TLS.
    fn own_endpoint(&self) -> String {
        format!("{}:{}", self.address, self.port)
    }

    /// The Unix socket that the server also listens on.
    pub fn socket(&self) -> PathBuf {
        self.folder().join("socket")
    }

    /// The folder of the server, for files that it is to read.
    pub fn folder(&self) -> &Path {
        self.daemon.folder()
    }

    /// The process id of the server; `None` after [`kill`](Self::kill).
    pub fn pid(&self) -> Option<u32> {
        self.daemon.pid()
    }

    /// Freezes the server (SIGSTOP), and returns when it has come to a stand: connections stay open, nothing is
    /// answered.
    ///
    /// # Errors
    ///
    /// When the server is not running.
    pub fn pause(&self) -> Result<()> {
        self.daemon.pause()
    }

    /// Lets a frozen server go on (SIGCONT).
    ///
    /// # Errors
    ///
    /// When the server is not running.
    pub fn resume(&self) -> Result<()> {
        self.daemon.resume()
    }

    /// Ends the server as `kill -9` does; its data stays.
    ///
    /// # Errors
    ///
    /// When the watcher of the server cannot be reached.
    pub fn kill(&mut self) -> Result<()> {
        self.daemon.kill()
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
        self.daemon.lose_data()?;
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
        resp::send(&self.own_endpoint(), words)?.reply()
    }

    /// Sends one command whose reply may take its time.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached.
    pub fn begin(&self, words: &[&str]) -> Result<Pending> {
        resp::send(&self.own_endpoint(), words)
    }

    /// Runs a script without end: the server answers `BUSY` until it is told `SCRIPT KILL`.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn keep_busy(&self) -> Result<Pending> {
        self.cli(&["CONFIG", "SET", "busy-reply-threshold", BUSY_AFTER_MS])?;
        let script = self.begin(&["EVAL", "while true do end", "0"])?;
        wait_until("the server is busy", || {
            Ok(self.cli(&["PING"]).is_err_and(|error| error.to_string().starts_with("BUSY")))
        })?;
        Ok(script)
    }

    /// Cuts a replica from its master, which may be written to meanwhile, until
    /// [`replicate_again`](Self::replicate_again); clients, Sentinels and other nodes reach both as before.
    ///
    /// # Errors
    ///
    /// When the server does not answer, or does not replicate.
    pub fn stop_replicating(&self) -> Result<()> {
        // Masters refuse a password that they have not asked for.
        self.cli(&["CONFIG", "SET", "masterauth", "none-is-asked-for"])?;
        let ended = self.cli(&["CLIENT", "KILL", "TYPE", "master"])?.number();
        ensure!(ended == Some(1), "{} does not replicate", self.endpoint());
        Ok(())
    }

    /// Lets a replica reach its master again.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn replicate_again(&self) -> Result<()> {
        self.cli(&["CONFIG", "SET", "masterauth", ""]).map(drop)
    }

    /// Whether the server takes writes, as far as it knows itself.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn is_master(&self) -> Result<bool> {
        Ok(self.info("replication")?.get("role") == Some("master"))
    }

    /// Whether the server is a replica that hears from its master.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn is_replicating(&self) -> Result<bool> {
        Ok(self.info("replication")?.get("master_link_status") == Some("up"))
    }

    fn info(&self, section: &str) -> Result<Info> {
        Ok(Info(self.cli(&["INFO", section])?.text().to_owned()))
    }

    /// Whether the server is killed or frozen: there is no use in asking it.
    fn is_silent(&self) -> bool {
        self.daemon.is_silent()
    }

    fn launch(&mut self) -> Result<()> {
        std::fs::create_dir_all(self.daemon.data())?;
        let mut arguments: Vec<String> = [
            ("--bind", self.address.to_string()),
            ("--port", self.port.to_string()),
            ("--unixsocket", self.socket().display().to_string()),
            ("--dir", self.daemon.data().display().to_string()),
            ("--protected-mode", "no".to_owned()),
            ("--save", String::new()),
            // What was answered is in the file when the process is killed; only a crash of the machine loses it.
            ("--appendonly", "yes".to_owned()),
        ]
        .into_iter()
        .flat_map(|(option, value)| [option.to_owned(), value])
        .collect();
        arguments.splice(..0, self.leading.iter().cloned());
        arguments.extend(self.extra_arguments.iter().cloned());
        self.daemon.launch(&self.program, &arguments)
    }

    fn wait_until_up(&self) -> Result<()> {
        self.daemon.wait_until(&self.own_endpoint(), || self.cli(&["PING"]).is_ok())
    }
}

/// What a server tells of itself, in lines such as `role:master`.
#[derive(Debug)]
struct Info(String);

impl Info {
    fn get(&self, name: &str) -> Option<&str> {
        let mut fields = self.0.lines().filter_map(|line| line.split_once(':'));
        fields.find(|field| field.0 == name).map(|(_, value)| value)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }
}
