//! A client of etcd's gRPC interface: the requests that locks need, and nothing above them.
//!
//! The messages and services are generated from `proto/` and checked in, so that building needs no `protoc`
//! (`docs/decisions/0034-etcd-client-of-our-own.md`). Types and methods are named as in the crate `etcd-client`.
//!
//! Nothing is retried here, and no request has a time limit: [`Server`](crate::call::Server) adds both. Failure cases:
//!
//! * No endpoint can be reached: the request fails with a `tonic::ConnectError` in its chain of causes. The balancer
//!   picks an endpoint for each request at random; it does not prefer live ones.
//! * The future of a request is dropped: the HTTP/2 stream is reset. The server may have executed the request.
//! * A stream breaks: it fails once and never recovers.
//! * A connection dies unnoticed. While a stream or another request is open, HTTP/2 pings find that. etcd closes a connection
//!   that is pinged without any, so TCP probes it then (`docs/decisions/0047-etcd-pings-only-during-requests.md`).
//! * The login has expired: the request fails as `Unauthenticated`. [`Client::log_in`] renews the login for all clones.

mod kv;
mod lease;
mod pb;
#[cfg(test)]
mod tests;
mod watch;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkit_core::support::lock;
#[cfg(not(test))]
use tonic::transport::Channel;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Endpoint, channel::Change},
};

use self::pb::{
    etcdserverpb::{
        AuthenticateRequest, StatusRequest, auth_client::AuthClient, maintenance_client::MaintenanceClient,
    },
    v3lockpb::lock_client::LockClient,
};
#[cfg(test)]
pub(crate) use self::tests::scripted;
#[cfg(test)]
use self::tests::scripted::Channel;
pub(crate) use self::{
    kv::{
        Compare, CompareOp, GetOptions, GetResponse, KeyValue, KvClient, PutOptions, ResponseHeader,
        SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse, end_of_prefix,
    },
    lease::{
        LeaseClient, LeaseKeepAliveStream, LeaseKeeper, LeaseTimeToLiveOptions, LeaseTimeToLiveResponse,
    },
    pb::v3lockpb::LockRequest,
    watch::{
        Event, EventType, WatchClient, WatchFilterType, WatchOptions, WatchRequestSender, WatchResponse,
        WatchStream,
    },
};

/// Requests of one stream that wait to be sent.
const STREAM_REQUESTS_MAX: usize = 100;

/// Pause between the probes of TCP on a connection that is silent.
const TCP_PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Probes of TCP without a reply that end a connection.
const TCP_PROBES: u32 = 3;

/// The token of a login, which all requests of a client send.
type LoginToken = Arc<Mutex<Option<MetadataValue<Ascii>>>>;

/// A channel that adds what every request carries.
type Connection = InterceptedService<Channel, Headers>;

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum Error {
    /// The server refused it, or the connection broke.
    Status(Status),
    /// TLS cannot be configured with these certificates.
    #[cfg(feature = "tls")]
    Tls(tonic::transport::Error),
    /// An endpoint is not `HOST:PORT`.
    InvalidEndpoint,
    /// The server's login token cannot be sent in a header.
    InvalidToken,
    LeaseNotFound,
    /// The stream has ended.
    StreamEnded,
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// How to connect.
#[derive(Default)]
pub(crate) struct ConnectOptions {
    login: Option<(String, String)>,
    connect_timeout: Option<Duration>,
    /// Pause between HTTP/2 pings, and of TCP before its probes; how long a reply to a ping may take.
    keep_alive: Option<(Duration, Duration)>,
    #[cfg(feature = "tls")]
    tls: Option<tonic::transport::ClientTlsConfig>,
}

impl ConnectOptions {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Sets the name and password of [`Client::log_in`].
    pub(crate) fn with_user(mut self, login: Option<(String, String)>) -> Self {
        self.login = login;
        self
    }

    pub(crate) fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Pings the server while a request is open; otherwise TCP probes it. A connection whose ping or probes are not answered
    /// in time breaks.
    pub(crate) fn with_keep_alive(mut self, interval: Duration, timeout: Duration) -> Self {
        self.keep_alive = Some((interval, timeout));
        self
    }

    #[cfg(feature = "tls")]
    pub(crate) fn with_tls(mut self, tls: tonic::transport::ClientTlsConfig) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Describes the connection to `HOST:PORT`, by TLS if that is configured.
    fn endpoint(&self, authority: &str) -> Result<Endpoint> {
        let parse = |url: String| Endpoint::from_shared(url).map_err(|_| Error::InvalidEndpoint);
        #[cfg(feature = "tls")]
        let mut endpoint = match &self.tls {
            Some(tls) => {
                parse(format!("https://{authority}"))?.tls_config(tls.clone()).map_err(Error::Tls)?
            }
            None => parse(format!("http://{authority}"))?,
        };
        #[cfg(not(feature = "tls"))]
        let mut endpoint = parse(format!("http://{authority}"))?;
        if let Some(timeout) = self.connect_timeout {
            endpoint = endpoint.connect_timeout(timeout);
        }
        if let Some((interval, timeout)) = self.keep_alive {
            endpoint = endpoint
                .keep_alive_while_idle(false)
                .http2_keep_alive_interval(interval)
                .keep_alive_timeout(timeout)
                .tcp_keepalive(Some(interval))
                .tcp_keepalive_interval(Some(TCP_PROBE_INTERVAL))
                .tcp_keepalive_retries(Some(TCP_PROBES));
        }
        Ok(endpoint)
    }
}

/// Connections to the members of a cluster. Cheap to clone; clones share the connections and the login.
#[derive(Clone)]
pub(crate) struct Client {
    connection: Connection,
    /// Sends no token: that of an earlier login may have expired.
    auth: AuthClient<Connection>,
    login: Option<Arc<(String, String)>>,
    token: LoginToken,
}

impl Client {
    /// Prepares the connections; each is opened by the first request that needs it. An endpoint is `HOST:PORT`.
    pub(crate) fn connect(endpoints: &[String], options: ConnectOptions) -> Result<Self> {
        // Also for one endpoint: without a balancer, a connection that was refused would end the channel.
        let (channel, members) = Channel::balance_channel(endpoints.len().max(1));
        for authority in endpoints {
            let endpoint = options.endpoint(authority)?;
            // There is room for all of them.
            let _ = members.try_send(Change::Insert(endpoint.uri().clone(), endpoint));
        }
        Ok(Self::over(&channel, options.login))
    }

    /// Returns a client whose requests go over this channel.
    fn over(channel: &Channel, login: Option<(String, String)>) -> Self {
        let token = LoginToken::default();
        let with = |token| InterceptedService::new(channel.clone(), Headers { token });
        Self {
            auth: AuthClient::new(with(LoginToken::default())),
            connection: with(Arc::clone(&token)),
            login: login.map(Arc::new),
            token,
        }
    }

    /// Logs in with the configured name and password. Requests that are sent from now on carry the new token.
    pub(crate) async fn log_in(&self) -> Result<()> {
        let Some(login) = &self.login else { return Ok(()) };
        let (name, password) = (**login).clone();
        let reply = self.auth.clone().authenticate(AuthenticateRequest { name, password }).await?;
        let token = reply.into_inner().token.parse().map_err(|_| Error::InvalidToken)?;
        *lock(&self.token) = Some(token);
        Ok(())
    }

    pub(crate) fn kv_client(&self) -> KvClient {
        KvClient::new(self.connection.clone())
    }

    pub(crate) fn lease_client(&self) -> LeaseClient {
        LeaseClient::new(self.connection.clone())
    }

    pub(crate) fn watch_client(&self) -> WatchClient {
        WatchClient::new(self.connection.clone())
    }

    /// Calls the server's Lock RPC, which returns when the lock is acquired.
    pub(crate) async fn lock(&self, request: LockRequest) -> Result<()> {
        LockClient::new(self.connection.clone()).lock(request).await?;
        Ok(())
    }

    /// Returns the version of the member that the request reaches.
    pub(crate) async fn version(&self) -> Result<String> {
        let status = MaintenanceClient::new(self.connection.clone()).status(StatusRequest {}).await?;
        Ok(status.into_inner().version)
    }
}

/// Adds what every request carries.
#[derive(Clone)]
struct Headers {
    token: LoginToken,
}

impl Interceptor for Headers {
    fn call(&mut self, mut request: Request<()>) -> std::result::Result<Request<()>, Status> {
        let metadata = request.metadata_mut();
        if let Some(token) = lock(&self.token).clone() {
            metadata.insert("token", token);
        }
        // Otherwise a watch on a member that has lost its leader stays silent forever.
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        Ok(request)
    }
}
