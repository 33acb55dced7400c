//! Connections to single servers.

use std::{fmt, time::Duration};

use lockkit_core::ErrorKind;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    PushInfo, RedisConnectionInfo, RedisError, Value, aio::MultiplexedConnection, io::tcp::TcpSettings,
};

use crate::{
    Tls,
    error::{Effect, Fault},
    probe::{Probe, VERSION_MIN},
    tls,
};

/// Commands that wait for a socket at a time, before those that send them wait.
const PIPELINE_COMMANDS: usize = 1024;

/// A server's name or address, or its socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    Tcp(String, u16),
    Unix(std::path::PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// How to log in.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Taken apart in full, so that a new field must decide here whether it is a secret.
        let Self { user, password, database } = self;
        f.debug_struct("Login")
            .field("user", user)
            .field("password", &password.as_ref().map(|_| "***"))
            .field("database", database)
            .finish()
    }
}

/// How to speak with a server.
#[derive(Clone)]
pub(crate) struct Dialer {
    pub(crate) login: Login,
    pub(crate) tls: Option<Tls>,
    pub(crate) timeout: Duration,
}

impl Dialer {
    /// Opens a connection; what the server sends unasked goes to `pushes`.
    pub(crate) async fn open(
        &self,
        address: &Address,
        pushes: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<MultiplexedConnection, Fault> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            // Every request has a time limit of ours.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE_COMMANDS)
            .set_push_sender(move |push| {
                pushes(push);
                Ok::<(), redis::aio::SendError>(())
            });
        let client = self.client(address, ProtocolVersion::RESP3)?;
        match client.get_multiplexed_async_connection_with_config(&config).await {
            Err(error) if is_hello_unknown(&error) => Err(self.why_without_hello(address, &error).await),
            opened => Ok(opened?),
        }
    }

    /// As [`open`](Self::open), to a server that says that it is a master.
    pub(crate) async fn open_master(
        &self,
        address: &Address,
        pushes: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<MultiplexedConnection, Fault> {
        let mut connection = self.open(address, pushes).await?;
        let role: Vec<Value> = redis::cmd("ROLE").query_async(&mut connection).await?;
        match role.first() {
            Some(Value::BulkString(word)) if word == b"master" => Ok(connection),
            _ => Err(Fault::new(Effect::Busy, ErrorKind::Unavailable, "no server is a master")),
        }
    }

    fn client(&self, address: &Address, protocol: ProtocolVersion) -> Result<Client, Fault> {
        let info = self.info(address, protocol)?;
        match &self.tls {
            None => Ok(Client::open(info)?),
            Some(tls) => tls::client(tls, info),
        }
    }

    /// All that the client crate must know to connect, but for certificates.
    pub(crate) fn info(&self, address: &Address, protocol: ProtocolVersion) -> Result<ConnectionInfo, Fault> {
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
        let address = match (address, &self.tls) {
            (Address::Unix(path), _) => ConnectionAddr::Unix(path.clone()),
            (Address::Tcp(host, port), None) => ConnectionAddr::Tcp(host.clone(), *port),
            (Address::Tcp(host, port), Some(_)) => {
                ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
            }
        };
        let info = address.into_connection_info()?.set_redis_settings(settings);
        Ok(info.set_tcp_settings(self.tcp_settings()))
    }

    /// A packet is sent at once, and a peer that acknowledges none for as long as a request may take is given up.
    pub(crate) fn tcp_settings(&self) -> TcpSettings {
        let settings = TcpSettings::default().set_nodelay(true);
        #[cfg(target_os = "linux")]
        let settings = settings.set_user_timeout(self.timeout);
        settings
    }

    /// What is missing for RESP3: a server that does not know the command HELLO, or not with this version of the protocol,
    /// is too old, has it renamed, or stands behind something that knows only RESP2.
    async fn why_without_hello(&self, address: &Address, error: &RedisError) -> Fault {
        let probe = async {
            let config = AsyncConnectionConfig::new().set_connection_timeout(Some(self.timeout));
            let client = self.client(address, ProtocolVersion::RESP2)?;
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
            Ok::<_, Fault>(Probe::parse(&info))
        };
        let message = match probe.await {
            Ok(probe) if probe.is_too_old() => {
                format!("Redis {} is too old: lockkit needs version {VERSION_MIN} or later", probe.version)
            }
            _ => format!(
                "{address} does not speak RESP3 (HELLO 3: {}): lockkit needs Redis {VERSION_MIN} or later, with the \
                 command HELLO, and no proxy before it that knows only RESP2",
                Fault::from(error.clone()).message()
            ),
        };
        Fault::new(Effect::Refused, ErrorKind::Unsupported, message)
    }
}

/// Whether the server knows no HELLO, or no RESP3. The client crate recognizes one spelling of the first.
fn is_hello_unknown(error: &RedisError) -> bool {
    let is_about_hello =
        |detail: &str| detail.starts_with("un") && detail.to_ascii_uppercase().contains("HELLO");
    error.kind() == redis::ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || error.code() != Some("NOPERM") && error.detail().is_some_and(is_about_hello)
}

/// The text of a published message.
pub(crate) fn published(push: &PushInfo) -> Option<&str> {
    // Channel and payload.
    match push.data.get(1)? {
        Value::BulkString(payload) => std::str::from_utf8(payload).ok(),
        Value::SimpleString(payload) => Some(payload),
        _ => None,
    }
}
