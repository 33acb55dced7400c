//! Which server to talk to: the one that may write.
//!
//! This is the only module that knows of more than one server. It is asked for a connection when a session begins, and
//! again whenever the last one turned out to be broken, or its server to be no master any more.

use std::{sync::Arc, time::Duration};

use lockkit_core::ErrorKind;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    PushInfo, RedisConnectionInfo, RedisError, RedisResult, Value, aio::MultiplexedConnection,
    io::tcp::TcpSettings,
};

use crate::error::{Effect, Fault};

/// Commands that wait for a socket at a time, before those that send them wait.
const PIPELINE_COMMANDS: usize = 1024;

/// Where the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    /// One server.
    Single(ConnectionAddr),
    /// Some servers, of which one is the master.
    Replicas(Vec<ConnectionAddr>),
}

/// How to log in.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
}

/// What is done with messages that a server sends unasked.
pub(crate) type Pushes = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// A connection to the server, or the servers, that may write. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Wire {
    Node(MultiplexedConnection),
}

impl Wire {
    pub(crate) async fn query(&mut self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Node(connection) => command.query_async(connection).await,
        }
    }

    pub(crate) async fn subscribe(&mut self, channel: &str) -> RedisResult<()> {
        match self {
            Self::Node(connection) => connection.subscribe(channel).await,
        }
    }
}

/// How to connect.
#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) topology: Topology,
    pub(crate) login: Login,
    pub(crate) timeout: Duration,
}

impl Connector {
    /// Opens a connection within the time limit; what the server sends unasked goes to `pushes`.
    pub(crate) async fn connect(&self, pushes: Option<&Pushes>) -> Result<Wire, Fault> {
        let found = async {
            match &self.topology {
                Topology::Single(address) => self.open(address, pushes).await,
                Topology::Replicas(addresses) => self.open_master(addresses, pushes).await,
            }
        };
        let opened = tokio::time::timeout(self.timeout, found).await;
        opened.unwrap_or_else(|_| Err(Fault::no_reply())).map_err(Fault::before_sending).map(Wire::Node)
    }

    /// Opens a connection to the first server that says that it is a master.
    async fn open_master(
        &self,
        addresses: &[ConnectionAddr],
        pushes: Option<&Pushes>,
    ) -> Result<MultiplexedConnection, Fault> {
        let mut last = None;
        for address in addresses {
            match self.open_if_master(address, pushes).await {
                Ok(connection) => return Ok(connection),
                // A server that does not let us in says more than one that is away.
                Err(fault) if last.is_none() || fault.effect == Effect::Refused => last = Some(fault),
                Err(_) => {}
            }
        }
        Err(last.unwrap_or_else(|| Fault::nonsense("no server is configured")))
    }

    async fn open_if_master(
        &self,
        address: &ConnectionAddr,
        pushes: Option<&Pushes>,
    ) -> Result<MultiplexedConnection, Fault> {
        // One dead server must leave time for the others.
        let opening = tokio::time::timeout(self.timeout / 3, self.open(address, pushes));
        let mut connection = opening.await.unwrap_or_else(|_| Err(Fault::no_reply()))?;
        let role: Vec<Value> = redis::cmd("ROLE").query_async(&mut connection).await?;
        match role.first() {
            Some(Value::BulkString(word)) if word == b"master" => Ok(connection),
            _ => Err(Fault::new(Effect::Busy, ErrorKind::Unavailable, "no server is a master")),
        }
    }

    async fn open(
        &self,
        address: &ConnectionAddr,
        pushes: Option<&Pushes>,
    ) -> Result<MultiplexedConnection, Fault> {
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            // Every request has a time limit of ours.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE_COMMANDS);
        if let Some(pushes) = pushes {
            let pushes = Arc::clone(pushes);
            config = config.set_push_sender(move |push| {
                pushes(push);
                Ok::<(), redis::aio::SendError>(())
            });
        }
        let client = Client::open(self.info(address, ProtocolVersion::RESP3)?)?;
        match client.get_multiplexed_async_connection_with_config(&config).await {
            Err(error) if is_hello_unknown(&error) => Err(self.why_without_hello(address).await),
            opened => Ok(opened?),
        }
    }

    fn info(&self, address: &ConnectionAddr, protocol: ProtocolVersion) -> Result<ConnectionInfo, Fault> {
        let mut settings = RedisConnectionInfo::default()
            .set_protocol(protocol)
            .set_db(self.login.database)
            // Spares every connection two commands, and users with limited rights one that they may lack.
            .set_skip_set_lib_name();
        if let Some(user) = &self.login.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.login.password {
            settings = settings.set_password(password);
        }
        let tcp = TcpSettings::default().set_nodelay(true);
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(self.timeout);
        Ok(address.clone().into_connection_info()?.set_redis_settings(settings).set_tcp_settings(tcp))
    }

    /// A server that does not know the command HELLO is too old, or has it renamed.
    async fn why_without_hello(&self, address: &ConnectionAddr) -> Fault {
        let version = async {
            let config = AsyncConnectionConfig::new().set_connection_timeout(Some(self.timeout));
            let client = Client::open(self.info(address, ProtocolVersion::RESP2)?)?;
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
            Ok::<_, Fault>(Probe::parse(&info).version)
        };
        match version.await {
            Ok(version) if !is_new_enough(&version) => Fault::new(
                Effect::Refused,
                ErrorKind::Unsupported,
                format!("Redis {version} is too old: lockkit needs version {VERSION_MIN} or later"),
            ),
            Ok(_) | Err(_) => Fault::new(
                Effect::Refused,
                ErrorKind::Unsupported,
                "the server does not know the command HELLO: it is too old, or has it renamed",
            ),
        }
    }
}

fn is_hello_unknown(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::RESP3NotSupported
        // The client crate knows the quotation marks of older servers only.
        || error.detail().is_some_and(|detail| detail.starts_with("unknown command") && detail.contains("HELLO"))
}

/// The first major version with RESP3.
const VERSION_MIN: u32 = 6;

fn is_new_enough(version: &str) -> bool {
    version
        .split('.')
        .next()
        .and_then(|major| major.parse::<u32>().ok())
        .is_none_or(|major| major >= VERSION_MIN)
}

/// What a server says about itself in `INFO`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) version: String,
    /// `noeviction` unless keys may vanish when memory is short.
    pub(crate) eviction: String,
}

impl Probe {
    pub(crate) fn parse(info: &str) -> Self {
        let field = |name: &str| {
            let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.unwrap_or_default().trim().to_owned()
        };
        Self { version: field("redis_version"), eviction: field("maxmemory_policy") }
    }

    /// Whether the server may throw away locks when memory is short.
    pub(crate) fn may_evict(&self) -> bool {
        !matches!(&*self.eviction, "" | "noeviction")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_known_by_their_version() {
        for (version, is_enough) in [("5.0.14", false), ("6.0.16", true), ("7.0.15", true), ("", true)] {
            assert_eq!(is_new_enough(version), is_enough, "{version}");
        }
    }

    #[test]
    fn a_server_says_what_it_is() {
        let probe = Probe::parse("# Server\r\nredis_version:7.0.15\r\nmaxmemory_policy:allkeys-lru\r\n");
        assert_eq!(probe, Probe { version: "7.0.15".to_owned(), eviction: "allkeys-lru".to_owned() });
        assert!(probe.may_evict());
        assert!(!Probe::parse("maxmemory_policy:noeviction\r\n").may_evict());
        assert!(!Probe::parse("").may_evict());
    }
}
