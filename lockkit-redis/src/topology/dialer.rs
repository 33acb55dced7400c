//! Opens connections to single servers.
//!
//! The server answers the login, or the choice of the database, with what a later try may not meet (it has too many
//! clients, is busy with a script, or loads its data): the fault is transient, and the connection is opened again.

use std::{fmt, time::Duration};

use lockkit_core::ErrorKind;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    PushInfo, RedisConnectionInfo, RedisError, Value, aio::MultiplexedConnection, io::tcp::TcpSettings,
};

use crate::{
    Tls,
    error::{Effect, IS_SENTINEL, RequestError},
    server_info::{ServerInfo, VERSION_MIN},
    tls,
    topology::Login,
};

/// Commands that may be queued for a socket before their senders wait.
const PIPELINE_COMMANDS: usize = 1024;

/// The role of a server that may write.
pub(crate) const MASTER: &[u8] = b"master";

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
        let opened = async {
            let client = self.client(address, ProtocolVersion::RESP3)?;
            match client.get_multiplexed_async_connection_with_config(&config).await {
                Err(error) if is_hello_unknown(&error) => Err(self.why_without_hello(address, &error).await),
                Err(error) if self.is_strange(&error) => Err(self.question(error.into())),
                opened => self.in_database(opened?).await,
            }
        };
        opened.await.map_err(|fault: RequestError| fault.at(address))
    }

    /// Selects the database of the login. The client crate would drop the code of an error that is the answer to its
    /// SELECT: a server that is busy with a script would be taken for one that refuses the database.
    async fn in_database(
        &self,
        mut connection: MultiplexedConnection,
    ) -> Result<MultiplexedConnection, RequestError> {
        if self.login.database != 0 {
            let select = redis::cmd("SELECT").arg(self.login.database).to_owned();
            let _: Value = select.query_async(&mut connection).await?;
        }
        Ok(connection)
    }

    /// Returns the fault of servers that have not answered in time.
    pub(crate) fn no_reply<'a>(&self, servers: impl IntoIterator<Item = &'a Address>) -> RequestError {
        let servers: Vec<String> = servers.into_iter().map(Address::to_string).collect();
        let fault = RequestError::no_reply();
        let fault = if self.tls.is_some() { self.question(fault) } else { fault };
        fault.at(servers.join(", "))
    }

    /// Returns whether another program may have answered: the connection was closed before an answer, or the answer has
    /// another form. A server of Redis without TLS waits for the rest of what a client with TLS sends.
    fn is_strange(&self, error: &RedisError) -> bool {
        let is_cut = error.is_connection_dropped() && !error.is_connection_refusal();
        is_cut || error.kind() == redis::ErrorKind::Parse || error.is_timeout() && self.tls.is_some()
    }

    fn question(&self, fault: RequestError) -> RequestError {
        let question = match self.tls {
            Some(_) => "is this a Redis server with TLS? without TLS, the URL begins with redis",
            None => "is this a Redis server? with TLS, the URL begins with rediss",
        };
        fault.with_question(question)
    }

    /// As [`open`](Self::open); fails unless the server reports the role of a master.
    pub(crate) async fn open_master(
        &self,
        address: &Address,
        pushes: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<MultiplexedConnection, RequestError> {
        let mut connection = self.open(address, pushes).await?;
        let answer: Value = redis::cmd("ROLE")
            .query_async(&mut connection)
            .await
            .map_err(|error| RequestError::from(error).at(address))?;
        let refused = |effect, kind, why| Err(RequestError::new(effect, kind, why).at(address));
        match role(&answer) {
            MASTER => Ok(connection),
            b"sentinel" => refused(Effect::Refused, ErrorKind::InvalidConfig, IS_SENTINEL),
            _ => refused(Effect::Busy, ErrorKind::Unavailable, "not a master"),
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
            // Saves two commands per connection, and a right that a limited user may lack.
            .set_skip_set_lib_name();
        if let Some(user) = &self.login.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.login.password {
            settings = settings.set_password(password.read()?);
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
                "no RESP3 (HELLO 3: {}): lockkit needs Redis {VERSION_MIN} or later, with the \
                 command HELLO, and no proxy before it that knows only RESP2",
                RequestError::from(error.clone()).message()
            ),
        };
        RequestError::new(Effect::Refused, ErrorKind::Unsupported, message)
    }
}

/// Returns the role in an answer to ROLE; '' in another answer.
pub(crate) fn role(answer: &Value) -> &[u8] {
    match answer {
        Value::Array(parts) => match parts.first() {
            Some(Value::BulkString(role)) => role,
            _ => b"",
        },
        _ => b"",
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

/// Returns the channel of the report that a subscription was made; '' in a report without one.
pub(crate) fn subscribed_to(push: &PushInfo) -> &str {
    push.data.first().and_then(text).unwrap_or_default()
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        tests::scripted::{Answer, ScriptedServer, greeting, scripted_sentinel},
        topology::{Connector, PushHandler, Sentinels, Topology},
    };

    /// Sentinels that were cut off name the master of their time, which may be a replica now.
    #[tokio::test]
    async fn server_that_sentinels_name_must_report_the_role_of_a_master() {
        let replica = ScriptedServer::start(|_| {
            |_, words: &[String]| match &*words[0] {
                "ROLE" => Answer::Text("*1\r\n$5\r\nslave\r\n".to_owned()),
                _ => greeting(words),
            }
        });
        let Address::Tcp(_, port) = replica.await.address else { unreachable!() };
        let addresses = vec![scripted_sentinel(1, "127.0.0.1", port).await];
        let connector = Connector {
            topology: Topology::Sentinel(Sentinels { addresses, master: "main".to_owned() }),
            dialer: Dialer { login: Login::default(), tls: None, timeout: lockkit_conformance::direct::HANG },
            sentinel_login: Login::default(),
            cluster_retries: 0,
        };
        let refused = connector.connect(PushHandler::ignore_all()).await.err().unwrap();
        assert!(refused.is_transient() && refused.message().ends_with("not a master"), "{refused:?}");
    }

    /// An operator who lists locks has no other time limit for the connection.
    #[tokio::test]
    async fn master_that_is_silent_after_its_login_is_given_up() {
        let silent = ScriptedServer::start(|_| {
            |_, words: &[String]| match &*words[0] {
                "ROLE" => Answer::Nothing,
                _ => greeting(words),
            }
        });
        let Address::Tcp(_, port) = silent.await.address else { unreachable!() };
        let addresses = vec![scripted_sentinel(1, "127.0.0.1", port).await];
        let connector = Connector {
            topology: Topology::Sentinel(Sentinels { addresses, master: "main".to_owned() }),
            dialer: Dialer { login: Login::default(), tls: None, timeout: Duration::from_secs(2) },
            sentinel_login: Login::default(),
            cluster_retries: 0,
        };
        let connecting = connector.connect(PushHandler::ignore_all());
        let opened = tokio::time::timeout(lockkit_conformance::direct::HANG, connecting).await;
        let fault = opened.expect("it has a time limit").err().unwrap();
        assert!(fault.is_transient() && !fault.may_have_executed(), "{fault:?}");
    }

    /// The client crate would give up after a second.
    #[tokio::test(start_paused = true)]
    async fn login_may_take_as_long_as_a_request() {
        // The kernel accepts, and nobody answers.
        let hanging = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp("127.0.0.1".to_owned(), hanging.local_addr().unwrap().port());
        let dialer = Dialer { login: Login::default(), tls: None, timeout: Duration::from_secs(60) };
        let start = tokio::time::Instant::now();
        let fault = dialer.open(&address, |_| {}).await.err().unwrap();
        let took = start.elapsed();
        assert!(fault.is_transient() && took >= dialer.timeout, "{took:?}: {fault:?}");
    }

    /// A peer whose packets are lost answers nothing; the kernel would wait for a quarter of an hour.
    #[cfg(target_os = "linux")]
    #[test]
    fn peer_that_acknowledges_nothing_is_given_up_within_the_time_limit() {
        let timeout = Duration::from_secs(7);
        let dialer = Dialer { login: Login::default(), tls: None, timeout };
        let info = dialer.info(&Address::Tcp("h".to_owned(), 1), ProtocolVersion::RESP3).unwrap();
        assert_eq!(
            (info.tcp_settings().user_timeout(), info.tcp_settings().nodelay()),
            (Some(timeout), true)
        );
    }

    /// Else nothing of the time limit would be left for the master, where several of its replicas hang.
    #[tokio::test(start_paused = true)]
    async fn all_servers_are_asked_for_their_role_at_once() {
        // The kernel accepts, and nobody answers.
        let hanging = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp("127.0.0.1".to_owned(), hanging.local_addr().unwrap().port());
        let timeout = Duration::from_secs(24 * 60 * 60);
        let connector = Connector {
            topology: Topology::Replicas(vec![address; 2]),
            dialer: Dialer { login: Login::default(), tls: None, timeout },
            sentinel_login: Login::default(),
            cluster_retries: 0,
        };
        let start = tokio::time::Instant::now();
        let fault = connector.connect(PushHandler::ignore_all()).await.err().unwrap();
        let took = start.elapsed();
        assert!(fault.is_transient() && took < timeout * 3 / 4, "{took:?}: {fault:?}");
    }
}
