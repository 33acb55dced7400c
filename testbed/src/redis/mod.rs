//! One Redis server; in the folder, groups of them.

mod clock;
mod cluster;
mod front_proxies;
mod inspect;
mod masters;
mod migration;
mod nodes;
mod old;
mod replicas;
mod sentinels;
#[cfg(feature = "tls")]
mod tls;

use std::{net::Ipv4Addr, path::PathBuf};

use anyhow::{Result, ensure};

pub use self::{
    clock::ServerClock, cluster::RedisCluster, front_proxies::BehindProxies, masters::RedisMasters,
    migration::Migration, old::OldRedis, replicas::RedisReplicas, sentinels::RedisSentinels,
};
use self::{
    front_proxies::{FrontProxies, Route},
    nodes::wait_until,
};
use crate::{
    address::{free_ports, own_address},
    daemon::{Daemon, derefs_to_its_daemon, find_program},
    resp::{self, Pending, Reply},
};

/// A script that runs longer makes the server reply `BUSY`, in milliseconds.
const BUSY_AFTER_MS: &str = "5";

/// A running Redis server. It starts with an empty store, which survives [`restart`](Self::restart).
///
/// Dropping the value ends the server and removes its folder. If the process that holds it is killed, a watcher does
/// both.
#[derive(Debug)]
pub struct Redis {
    daemon: Daemon,
    program: PathBuf,
    address: Ipv4Addr,
    /// Never encrypted.
    port: u16,
    /// If there are any, everybody but the testbed reaches the server through these.
    front: Option<FrontProxies>,
    /// For clients, if they must use TLS.
    tls_port: Option<u16>,
    /// Arguments before the options.
    leading_arguments: Vec<String>,
    extra_arguments: Vec<String>,
}

derefs_to_its_daemon!(Redis);

impl Redis {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    ///
    /// When there is no program `redis-server` (the error says how to install it), or when the server does not answer
    /// (the error contains the end of its log).
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
        Self::prepare_at(Route::Direct, arguments)
    }

    fn prepare_at(route: Route, arguments: &[&str]) -> Result<Self> {
        let mut redis = Self::prepare_program("redis-server")?;
        let (port, own) = (redis.port, redis.address.to_string());
        let mut always =
            ["--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0"].map(str::to_owned).to_vec();
        if route == Route::Proxied {
            let front = redis.front.insert(FrontProxies::open(redis.address, port, None)?);
            let port = front.port().to_string();
            // Proxies recognise a server by its source address.
            always.extend(["--replica-announce-port", &port, "--bind-source-addr", &own].map(str::to_owned));
        }
        let [address, _] = redis.announced_address();
        always.extend(["--replica-announce-ip".to_owned(), address]);
        redis.extra_arguments.extend(always);
        redis.extra_arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        Ok(redis)
    }

    fn prepare_on(clock: &ServerClock) -> Result<Self> {
        let mut redis = Self::prepare(&[])?;
        redis.use_clock(clock)?;
        Ok(redis)
    }

    /// Puts a server that is not started yet on this clock.
    fn use_clock(&mut self, clock: &ServerClock) -> Result<()> {
        let server = std::mem::replace(&mut self.program, which::which("env")?);
        self.leading_arguments = clock.environment().into();
        self.leading_arguments.push(server.display().to_string());
        Ok(())
    }

    fn prepare_program(name: &str) -> Result<Self> {
        // Debian's packages have the names of their programs.
        let program = find_program(name, name)?;
        let address = own_address();
        let [port] = free_ports(address)?;
        Ok(Self {
            daemon: Daemon::new("redis")?,
            program,
            address,
            port,
            front: None,
            tls_port: None,
            leading_arguments: Vec::new(),
            extra_arguments: Vec::new(),
        })
    }

    /// Returns address and port for clients, such as `127.3.9.1:40001`.
    pub fn endpoint(&self) -> String {
        let [host, port] = self.announced_address();
        format!("{host}:{}", self.tls_port.map_or(port, |port| port.to_string()))
    }

    /// Returns the server as a backend URL without options, such as `redis://127.3.9.1:40001`, or `rediss://...` with
    /// TLS.
    pub fn url(&self) -> String {
        let scheme = if self.tls_port.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{}", self.endpoint())
    }

    /// For the testbed's own requests: without TLS and past the proxies.
    fn own_endpoint(&self) -> String {
        format!("{}:{}", self.address, self.port)
    }

    /// Returns the path of the Unix socket that the server also listens on.
    pub fn socket(&self) -> PathBuf {
        self.folder().join("socket")
    }

    /// Kills the server if it runs, starts it again with the same data, address and port, and waits until it answers.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.launch()?;
        self.wait_until_up()
    }

    /// Kills the server if it runs, deletes all its data and starts it again with the same address and port.
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
    /// When the server does not answer, or replies with an error.
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

    /// Sends one command without waiting for the reply.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached.
    pub fn begin(&self, words: &[&str]) -> Result<Pending> {
        resp::send(&self.own_endpoint(), words)
    }

    /// Runs an endless script: the server replies `BUSY` until it receives `SCRIPT KILL`.
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

    /// Cuts a replica from its master until [`replicate_again`](Self::replicate_again), while the master takes writes.
    /// Clients, Sentinels and other nodes still reach both.
    ///
    /// # Errors
    ///
    /// When the server does not answer, or does not replicate.
    pub fn stop_replicating(&self) -> Result<()> {
        // A master without a password refuses replicas that send one.
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

    /// Returns whether the server reports itself as a master, which takes writes.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn is_master(&self) -> Result<bool> {
        Ok(self.info("replication")?.get("role") == Some("master"))
    }

    /// Returns whether the server is a replica whose link to its master is up.
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

    /// Whether the server is killed or frozen, so that a request would only time out.
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
            // A killed process loses nothing that it has confirmed. Without `always` the server may reply first and write
            // up to two seconds later, while its thread that syncs has not run.
            ("--appendonly", "yes".to_owned()),
            ("--appendfsync", "always".to_owned()),
        ]
        .into_iter()
        .flat_map(|(option, value)| [option.to_owned(), value])
        .collect();
        arguments.splice(..0, self.leading_arguments.iter().cloned());
        arguments.extend(self.extra_arguments.iter().cloned());
        self.daemon.launch(&self.program, &arguments)
    }

    fn wait_until_up(&self) -> Result<()> {
        self.daemon.wait_until(&self.own_endpoint(), || self.cli(&["PING"]).is_ok())
    }
}

/// The reply to `INFO`, in lines such as `role:master`.
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
