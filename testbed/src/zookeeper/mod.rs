//! One ZooKeeper server, of Debian's package `libzookeeper-java` or another release.

mod ensemble;
mod history;
mod looks;
mod options;
mod wire;
mod words;

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use anyhow::{Context, Result, ensure};

pub use self::{ensemble::ZooKeeperEnsemble, options::ZooKeeperOptions, words::Connection};
use self::{wire::Wire, words::Words};
use crate::{
    address::{free_ports, own_address},
    daemon::Daemon,
};

/// Other jars than Debian's, as java's `-cp` takes them, such as `/opt/zookeeper/lib/*`.
const CLASSPATH_VARIABLE: &str = "ZOOKEEPER_CLASSPATH";

/// Where Debian has them. The first names most others itself; what it leaves out are parts of netty, which TLS needs,
/// and a logger.
const JARS_FOLDER: &str = "/usr/share/java";
const JARS: [&str; 5] =
    ["zookeeper", "netty-codec", "netty-resolver", "netty-transport-native-unix-common", "slf4j-simple"];

/// A small virtual machine that is there soon.
const JAVA: [&str; 8] = [
    "-XX:+UseSerialGC",
    "-Xmx128m",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
    // In KiB; 64 MiB by default.
    "-Dzookeeper.preAllocSize=1024",
    // A log without a snapshot is what `start_numbered` writes.
    "-Dzookeeper.snapshot.trust.empty=true",
    // What it tells as dates is read.
    "-Duser.timezone=UTC",
];

/// Runs a single server and a member of an ensemble alike.
const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

/// A running ZooKeeper server of its own: a single one with an empty tree, or a member of a [`ZooKeeperEnsemble`].
///
/// Dropping the value ends the server and removes its folder; when the process that holds it is killed, a watcher
/// does both.
#[derive(Debug)]
pub struct ZooKeeper {
    daemon: Daemon,
    java: PathBuf,
    classpath: String,
    options: ZooKeeperOptions,
    address: Ipv4Addr,
    client_port: u16,
    secure_port: u16,
    /// Lines of the configuration that turn TLS on.
    tls: Vec<String>,
    membership: Option<Membership>,
}

/// What a server knows of its ensemble.
#[derive(Debug)]
struct Membership {
    id: usize,
    /// A line of the configuration for each member.
    members: Vec<String>,
}

impl ZooKeeper {
    /// Starts a server and waits until it serves.
    ///
    /// # Errors
    ///
    /// When there is no java or no ZooKeeper (with a hint how to install it), or when it does not serve (with the end
    /// of its log).
    pub fn start() -> Result<Self> {
        Self::start_with(ZooKeeperOptions::default())
    }

    /// As [`start`](Self::start), with other options than the default ones.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_with(options: ZooKeeperOptions) -> Result<Self> {
        let mut server = Self::prepare(options)?;
        server.restart()?;
        Ok(server)
    }

    /// As [`start`](Self::start), with a directory whose next sequential child gets this number: 2147483647 is the last
    /// one.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_numbered(directory: &str, next: i32) -> Result<Self> {
        let mut server = Self::prepare(ZooKeeperOptions::default())?;
        let folder = server.daemon.data().join("version-2");
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("log.1"), history::log(directory, next))?;
        server.restart()?;
        Ok(server)
    }

    /// As [`start`](Self::start); [`endpoint`](Self::endpoint) speaks TLS, and with `asks_clients` takes clients only
    /// that show a certificate of the same authority.
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
        let java = which::which("java").context(
            "there is no program `java` on the PATH: install it \
             (Debian, Ubuntu: `apt-get install default-jre-headless`)",
        )?;
        let address = own_address();
        let [client_port, secure_port] = free_ports(address)?;
        Ok(Self {
            daemon: Daemon::new("zookeeper")?,
            java,
            classpath: classpath()?,
            options,
            address,
            client_port,
            secure_port,
            tls: Vec::new(),
            membership: None,
        })
    }

    /// Address and port for clients, such as `127.3.9.1:40001`.
    pub fn endpoint(&self) -> String {
        let port = if self.tls.is_empty() { self.client_port } else { self.secure_port };
        format!("{}:{port}", self.address)
    }

    /// The server as a backend URL without options, such as `zk://127.3.9.1:40001`, or `zks://...` with TLS.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_empty() { "zk" } else { "zks" };
        format!("{scheme}://{}", self.endpoint())
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

    /// Ends the server, if it runs, and starts it again with the same data, address and ports; waits until it serves.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.launch()?;
        self.wait_until_serving()
    }

    /// Ends the server, if it runs, loses all its data and starts it again, with the same address and ports.
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

    /// Changes what a node holds.
    ///
    /// # Errors
    ///
    /// When the server does not answer or the node is not there.
    pub fn write(&self, path: &str, data: &[u8]) -> Result<()> {
        Wire::open(self.plain())?.write(path, data)
    }

    /// Deletes a node as an administrator would; whether it was there.
    ///
    /// # Errors
    ///
    /// When the server does not answer or the node has children.
    pub fn delete(&self, path: &str) -> Result<bool> {
        Wire::open(self.plain())?.delete(path)
    }

    /// Ends a session, of whichever client, as its owner would: takes it over with its id and its password, which
    /// ZooKeeper makes of the id, and closes it.
    ///
    /// The owner loses its connection, comes back at once, and must not meet this: a connection that is made while the
    /// session ends may stay for a long time, unanswered. [`Proxy::hold_new`](crate::Proxy::hold_new) keeps it waiting.
    ///
    /// # Errors
    ///
    /// When the server does not answer or there is no such session.
    pub fn end_session(&self, session: i64) -> Result<()> {
        Wire::end(self.plain(), session)
    }

    /// For the testbed itself: never encrypted.
    fn plain(&self) -> SocketAddr {
        (self.address, self.client_port).into()
    }

    fn words(&self) -> Words {
        Words(self.plain())
    }

    fn launch(&mut self) -> Result<()> {
        let folder = self.daemon.folder().to_owned();
        fs::create_dir_all(self.daemon.data())?;
        if let Some(Membership { id, .. }) = &self.membership {
            fs::write(self.daemon.data().join("myid"), id.to_string())?;
        }
        fs::write(folder.join("zoo.cfg"), self.configuration().join("\n"))?;
        let mut arguments: Vec<String> = JAVA.map(str::to_owned).into();
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
        self.daemon.wait_until(&self.endpoint(), || self.words().role().is_ok() && self.is_secure())
    }

    /// Whether TLS is served, where it shall be: that port is opened after the other one, and on a busy machine the
    /// first handshake takes a young java longer than clients wait.
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
         or say with {CLASSPATH_VARIABLE} where it is, such as /opt/zookeeper/lib/*",
        jars[0]
    );
    Ok(jars.join(":"))
}
