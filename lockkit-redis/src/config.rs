//! How to reach Redis, and which keys the locks use.

use std::{fmt, path::PathBuf, time::Duration};

use lockkit_core::{
    Error, ErrorKind, Result,
    backend::Host,
    limits::{REQUEST_TIMEOUT_DEFAULT, REQUEST_TIMEOUT_MAX, REQUEST_TIMEOUT_MIN},
};

use crate::{
    Tls,
    keys::{Layout, Names},
    topology::{Address, CLUSTER_RETRIES, Connector, Dialer, Login, Password, Sentinels, Topology},
};

/// Port of a server that is given without one.
const PORT_DEFAULT: u16 = 6379;

/// Port of a Sentinel that is given without one.
const PORT_SENTINEL: u16 = 26379;

/// Default of how long the token counter of a lock outlives its last use.
const COUNTER_TTL_DEFAULT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// With a shorter one, tokens could fall while a clock is being set.
const COUNTER_TTL_MIN: Duration = Duration::from_secs(1);

/// Redis refuses an expiry beyond the range of its clock, and the script would stop half-way.
const COUNTER_TTL_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// The order in which waiters are granted the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Queue {
    /// First come, first served: a release grants the lock to the next waiter. The default with [`Names::Encoded`].
    /// Clients of other libraries, which poll, find the lock free only while the queue is empty.
    #[default]
    Fifo,
    /// The first to ask when the lock is free, as in most other libraries. Waiters leave nothing in the store, and ask
    /// about ten times a second. They never overtake waiters in the queue. The default with [`Names::Raw`].
    None,
}

/// How to reach Redis, and which keys the locks use.
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
    pub(crate) topology: Topology,
    pub(crate) login: Login,
    sentinel_login: Login,
    pub(crate) tls: Option<Tls>,
    prefix: String,
    names: Names,
    /// `None`: depends on `names`.
    queue: Option<Queue>,
    pub(crate) min_replicas: Option<u32>,
    pub(crate) request_timeout: Duration,
    pub(crate) counter_ttl: Duration,
}

impl RedisConfig {
    /// Returns the configuration for one server, or for a master and its replicas in any order, each as `HOST:PORT` or
    /// `HOST`. Of several servers, all are asked for their role and the master is used. When a write or a heartbeat finds it
    /// demoted, all are asked again. While two report the role of a master, no connection is made: one of them is a
    /// former master that was restarted. Unreachable servers are not counted, so if Sentinels decide on the master, use
    /// [`sentinel`](Self::sentinel).
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

    /// Returns the configuration for the master that these Sentinels know by this name. Sentinels are asked without a
    /// login unless [`sentinel_user`](Self::sentinel_user), [`sentinel_password`](Self::sentinel_password) or
    /// [`sentinel_password_file`](Self::sentinel_password_file) is set.
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

    /// Returns the configuration for a cluster. Some of its nodes suffice: they name the others.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn cluster(nodes: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self> {
        Ok(Self::with_topology(Topology::Cluster(parse_servers(nodes, PORT_DEFAULT)?)))
    }

    /// Returns the configuration for one server on this machine, reached by its Unix socket.
    pub fn unix(socket: impl Into<PathBuf>) -> Self {
        Self::with_topology(Topology::Single(Address::Unix(socket.into())))
    }

    fn with_topology(topology: Topology) -> Self {
        Self {
            topology,
            login: Login::default(),
            sentinel_login: Login::default(),
            tls: None,
            prefix: String::new(),
            names: Names::default(),
            queue: None,
            min_replicas: None,
            request_timeout: REQUEST_TIMEOUT_DEFAULT,
            counter_ttl: COUNTER_TTL_DEFAULT,
        }
    }

    /// Logs in as this user of an access control list (ACL). It needs, with the default prefix and encoded names:
    ///
    /// ```text
    /// ACL SETUSER app on >PASSWORD ~* &lockkit:client:* &lockkit:leader:* +evalsha +eval +subscribe +unsubscribe
    ///     +publish +ping +info +hello +select +time +getrange +exists +get +set +del +pttl +pexpire
    ///     +zadd +zrange +zrevrange +zrem +zscore +hset +hget +hmget +hdel +hexists +hstrlen
    /// ```
    ///
    /// Without elections, `&lockkit:leader:*` and `+unsubscribe` are not needed. Redis 6.0 has no rights to channels:
    /// leave those that begin with `&` out there. With a prefix, `~PREFIX*` and `~lockkit:{PREFIX*` suffice instead of
    /// `~*`; with braces in the prefix or in [raw names](Names::Raw), `~lockkit::PREFIX*` is needed, too.
    /// [`min_replicas`](Self::min_replicas) needs `+wait`, several servers or Sentinels need `+role`, and a cluster needs
    /// `+cluster|slots +asking`.
    ///
    /// An operator who inspects and breaks locks needs the same rights. To list locks needs `+scan`, which shows the names
    /// of all keys.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        (self.login.user, self.login.password) = (Some(name.into()), Some(Password::Text(password.into())));
        self
    }

    /// Logs in with the password of the default user (`requirepass`).
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        (self.login.user, self.login.password) = (None, Some(Password::Text(password.into())));
        self
    }

    /// Logs in to Sentinels as this user. It needs
    ///
    /// ```text
    /// ACL SETUSER watcher on >PASSWORD resetchannels &+promoted-slave &+switch-master +hello +subscribe
    ///     +sentinel|master +sentinel|get-master-addr-by-name
    /// ```
    #[must_use]
    pub fn sentinel_user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        (self.sentinel_login.user, self.sentinel_login.password) =
            (Some(name.into()), Some(Password::Text(password.into())));
        self
    }

    /// Logs in to Sentinels with the first line of this file as the password: of the user `name`, or of the default user.
    /// Every new connection reads it again, so a new password needs no restart.
    #[must_use]
    pub fn sentinel_password_file(mut self, name: Option<String>, file: impl Into<PathBuf>) -> Self {
        (self.sentinel_login.user, self.sentinel_login.password) = (name, Some(Password::File(file.into())));
        self
    }

    /// Logs in to Sentinels with the password of their default user (`requirepass`).
    #[must_use]
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        (self.sentinel_login.user, self.sentinel_login.password) =
            (None, Some(Password::Text(password.into())));
        self
    }

    /// Uses TLS with all servers. In a build without the feature `tls` the connection is refused, never made in plain
    /// text.
    ///
    /// ```
    /// use lockkit_redis::{RedisConfig, Tls};
    ///
    /// let tls = Tls::new().ca("/etc/redis/ca.pem").identity("/etc/app/app.pem", "/etc/app/app-key.pem");
    /// let config = RedisConfig::new(["10.0.0.1:6379"])?.tls(tls);
    /// # Ok::<(), lockkit_core::Error>(())
    /// ```
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets the number of the database. Default 0.
    #[must_use]
    pub fn database(mut self, number: u32) -> Self {
        self.login.database = number.into();
        self
    }

    /// Sets the prefix of all lock keys. Default: empty. Clients that share locks must use the same prefix.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets how lock names become keys.
    #[must_use]
    pub fn names(mut self, names: Names) -> Self {
        self.names = names;
        self
    }

    /// Sets the order in which waiters are granted the lock. Default: [`Queue::Fifo`]; with [`Names::Raw`], where other
    /// libraries poll, [`Queue::None`].
    #[must_use]
    pub fn queue(mut self, queue: Queue) -> Self {
        self.queue = Some(queue);
        self
    }

    pub(crate) fn queue_in_use(&self) -> Queue {
        self.queue.unwrap_or(match self.names {
            Names::Encoded => Queue::Fifo,
            Names::Raw => Queue::None,
        })
    }

    /// Sets how many replicas must acknowledge grants and renewals before they count. A grant that fewer acknowledge is
    /// refused. After a renewal that fewer acknowledge, the hold still ends at its earlier deadline. The cost is a
    /// second round trip and the replicas' acknowledgement for each grant, and the acknowledgement for each renewal. A
    /// replica that has not acknowledged may still be promoted, and does not know the lock. Only with the number of all
    /// replicas does no failover lose a hold; then one unreachable replica ends all holds. This assumes that the wall
    /// clocks of all servers agree: Redis replicates the end of a lease as a time of day, so a promoted replica whose
    /// clock is ahead ends it early by the difference. Default 0.
    #[must_use]
    pub fn min_replicas(mut self, count: u32) -> Self {
        self.min_replicas = (count > 0).then_some(count);
        self
    }

    /// Sets the time limit of one request. An acquire may make many requests; heartbeats of a short ttl have a shorter
    /// limit. Default 3 s; at least 10 ms, at most 60 s.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout.clamp(REQUEST_TIMEOUT_MIN, REQUEST_TIMEOUT_MAX);
        self
    }

    /// Sets how long a lock's token counter outlives its last use. Default 7 days; at least 1 s, at most 10 years.
    /// Without the counter, tokens still rise unless the server's clock is set back. Queues outlive their last use by the
    /// same time, but by at least two days: live waiters may need them. So does a counter whose last holder has not
    /// released the lock: it has the holder's metadata.
    #[must_use]
    pub fn counter_ttl(mut self, ttl: Duration) -> Self {
        self.counter_ttl = ttl.clamp(COUNTER_TTL_MIN, COUNTER_TTL_MAX);
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
            sentinel_login: self.sentinel_login.clone(),
            cluster_retries: CLUSTER_RETRIES,
        }
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Destructured in full: a new field does not compile until this decides whether it is secret.
        let Self {
            topology,
            login,
            sentinel_login,
            tls,
            prefix,
            names,
            queue: _,
            min_replicas,
            request_timeout,
            counter_ttl,
        } = self;
        f.debug_struct("RedisConfig")
            .field("topology", topology)
            .field("login", login)
            .field("sentinel_login", sentinel_login)
            .field("tls", tls)
            .field("prefix", prefix)
            .field("names", names)
            .field("queue", &self.queue_in_use())
            .field("min_replicas", min_replicas)
            .field("request_timeout", request_timeout)
            .field("counter_ttl", counter_ttl)
            .finish()
    }
}

/// Parses servers; there must be at least one.
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

/// Parses `HOST` or `HOST:PORT`.
fn parse_server(text: &str, default_port: u16) -> Result<Address> {
    match Host::parse(text) {
        Some(Host { name, port, .. }) => {
            Ok(Address::Tcp(name.trim_matches(['[', ']']).to_owned(), port.unwrap_or(default_port)))
        }
        // The error does not quote the text: it may contain a misplaced password.
        None => Err(invalid("a server is HOST or HOST:PORT")),
    }
}

pub(crate) fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidConfig, "configure Redis").with_message(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_host_and_port() {
        for server in ["", "h:port", "h:70000", "me:secret@h:1", "h/x"] {
            let error = RedisConfig::new([server]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{server}");
            assert!(!error.to_string().contains("secret"));
        }
        assert!(RedisConfig::new([""; 0]).is_err());
    }

    #[test]
    fn no_secret_is_printed() {
        let config = RedisConfig::sentinel(["h"], "main").unwrap().user("me", "hunter2");
        let config = config.sentinel_user("me", "hunter3");
        let shown = format!("{config:?}");
        assert!(shown.contains("***") && !shown.contains("hunter"), "{shown}");
    }

    #[test]
    fn durations_have_bounds() {
        let config = |one: Duration| RedisConfig::new(["h"]).unwrap().request_timeout(one).counter_ttl(one);
        let [least, most] = [Duration::ZERO, Duration::MAX].map(config);
        assert_eq!((least.request_timeout, most.request_timeout), (REQUEST_TIMEOUT_MIN, REQUEST_TIMEOUT_MAX));
        assert_eq!((least.counter_ttl, most.counter_ttl), (COUNTER_TTL_MIN, COUNTER_TTL_MAX));
    }
}
