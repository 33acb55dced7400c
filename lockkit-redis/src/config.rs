//! How to reach Redis, and where in it the locks lie.

use std::{fmt, path::PathBuf, time::Duration};

use lockkit_core::{Error, ErrorKind, Result, backend::BackendUrl};

use crate::{
    SCHEME, SCHEME_CLUSTER, SCHEME_SENTINEL, SCHEME_UNIX, SCHEMES_TLS,
    keys::{Layout, Names},
    node::{Address, Dialer, Login},
    sentinel::Sentinels,
    tls::{self, Tls},
    topology::{Connector, Topology},
};

/// Port of a server that names none.
const PORT_DEFAULT: u16 = 6379;

/// Port of a Sentinel that names none.
const PORT_SENTINEL: u16 = 26379;

/// Longest time for one request that a configuration does not set.
const REQUEST_TIMEOUT_DEFAULT: Duration = Duration::from_secs(3);

/// What is configured is moved into these bounds.
const REQUEST_TIMEOUT_MIN: Duration = Duration::from_millis(10);
const REQUEST_TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// How long the token counter of a lock outlives its last grant, where a configuration does not say.
const COUNTER_TTL_DEFAULT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Shorter ones would give up the order of tokens while a clock is set.
const COUNTER_TTL_MIN: Duration = Duration::from_secs(1);

/// In which order waiters get the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Queue {
    /// First come, first served: a release hands the lock over. The default.
    #[default]
    Fifo,
    /// Whoever asks first when it is free, as in most other libraries: waiters leave nothing in the store, and ask about
    /// ten times a second. They never overtake those that queue.
    None,
}

/// How to reach Redis, and where in it the locks lie.
///
/// ```
/// use lockkit_redis::{RedisBackend, RedisConfig};
///
/// let config = RedisConfig::new(["10.0.0.1:6379"])?.user("app", "secret").prefix("prod:");
/// assert!(!format!("{config:?}").contains("secret"));
/// let backend = RedisBackend::new(config);
/// # Ok::<(), lockkit_core::Error>(())
/// ```
#[derive(Clone)]
pub struct RedisConfig {
    topology: Topology,
    login: Login,
    tls: Option<Tls>,
    prefix: String,
    names: Names,
    pub(crate) queue: Queue,
    pub(crate) min_replicas: Option<u32>,
    pub(crate) request_timeout: Duration,
    pub(crate) counter_ttl: Duration,
}

impl RedisConfig {
    /// One server, or a master and its replicas in any order, each as `HOST:PORT` or `HOST`. Of several, the one that
    /// says that it is the master is used, and looked for again when it is one no more.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` without a server, and for one that is not of this form.
    pub fn new(servers: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        let mut addresses = parse_servers(servers, PORT_DEFAULT)?;
        Ok(Self::with_topology(match addresses.len() {
            1 => Topology::Single(addresses.remove(0)),
            _ => Topology::Replicas(addresses),
        }))
    }

    /// The servers of which these Sentinels say who is the master that they call by this name. Sentinels are asked
    /// without a login.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and without a name.
    pub fn sentinel(
        sentinels: impl IntoIterator<Item = impl AsRef<str>>,
        master: impl Into<String>,
    ) -> Result<Self> {
        let (addresses, master) = (parse_servers(sentinels, PORT_SENTINEL)?, master.into());
        if master.is_empty() || master.contains('/') {
            return Err(invalid("Sentinels are asked for a master by its name: redis+sentinel://HOST/NAME"));
        }
        Ok(Self::with_topology(Topology::Sentinel(Sentinels { addresses, master })))
    }

    /// A cluster, by some of its nodes, which tell of the others.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn cluster(nodes: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        Ok(Self::with_topology(Topology::Cluster(parse_servers(nodes, PORT_DEFAULT)?)))
    }

    /// One server of this machine, by its Unix socket.
    pub fn unix(socket: impl Into<PathBuf>) -> Self {
        Self::with_topology(Topology::Single(Address::Unix(socket.into())))
    }

    fn with_topology(topology: Topology) -> Self {
        Self {
            topology,
            login: Login::default(),
            tls: None,
            prefix: String::new(),
            names: Names::default(),
            queue: Queue::default(),
            min_replicas: None,
            request_timeout: REQUEST_TIMEOUT_DEFAULT,
            counter_ttl: COUNTER_TTL_DEFAULT,
        }
    }

    /// The configuration of one of
    ///
    /// ```text
    /// redis://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][/DATABASE]
    /// redis+unix://[[USER]:PASSWORD@]/PATH[?db=DATABASE]
    /// redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]/MASTER[?db=DATABASE]
    /// redis+cluster://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]
    /// ```
    ///
    /// with the options `prefix`, `names=raw`, `queue=none`, `min_replicas`, `request_timeout` and `counter_ttl`, each
    /// as the method of its name. With TLS they begin with `rediss` (but for the socket), and take `ca`, `cert` and
    /// `key`: files, see [`Tls`].
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for another scheme, a user without a password, a database that is no number, a certificate
    /// without its key, an unknown option, options of TLS without TLS; `Unsupported` for TLS without the feature `tls`.
    pub fn from_url(url: BackendUrl) -> Result<Self> {
        let is_tls = SCHEMES_TLS.contains(&url.scheme());
        let scheme =
            if is_tls { url.scheme().replacen("rediss", SCHEME, 1) } else { url.scheme().to_owned() };
        Self::from_parts(url, &scheme, is_tls)
    }

    /// The servers of a URL with a scheme that is not ours, each for itself.
    pub(crate) fn of_nodes(url: BackendUrl, is_tls: bool) -> Result<Self> {
        Self::from_parts(url, SCHEME, is_tls)
    }

    fn from_parts(mut url: BackendUrl, scheme: &str, is_tls: bool) -> Result<Self> {
        if is_tls && !cfg!(feature = "tls") {
            return Err(tls::not_in_this_build());
        }
        let mut config = Self::of_servers(&mut url, scheme)?;
        if is_tls {
            config = config.tls(take_tls(&mut url)?);
        }
        config = match (url.user(), url.password()) {
            (Some(user), Some(password)) => config.user(user, password),
            (None, Some(password)) => config.password(password),
            (None, None) => config,
            (Some(_), None) => return Err(invalid("Redis takes a user together with a password")),
        };
        config.take_options(url)
    }

    /// Scheme, servers and database.
    fn of_servers(url: &mut BackendUrl, scheme: &str) -> Result<Self> {
        let servers: Vec<String> = url
            .hosts()
            .iter()
            .map(|host| match host.port {
                Some(port) => format!("{}:{port}", host.name),
                None => host.name.clone(),
            })
            .collect();
        let path = url.path().trim_matches('/').to_owned();
        match scheme {
            SCHEME => Ok(Self::new(servers)?.database(parse_number(&path, "database")?)),
            SCHEME_UNIX if !path.is_empty() && servers.is_empty() => {
                Ok(Self::unix(url.path()).database(take_database(url)?))
            }
            SCHEME_UNIX => Err(invalid("redis+unix:/// is followed by the path of a socket")),
            SCHEME_SENTINEL => Ok(Self::sentinel(servers, path)?.database(take_database(url)?)),
            SCHEME_CLUSTER if path.is_empty() => Self::cluster(servers),
            SCHEME_CLUSTER => Err(invalid("a cluster has no databases")),
            other => Err(invalid(format!("{other:?} is not a scheme of Redis"))),
        }
    }

    fn take_options(mut self, mut url: BackendUrl) -> Result<Self> {
        if let Some(prefix) = url.take("prefix") {
            self = self.prefix(prefix);
        }
        if let Some(names) = url.take_word("names", &[("encoded", Names::Encoded), ("raw", Names::Raw)])? {
            self = self.names(names);
        }
        if let Some(queue) = url.take_word("queue", &[("fifo", Queue::Fifo), ("none", Queue::None)])? {
            self = self.queue(queue);
        }
        if let Some(count) = url.take("min_replicas") {
            self = self.min_replicas(parse_number(&count, "min_replicas")?);
        }
        if let Some(timeout) = url.take_duration("request_timeout")? {
            self = self.request_timeout(timeout);
        }
        if let Some(ttl) = url.take_duration("counter_ttl")? {
            self = self.counter_ttl(ttl);
        }
        url.finish()?;
        Ok(self)
    }

    /// Logs in as this user of an access control list (ACL). It needs, with the default prefix and encoded names:
    ///
    /// ```text
    /// ACL SETUSER app on >PASSWORD ~* &lockkit:client:* +evalsha +eval +subscribe +publish +ping +info +hello +select
    ///     +time +getrange +exists +get +set +del +pttl +pexpire +type
    ///     +zadd +zrange +zrevrange +zrem +hset +hget +hdel +hexists +hstrlen
    /// ```
    ///
    /// With a prefix, `~PREFIX*` and `~lockkit:{PREFIX*` will do instead of `~*`. `+wait` is needed for
    /// [`min_replicas`](Self::min_replicas), `+role` with several servers.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        (self.login.user, self.login.password) = (Some(name.into()), Some(password.into()));
        self
    }

    /// Logs in with the password of the default user (`requirepass`).
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        (self.login.user, self.login.password) = (None, Some(password.into()));
        self
    }

    /// Speaks TLS with all servers. Without the feature `tls` the connection is refused, not made without it.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// The number of the database. Default 0.
    #[must_use]
    pub fn database(mut self, number: u32) -> Self {
        self.login.database = number.into();
        self
    }

    /// What all lock keys begin with. Default: nothing. Clients that share locks share the prefix.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How lock names become keys.
    #[must_use]
    pub fn names(mut self, names: Names) -> Self {
        self.names = names;
        self
    }

    /// In which order waiters get the lock.
    #[must_use]
    pub fn queue(mut self, queue: Queue) -> Self {
        self.queue = queue;
        self
    }

    /// Grants count only when so many replicas know of them. Costs a second round trip and the replicas' answer for each
    /// grant. It makes it less likely that a failover loses a grant, not impossible: a replica that does not know may be
    /// promoted.
    #[must_use]
    pub fn min_replicas(mut self, count: u32) -> Self {
        self.min_replicas = (count > 0).then_some(count);
        self
    }

    /// Longest time for one request (not for an acquire, which is as many requests as it takes); the beats of a short
    /// ttl shorten it. Default 3 s; at least 10 ms, at most 60 s.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout.clamp(REQUEST_TIMEOUT_MIN, REQUEST_TIMEOUT_MAX);
        self
    }

    /// How long a lock's token counter, and what dead clients have left beside the lock, outlive its last use. Default
    /// 7 days; at least 1 s. Tokens rise without the counter too, as long as the server's clock is not set back.
    #[must_use]
    pub fn counter_ttl(mut self, ttl: Duration) -> Self {
        self.counter_ttl = ttl.max(COUNTER_TTL_MIN);
        self
    }

    pub(crate) fn layout(&self) -> Layout {
        Layout::new(&self.prefix, self.names, matches!(self.topology, Topology::Cluster(_)))
    }

    pub(crate) fn connector(&self) -> Connector {
        Connector {
            topology: self.topology.clone(),
            dialer: Dialer {
                login: self.login.clone(),
                tls: self.tls.clone(),
                timeout: self.request_timeout,
            },
        }
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Taken apart in full, so that a new field must decide here whether it is a secret.
        let Self { topology, login, tls, prefix, names, queue, min_replicas, request_timeout, counter_ttl } =
            self;
        let Login { user, password, database } = login;
        f.debug_struct("RedisConfig")
            .field("topology", topology)
            .field("user", user)
            .field("password", &password.as_ref().map(|_| "***"))
            .field("database", database)
            .field("tls", tls)
            .field("prefix", prefix)
            .field("names", names)
            .field("queue", queue)
            .field("min_replicas", min_replicas)
            .field("request_timeout", request_timeout)
            .field("counter_ttl", counter_ttl)
            .finish()
    }
}

/// At least one.
fn parse_servers(
    servers: impl IntoIterator<Item = impl AsRef<str>>,
    default_port: u16,
) -> Result<Vec<Address>> {
    let servers: Vec<Address> = servers
        .into_iter()
        .map(|server| parse_server(server.as_ref(), default_port))
        .collect::<Result<_>>()?;
    if servers.is_empty() { Err(invalid("Redis needs at least one server")) } else { Ok(servers) }
}

/// `HOST` or `HOST:PORT`.
fn parse_server(text: &str, default_port: u16) -> Result<Address> {
    // The text itself is not repeated in the error: it may hold a password in a place where none belongs.
    let malformed = || invalid("a server is HOST or HOST:PORT");
    if text.is_empty() || text.contains(['/', '@', '?', '#', ' ']) {
        return Err(malformed());
    }
    let host_end = text.rfind(']').map_or(0, |bracket| bracket + 1);
    let (host, port) = match text[host_end..].rsplit_once(':') {
        Some((rest, port)) => (&text[..host_end + rest.len()], port.parse::<u16>().map_err(|_| malformed())?),
        None => (text, default_port),
    };
    Ok(Address::Tcp(host.trim_matches(['[', ']']).to_owned(), port))
}

fn take_database(url: &mut BackendUrl) -> Result<u32> {
    parse_number(&url.take("db").unwrap_or_default(), "db")
}

/// The options `ca`, `cert` and `key`.
fn take_tls(url: &mut BackendUrl) -> Result<Tls> {
    let tls = url.take("ca").into_iter().fold(Tls::new(), Tls::ca);
    match (url.take("cert"), url.take("key")) {
        (Some(certificate), Some(key)) => Ok(tls.identity(certificate, key)),
        (None, None) => Ok(tls),
        _ => Err(invalid("TLS takes a certificate (cert) together with its key (key), or neither")),
    }
}

/// A number, 0 for an empty text.
fn parse_number(text: &str, what: &str) -> Result<u32> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| invalid(format!("{what} is not a number")))
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidConfig, "configure Redis").with_message(message)
}

#[cfg(test)]
mod tests {
    use lockkit_core::LockName;

    use super::*;

    fn from(url: &str) -> Result<RedisConfig> {
        RedisConfig::from_url(BackendUrl::parse(url)?)
    }

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.to_owned(), port)
    }

    #[test]
    fn a_url_says_it_all() {
        let config = from(
            "redis://me:s%40cret@h1:1/2?prefix=app:&names=raw&queue=none&min_replicas=1&request_timeout=500ms\
             &counter_ttl=1h",
        )
        .unwrap();
        assert_eq!(config.topology, Topology::Single(tcp("h1", 1)));
        assert_eq!(
            (config.login.user.as_deref(), config.login.password.as_deref()),
            (Some("me"), Some("s@cret"))
        );
        assert_eq!((config.login.database, config.queue, config.min_replicas), (2, Queue::None, Some(1)));
        assert_eq!(config.request_timeout, Duration::from_millis(500));
        assert_eq!(config.counter_ttl, Duration::from_secs(3600));
        assert_eq!(config.layout().keys(&LockName::new("a/b").unwrap()).unwrap().lock(), "app:a/b");
    }

    #[test]
    fn several_servers_are_a_master_and_its_replicas() {
        let config = from("redis://:secret@h1:1,h2,[::1]:3").unwrap();
        assert_eq!(config.topology, Topology::Replicas(vec![tcp("h1", 1), tcp("h2", 6379), tcp("::1", 3)]));
        assert_eq!((config.login.user, config.login.password.as_deref()), (None, Some("secret")));
    }

    #[test]
    fn a_socket_has_a_path() {
        let config = from("redis+unix:///run/redis%201.sock?db=3").unwrap();
        assert_eq!(config.topology, Topology::Single(Address::Unix("/run/redis 1.sock".into())));
        assert_eq!(config.login.database, 3);
    }

    #[test]
    fn sentinels_and_clusters_are_told_by_scheme() {
        let config = from("redis+sentinel://app:secret@s1,s2:9/main?db=2").unwrap();
        let sentinels =
            Sentinels { addresses: vec![tcp("s1", 26379), tcp("s2", 9)], master: "main".to_owned() };
        assert_eq!((config.topology, config.login.database), (Topology::Sentinel(sentinels), 2));
        let config = from("redis+cluster://h1,h2:9").unwrap();
        assert_eq!(config.topology, Topology::Cluster(vec![tcp("h1", 6379), tcp("h2", 9)]));
        let named = RedisConfig::cluster(["h"]).unwrap().names(Names::Raw).layout();
        assert!(named.keys(&LockName::new("a}b").unwrap()).is_err());
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_is_named_by_scheme_and_options() {
        assert_eq!(from("redis://h").unwrap().tls, None);
        assert_eq!(from("rediss://h").unwrap().tls, Some(Tls::new()));
        let config = from("rediss+cluster://h/?ca=/ca.pem&cert=/a.pem&key=/a-key.pem").unwrap();
        assert_eq!(config.tls, Some(Tls::new().ca("/ca.pem").identity("/a.pem", "/a-key.pem")));
        assert!(matches!(from("rediss+sentinel://h/m").unwrap().topology, Topology::Sentinel(_)));
        for alone in ["rediss://h/?cert=/a.pem", "rediss://h/?key=/a-key.pem", "rediss://h/?verify=no"] {
            assert_eq!(from(alone).unwrap_err().kind(), ErrorKind::InvalidConfig, "{alone}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_is_refused_by_a_build_without_it() {
        assert_eq!(from("rediss://h").unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn mistakes_are_told_by_kind() {
        for url in [
            "redis://me@h",
            "redis:///2",
            "etcd://h",
            "redis://h/two",
            "redis://h/?prefx=a",
            "redis://h/?queue=lifo",
            "redis://h/?min_replicas=some",
            "redis+unix://h/x",
            "redis+unix:///",
            "redis+sentinel://h",
            "redis+sentinel:///main",
            "redis+sentinel://h/main/2",
            "redis+cluster://h/2",
            "redis+cluster:///",
            "redis://h/?ca=/ca.pem",
            "redis+ssh://h",
        ] {
            assert_eq!(from(url).unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
        }
        for server in ["", "h:port", "h:70000", "me:secret@h:1", "h/x"] {
            let error = RedisConfig::new([server]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{server}");
            assert!(!error.to_string().contains("secret"));
        }
        assert!(RedisConfig::new([""; 0]).is_err());
    }

    #[test]
    fn no_secret_is_printed() {
        let config = from("redis://me:hunter2@h").unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
