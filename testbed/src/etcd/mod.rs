//! One etcd server; in the folder, a cluster of them.

mod clear;
mod cluster;
mod gateway;
mod operator;

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;

pub use self::cluster::EtcdCluster;
use self::gateway::Gateway;
use crate::{
    address::{free_ports, own_address},
    daemon::{Daemon, derefs_to_its_daemon, find_program},
};

/// The program, and the name in folders and messages.
const ETCD: &str = "etcd";

/// Signs the tokens.
const JWT_KEY: &str = "a key that everybody may know";

/// A running etcd server: a single member with an empty store, or a member of an [`EtcdCluster`].
///
/// Dropping the value ends the server and removes its folder. If the process that holds it is killed, a watcher does
/// both.
#[derive(Debug)]
pub struct Etcd {
    daemon: Daemon,
    gateway: Gateway,
    program: PathBuf,
    name: String,
    address: Ipv4Addr,
    client_port: u16,
    /// For the testbed's own requests: never encrypted.
    own_port: u16,
    peer_port: u16,
    /// The members of its cluster, in etcd's notation.
    initial_cluster: String,
    /// Where the other members reach this one: its own address, or a proxy's.
    peer_url: String,
    /// Arguments that turn TLS on for clients.
    tls: Vec<String>,
    /// Further arguments.
    options: Vec<String>,
}

derefs_to_its_daemon!(Etcd);

impl Etcd {
    /// Starts a server and waits until it is healthy.
    ///
    /// # Errors
    ///
    /// When there is no program `etcd` (the error says how to install it), or when the server does not become healthy
    /// (the error contains the end of its log).
    pub fn start() -> Result<Self> {
        let mut etcd = Self::prepare("default", Daemon::new(ETCD)?)?;
        etcd.restart()?;
        Ok(etcd)
    }

    /// As [`start`](Self::start), with signed tokens (JWT) as logins once [authentication](Self::enable_auth) is on. A
    /// token expires after `ttl` (whole seconds), used or not, and with every change of a user or role.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and when the key cannot be written.
    pub fn start_with_jwt(ttl: Duration) -> Result<Self> {
        let mut etcd = Self::prepare("default", Daemon::new(ETCD)?)?;
        let key = etcd.daemon.folder().join("jwt-key");
        fs::write(&key, JWT_KEY)?;
        let key = key.display();
        let seconds = ttl.as_secs();
        etcd.options =
            vec![format!("--auth-token=jwt,pub-key={key},priv-key={key},sign-method=HS256,ttl={seconds}s")];
        etcd.restart()?;
        Ok(etcd)
    }

    /// As [`start`](Self::start), with the data in this existing folder, such as a [`SmallDisk`](crate::SmallDisk).
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_in(folder: &Path) -> Result<Self> {
        let mut etcd = Self::prepare("default", Daemon::new_in(ETCD, folder)?)?;
        etcd.restart()?;
        Ok(etcd)
    }

    /// As [`start`](Self::start), with TLS for clients. With `asks_clients` they must show a certificate of the same
    /// authority.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    #[cfg(feature = "tls")]
    pub fn start_tls(
        authority: &crate::Certificates,
        shows: crate::ServerCertificate,
        asks_clients: bool,
    ) -> Result<Self> {
        let mut etcd = Self::prepare("default", Daemon::new(ETCD)?)?;
        let identity = authority.server(etcd.address.into(), shows, etcd.daemon.folder())?;
        etcd.tls = vec![
            format!("--cert-file={}", identity.certificate.display()),
            format!("--key-file={}", identity.key.display()),
        ];
        if asks_clients {
            etcd.tls.push("--client-cert-auth".to_owned());
            etcd.tls.push(format!("--trusted-ca-file={}", authority.ca().display()));
        }
        etcd.restart()?;
        Ok(etcd)
    }

    /// Starts a second member of this server's cluster, which has no vote (a learner), and waits until it is healthy. It
    /// refuses nearly all requests of clients.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and when the server refuses the member.
    pub fn start_learner(&self) -> Result<Self> {
        let mut learner = Self::prepare("learner", Daemon::new(ETCD)?)?;
        self.gateway.add_learner(&learner.peer_url)?;
        learner.initial_cluster = format!("{},{}", self.initial_cluster, learner.initial_cluster);
        learner.options = vec!["--initial-cluster-state=existing".to_owned()];
        learner.restart()?;
        Ok(learner)
    }

    /// A server that is not started yet: the only member of its cluster, unless `initial_cluster` is changed.
    fn prepare(name: &str, daemon: Daemon) -> Result<Self> {
        let program = find_program(ETCD, "etcd-server")?;
        let address = own_address();
        let [client_port, own_port, peer_port] = free_ports(address)?;
        let peer_url = format!("http://{address}:{peer_port}");
        Ok(Self {
            daemon,
            gateway: Gateway::new(&format!("http://{address}:{own_port}")),
            program,
            name: name.to_owned(),
            address,
            client_port,
            own_port,
            peer_port,
            initial_cluster: format!("{name}={peer_url}"),
            peer_url,
            tls: Vec::new(),
            options: Vec::new(),
        })
    }

    /// Returns address and port for clients, such as `127.3.9.1:40001`.
    pub fn endpoint(&self) -> String {
        format!("{}:{}", self.address, self.client_port)
    }

    /// Returns the server as a backend URL without options, such as `etcd://127.3.9.1:40001`, or `etcds://...` with
    /// TLS.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_empty() { "etcd" } else { "etcds" };
        format!("{scheme}://{}", self.endpoint())
    }

    /// Kills the server if it runs, starts it again with the same data, address and ports, and waits until it is
    /// healthy.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.launch()?;
        self.wait_until_healthy()
    }

    /// Kills the server if it runs, deletes all its data and starts it again with the same address and ports.
    ///
    /// Only for a single server: a cluster does not take back a member that has lost its data.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and when the data cannot be removed.
    pub fn wipe(&mut self) -> Result<()> {
        self.daemon.lose_data()?;
        self.restart()
    }

    /// Kills the server, copies its data (the copy replaces an earlier one), and starts it again. Only for a single
    /// server.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and when the data cannot be copied.
    pub fn back_up(&mut self) -> Result<()> {
        self.daemon.back_up()?;
        self.restart()
    }

    /// Kills the server, replaces its data by the copy that [`back_up`](Self::back_up) made last, and starts it again:
    /// everything written since the copy is lost.
    ///
    /// # Errors
    ///
    /// As [`back_up`](Self::back_up), and when there is no copy.
    pub fn restore(&mut self) -> Result<()> {
        self.daemon.restore()?;
        self.restart()
    }

    /// Where the server itself listens for peers; `peer_url` may name a proxy instead.
    fn peer_endpoint(&self) -> String {
        format!("{}:{}", self.address, self.peer_port)
    }

    fn launch(&mut self) -> Result<()> {
        let scheme = if self.tls.is_empty() { "http" } else { "https" };
        let clients = format!("{scheme}://{}", self.endpoint());
        let mut arguments = vec![
            format!("--name={}", self.name),
            format!("--data-dir={}", self.daemon.data().display()),
            format!("--listen-client-urls={clients},http://{}:{}", self.address, self.own_port),
            format!("--advertise-client-urls={clients}"),
            format!("--listen-peer-urls=http://{}", self.peer_endpoint()),
            format!("--initial-advertise-peer-urls={}", self.peer_url),
            format!("--initial-cluster={}", self.initial_cluster),
            "--logger=zap".to_owned(),
            "--log-level=error".to_owned(),
            "--log-outputs=stderr".to_owned(),
            // The cheapest hash: by default each login and each new password takes 70 ms of a core.
            "--bcrypt-cost=4".to_owned(),
        ];
        arguments.extend(self.tls.iter().chain(&self.options).cloned());
        self.daemon.launch(&self.program, &arguments)
    }

    fn wait_until_healthy(&self) -> Result<()> {
        self.daemon.wait_until(&self.endpoint(), || self.gateway.is_healthy())
    }
}
