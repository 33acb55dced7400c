//! Opens connections to single servers.

use std::{fmt, time::Duration};

use lockkit_core::ErrorKind;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    PushInfo, RedisConnectionInfo, RedisError, Value, aio::MultiplexedConnection, io::tcp::TcpSettings,
};

use crate::{
    Tls,
    error::{Effect, RequestError},
    server_info::{ServerInfo, VERSION_MIN},
    tls,
};

/// Commands that may be queued for a socket before their senders wait.
const PIPELINE_COMMANDS: usize = 1024;

/// A server's host and port, or its Unix socket.
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
        // Destructured in full: a new field does not compile until this decides whether it is secret.
        let Self { user, password, database } = self;
        f.debug_struct("Login")
            .field("user", user)
            .field("password", &password.as_ref().map(|_| "***"))
            .field("database", database)
            .finish()
    }
}

/// How to connect to a server.
#[derive(Clone)]
pub(crate) struct Dialer {
    pub(crate) login: Login,
    pub(crate) tls: Option<Tls>,
    pub(crate) timeout: Duration,
}

impl Dialer {
    /// Opens a connection; what the server pushes goes to `pushes`.
    pub(crate) async fn open(
        &self,
        address: &Address,
        pushes: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<MultiplexedConnection, RequestError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            // Every request has a time limit of its own.
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

    /// As [`open`](Self::open); fails unless the server reports the role of a master.
    pub(crate) async fn open_master(
        &self,
        address: &Address,
        pushes: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<MultiplexedConnection, RequestError> {
        let mut connection = self.open(address, pushes).await?;
        let role: Vec<Value> = redis::cmd("ROLE").query_async(&mut connection).await?;
        match role.first() {
            Some(Value::BulkString(word)) if word == b"master" => Ok(connection),
            _ => Err(RequestError::new(Effect::Busy, ErrorKind::Unavailable, "no server is a master")),
        }
    }

    fn client(&self, address: &Address, protocol: ProtocolVersion) -> Result<Client, RequestError> {
        let info = self.info(address, protocol)?;
        match &self.tls {
            None => Ok(Client::open(info)?),
            Some(tls) => tls::client(tls, info),
        }
    }

    /// Returns all that the client crate needs to connect, except certificates.
    pub(crate) fn info(
        &self,
        address: &Address,
        protocol: ProtocolVersion,
    ) -> Result<ConnectionInfo, RequestError> {
        let mut settings = RedisConnectionInfo::default()
            .set_protocol(protocol)
            .set_db(self.login.database)
            // Saves two commands per connection, and a right that a limited user may lack.
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

    /// Packets are sent at once. A peer that acknowledges none within the time limit of a request is given up.
    pub(crate) fn tcp_settings(&self) -> TcpSettings {
        let settings = TcpSettings::default().set_nodelay(true);
        #[cfg(target_os = "linux")]
        let settings = settings.set_user_timeout(self.timeout);
        settings
    }

    /// Finds out why RESP3 is missing. A server that does not know HELLO, or not with this protocol version, is too
    /// old, has renamed the command, or is behind a proxy that knows only RESP2.
    async fn why_without_hello(&self, address: &Address, error: &RedisError) -> RequestError {
        let info = async {
            let config = AsyncConnectionConfig::new().set_connection_timeout(Some(self.timeout));
            let client = self.client(address, ProtocolVersion::RESP2)?;
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
            Ok::<_, RequestError>(ServerInfo::parse(&info))
        };
        let message = match info.await {
            Ok(info) if info.is_too_old() => {
                format!("Redis {} is too old: lockkit needs version {VERSION_MIN} or later", info.version)
            }
            _ => format!(
                "{address} does not speak RESP3 (HELLO 3: {}): lockkit needs Redis {VERSION_MIN} or later, with the \
                 command HELLO, and no proxy before it that knows only RESP2",
                RequestError::from(error.clone()).message()
            ),
        };
        RequestError::new(Effect::Refused, ErrorKind::Unsupported, message)
    }
}

/// Returns whether the server does not know HELLO or RESP3. The client crate recognizes only one spelling of the first.
fn is_hello_unknown(error: &RedisError) -> bool {
    let is_about_hello =
        |detail: &str| detail.starts_with("un") && detail.to_ascii_uppercase().contains("HELLO");
    error.kind() == redis::ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || error.code() != Some("NOPERM") && error.detail().is_some_and(is_about_hello)
}

/// Returns the channel and the text of a published message.
pub(crate) fn published(push: &PushInfo) -> Option<(&str, &str)> {
    match push.data.as_slice() {
        [channel, payload, ..] => Some((text(channel)?, text(payload)?)),
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}
