//! One ZooKeeper server, of Debian's package `libzookeeper-java` or another release; in the folder, an ensemble of
//! them.

mod archive;
mod clear;
mod commands;
mod ensemble;
mod inspect;
mod options;
mod transaction_log;
mod wire;

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::Command,
};

use anyhow::{Result, ensure};

pub use self::{
    commands::Connection,
    ensemble::{PeerRoute, ZooKeeperEnsemble},
    options::ZooKeeperOptions,
};
use self::{commands::FourLetterCommands, wire::Wire};
use crate::{
    address::{free_ports, own_address},
    daemon::{Daemon, derefs_to_its_daemon, find_program},
};

/// The environment variable that names other jars than Debian's, as java's `-cp` takes them, such as
/// `/opt/zookeeper/lib/*`.
const CLASSPATH_VARIABLE: &str = "ZOOKEEPER_CLASSPATH";

/// Where Debian installs jars.
///
/// The manifest of the first jar names most others. It leaves out parts of netty, which TLS needs, and a logger.
const JARS_FOLDER: &str = "/usr/share/java";
const JARS: [&str; 5] =
    ["zookeeper", "netty-codec", "netty-resolver", "netty-transport-native-unix-common", "slf4j-simple"];

/// Options for a small virtual machine that starts fast.
const JAVA: [&str; 9] = [
    "-XX:+UseSerialGC",
    "-Xmx128m",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
    // In KiB; 64 MiB by default.
    "-Dzookeeper.preAllocSize=1024",
    // In ms; a minute by default. A member that missed the votes of the others would ask again only then.
    "-Dzookeeper.fastleader.maxNotificationInterval=2000",
    // `start_numbered` writes a log without a snapshot.
    "-Dzookeeper.snapshot.trust.empty=true",
    // `lifetime` parses the dates that the server prints.
    "-Duser.timezone=UTC",
];

/// The main class of the shell.
const SHELL: &str = "org.apache.zookeeper.ZooKeeperMain";

/// The main class of a single server and of a member of an ensemble.
const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

/// A running ZooKeeper server: a single one with an empty tree, or a member of a [`ZooKeeperEnsemble`].
///
/// Dropping the value ends the server and removes its folder. If the process that holds it is killed, a watcher does
/// both.
#[derive(Debug)]
pub struct ZooKeeper {
    daemon: Daemon,
    java: PathBuf,
    classpath: String,
    /// The [archive](archive) of classes to start from.
    archive: Option<PathBuf>,
    /// Where to write one at the end.
    written_archive: Option<PathBuf>,
    options: ZooKeeperOptions,
    address: Ipv4Addr,
    client_port: u16,
    secure_port: u16,
    /// Lines of the configuration that turn TLS on.
    tls: Vec<String>,
    membership: Option<Membership>,
}

/// The configuration of a member of an ensemble.
#[derive(Debug)]
struct Membership {
    id: usize,
    /// A line of the configuration for each member.
    members: Vec<String>,
}

derefs_to_its_daemon!(ZooKeeper);

impl ZooKeeper {
    /// Starts a server and waits until it serves.
    ///
    /// # Errors
    ///
    /// When there is no java or no ZooKeeper (the error says how to install it), or when the server does not serve (the
    /// error contains the end of its log).
    pub fn start() -> Result<Self> {
        Self::start_with(ZooKeeperOptions::default())
    }

    /// As [`start`](Self::start), with these options.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_with(options: ZooKeeperOptions) -> Result<Self> {
        let mut server = Self::prepare(options)?;
        server.restart()?;
        Ok(server)
    }

    /// As [`start`](Self::start), with a directory whose next sequential child gets the number `next`. The largest
    /// number is 2147483647.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_numbered(directory: &str, next: i32) -> Result<Self> {
        let mut server = Self::prepare(ZooKeeperOptions::default())?;
        let folder = server.daemon.data().join("version-2");
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("log.1"), transaction_log::bytes(directory, next))?;
        server.restart()?;
        Ok(server)
    }

    /// As [`start`](Self::start), with TLS at [`endpoint`](Self::endpoint). With `asks_clients` clients must show a
    /// certificate of the same authority.
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
        let mut server = Self::prepare(ZooKeeperOptions::default())?;
        let identity = authority.server(server.address.into(), shows, server.daemon.folder())?;
        let store = server.daemon.folder().join("key-store.pem");
        fs::write(&store, fs::read_to_string(identity.key)? + &fs::read_to_string(identity.certificate)?)?;
        server.tls = vec![
            format!("secureClientPort={}", server.secure_port),
            format!("secureClientPortAddress={}", server.address),
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory".to_owned(),
            format!("ssl.keyStore.location={}", store.display()),
            format!("ssl.trustStore.location={}", authority.ca().display()),
            format!("ssl.clientAuth={}", if asks_clients { "need" } else { "none" }),
        ];
        server.restart()?;
        Ok(server)
    }

    /// A server that is not started yet.
    fn prepare(options: ZooKeeperOptions) -> Result<Self> {
        let mut server = Self::without_archive(options)?;
        server.archive = archive::path(&server.java, &server.classpath);
        Ok(server)
    }

    fn without_archive(options: ZooKeeperOptions) -> Result<Self> {
        let java = find_program("java", "default-jre-headless")?;
        let address = own_address();
        let [client_port, secure_port] = free_ports(address)?;
        Ok(Self {
            daemon: Daemon::new("zookeeper")?,
            java,
            classpath: classpath()?,
            archive: None,
            written_archive: None,
            options,
            address,
            client_port,
            secure_port,
            tls: Vec::new(),
            membership: None,
        })
    }

    /// Returns address and port for clients, such as `127.3.9.1:40001`.
    pub fn endpoint(&self) -> String {
        let port = if self.tls.is_empty() { self.client_port } else { self.secure_port };
        format!("{}:{port}", self.address)
    }

    /// Returns the server as a backend URL without options, such as `zk://127.3.9.1:40001`, or `zks://...` with TLS.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_empty() { "zk" } else { "zks" };
        format!("{scheme}://{}", self.endpoint())
    }

    /// Returns ZooKeeper's own shell (`zkCli.sh`), which reads commands from its standard input.
    pub fn shell(&self) -> Command {
        let mut shell = Command::new(&self.java);
        shell.args(["-cp", &self.classpath, SHELL, "-server", &self.endpoint()]);
        shell
    }

    /// Kills the server if it runs, starts it again with the same data, address and ports, and waits until it serves.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.launch()?;
        self.wait_until_serving()
    }

    /// Kills the server if it runs, deletes all its data and starts it again with the same address and ports.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and when the data cannot be removed.
    pub fn wipe(&mut self) -> Result<()> {
        self.daemon.lose_data()?;
        self.restart()
    }

    /// Creates a persistent node.
    ///
    /// # Errors
    ///
    /// When the server does not answer or there is no parent.
    pub fn create(&self, path: &str, data: &str) -> Result<()> {
        Wire::open(self.plain())?.create(path, data)
    }

    /// Replaces the data of a node.
    ///
    /// # Errors
    ///
    /// When the server does not answer or the node is not there.
    pub fn write(&self, path: &str, data: &[u8]) -> Result<()> {
        Wire::open(self.plain())?.write(path, data)
    }

    /// Deletes a node as an administrator would. Returns whether it existed.
    ///
    /// # Errors
    ///
    /// When the server does not answer or the node has children.
    pub fn delete(&self, path: &str) -> Result<bool> {
        Wire::open(self.plain())?.delete(path)
    }

    /// Ends a session of any client, as its owner would: takes it over with its id and its password, which ZooKeeper
    /// derives from the id, and closes it.
    ///
    /// The owner loses its connection and reconnects at once. It must not reconnect while the session ends: such a
    /// connection may stay open for a long time without a reply. [`Proxy::hold_new`](crate::Proxy::hold_new) delays it.
    ///
    /// # Errors
    ///
    /// When the server does not answer or there is no such session.
    pub fn end_session(&self, session: i64) -> Result<()> {
        Wire::end(self.plain(), session)
    }

    /// The port for the testbed's own requests: never encrypted.
    fn plain(&self) -> SocketAddr {
        (self.address, self.client_port).into()
    }

    fn commands(&self) -> FourLetterCommands {
        FourLetterCommands(self.plain())
    }

    fn launch(&mut self) -> Result<()> {
        let folder = self.daemon.folder().to_owned();
        fs::create_dir_all(self.daemon.data())?;
        if let Some(Membership { id, .. }) = &self.membership {
            fs::write(self.daemon.data().join("myid"), id.to_string())?;
        }
        fs::write(folder.join("zoo.cfg"), self.configuration().join("\n"))?;
        let mut arguments: Vec<String> = JAVA.map(str::to_owned).into();
        // `cargo clean` may have removed it, and without the file java would not use its own archive either.
        let archive = self.archive.iter().filter(|archive| archive.exists());
        arguments.extend(archive.map(|archive| format!("-XX:SharedArchiveFile={}", archive.display())));
        let written = self.written_archive.iter();
        arguments.extend(written.map(|archive| format!("-XX:ArchiveClassesAtExit={}", archive.display())));
        if let Some(login) = self.options.login_module() {
            fs::write(folder.join("jaas.conf"), login)?;
            let file = folder.join("jaas.conf");
            arguments.push(format!("-Djava.security.auth.login.config={}", file.display()));
        }
        arguments.extend(self.options.properties());
        arguments.extend(["-cp", &self.classpath, MAIN].map(str::to_owned));
        arguments.push(folder.join("zoo.cfg").display().to_string());
        self.daemon.launch(&self.java, &arguments)
    }

    /// The lines of `zoo.cfg`.
    fn configuration(&self) -> Vec<String> {
        let mut lines = vec![
            format!("dataDir={}", self.daemon.data().display()),
            format!("clientPort={}", self.client_port),
            format!("clientPortAddress={}", self.address),
            "maxClientCnxns=0".to_owned(),
            "4lw.commands.whitelist=*".to_owned(),
            "admin.enableServer=false".to_owned(),
            "extendedTypesEnabled=true".to_owned(),
        ];
        lines.extend(self.options.lines());
        lines.extend(self.tls.iter().cloned());
        lines.extend(self.membership.iter().flat_map(|membership| membership.members.iter().cloned()));
        lines
    }

    fn wait_until_serving(&self) -> Result<()> {
        self.daemon.wait_until(&self.endpoint(), || self.commands().role().is_ok() && self.is_secure())
    }

    /// Whether TLS is served, if it is configured. Its port opens after the other one, and on a busy machine a new
    /// virtual machine takes longer for its first handshake than clients wait.
    #[cfg(feature = "tls")]
    fn is_secure(&self) -> bool {
        self.tls.is_empty() || crate::handshake::is_answered((self.address, self.secure_port).into())
    }

    #[cfg(not(feature = "tls"))]
    fn is_secure(&self) -> bool {
        self.tls.is_empty()
    }
}

fn classpath() -> Result<String> {
    if let Ok(classpath) = std::env::var(CLASSPATH_VARIABLE) {
        return Ok(classpath);
    }
    let jars = JARS.map(|jar| format!("{JARS_FOLDER}/{jar}.jar"));
    ensure!(
        fs::exists(&jars[0]).is_ok_and(|exists| exists),
        "there is no ZooKeeper at {}: install it (Debian, Ubuntu: `apt-get install libzookeeper-java`), \
         or set {CLASSPATH_VARIABLE} to its jars, such as /opt/zookeeper/lib/*",
        jars[0]
    );
    Ok(jars.join(":"))
}
