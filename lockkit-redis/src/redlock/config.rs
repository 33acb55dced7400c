//! Configuration of a set of nodes.

use std::{collections::HashSet, time::Duration};

use lockkit_core::{Error, ErrorKind, Result, backend::BackendUrl, limits::TTL_MAX};

use super::{hints::Hints, nodes::Nodes};
use crate::{RedisConfig, keys::Layout, topology::Topology};

/// The URL scheme of several independent servers.
pub const SCHEME_REDLOCK: &str = "redlock";

/// The URL scheme of several independent servers with TLS.
pub const SCHEME_REDLOCK_TLS: &str = "redlocks";

/// Two nodes tolerate no failure. More than nine cost more than they add.
const NODES_MIN: usize = 3;
const NODES_MAX: usize = 9;

/// The longest ttl that clients may request, unless configured otherwise. A node that has lost its data stays out this
/// long.
const MAX_TTL_DEFAULT: Duration = Duration::from_secs(60);

/// A shorter maximum would leave no room for any ttl.
const MAX_TTL_MIN: Duration = Duration::from_secs(1);

/// Configuration of a set of nodes: independent Redis servers, of which a majority grants a lock.
///
/// It must name all nodes that were set up together by [`init`](super::init). Clients that name another set, or only a
/// part of this one, are refused. With an access control list (ACL), the user needs at every node
///
/// ```text
/// ACL SETUSER app on >PASSWORD ~* &lockkit:released:* +evalsha +eval +subscribe +unsubscribe +publish +pubsub|numsub +info
///     +hello +select +time +getrange +exists +get +set +del +pexpire +hset +hsetnx +hget +hmget +hdel
/// ```
///
/// Redis 6.0 has no channel permissions: omit `&lockkit:released:*` there. With a prefix, `~PREFIX*`,
/// `~lockkit:{PREFIX*` and `~lockkit:redlock` suffice instead of `~*`; with braces in the prefix or in raw names,
/// `~lockkit::PREFIX*` is needed, too. Without `+info`, no warning is logged for nodes that may lose their data. Without
/// `+subscribe`, `+unsubscribe` and `+publish`, waiters poll, and a holder learns only by its next heartbeat that it was
/// broken. Without
/// `+pubsub|numsub`, a release notifies all waiters instead of a few. An operator also needs `+pttl` to see how long a
/// lock remains, and `+scan` to list locks.
///
/// ```
/// use std::time::Duration;
///
/// use lockkit_redis::{RedisConfig, RedlockConfig};
///
/// let nodes = RedisConfig::new(["10.0.0.1", "10.0.1.1", "10.0.2.1"])?.password("secret");
/// let config = RedlockConfig::new(nodes)?.max_ttl(Duration::from_secs(30));
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<(), lockkit_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RedlockConfig {
    redis: RedisConfig,
    pub(super) max_ttl: Duration,
}

impl RedlockConfig {
    /// Uses each server of a [`RedisConfig::new`] as a node, with its login, TLS, database, prefix, names, request
    /// timeout and counter ttl. There is no queue, and replicas of nodes are not used.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` unless there are 3, 5, 7 or 9 different nodes; for Sentinels and clusters; with
    /// [`min_replicas`](RedisConfig::min_replicas).
    pub fn new(nodes: RedisConfig) -> Result<Self> {
        let Topology::Replicas(addresses) = nodes.connector().topology else {
            return Err(invalid("Redlock needs several independent servers"));
        };
        let (count, different) = (addresses.len(), addresses.iter().collect::<HashSet<_>>().len());
        if !(NODES_MIN..=NODES_MAX).contains(&count) || count.is_multiple_of(2) {
            return Err(invalid(format!(
                "Redlock needs an odd number of nodes from {NODES_MIN} to {NODES_MAX}, not {count}"
            )));
        }
        if different < count {
            return Err(invalid("the same server is named twice: every node must be another one"));
        }
        if nodes.min_replicas.is_some() {
            return Err(invalid("the nodes of Redlock have no replicas: leave min_replicas out"));
        }
        Ok(Self { redis: nodes, max_ttl: MAX_TTL_DEFAULT })
    }

    /// Reads the configuration from
    ///
    /// ```text
    /// redlock://[[USER]:PASSWORD@]HOST[:PORT],HOST[:PORT],HOST[:PORT]...[/DATABASE]
    /// ```
    ///
    /// with the options `max_ttl`, `prefix`, `names=raw`, `request_timeout` and `counter_ttl`. With TLS the scheme is
    /// `redlocks`, with the options `ca`, `cert` and `key`, see [`Tls`](crate::Tls).
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new) and [`RedisConfig::from_url`].
    pub fn from_url(mut url: BackendUrl) -> Result<Self> {
        let is_tls = match url.scheme() {
            SCHEME_REDLOCK => false,
            SCHEME_REDLOCK_TLS => true,
            other => return Err(invalid(format!("{other:?} is not a scheme of Redlock"))),
        };
        if url.take("queue").is_some() {
            return Err(invalid("Redlock has no queue"));
        }
        let max_ttl = url.take_duration("max_ttl")?;
        let config = Self::new(RedisConfig::of_nodes(url, is_tls)?)?;
        Ok(max_ttl.into_iter().fold(config, Self::max_ttl))
    }

    /// Sets the longest ttl that a client may request. It is fixed by [`init`](super::init) and the same for all
    /// clients of the set. A node that has lost its data does not count for this long. Default 60 s; at least 1 s, at
    /// most a day.
    #[must_use]
    pub fn max_ttl(mut self, ttl: Duration) -> Self {
        self.max_ttl = ttl.clamp(MAX_TTL_MIN, TTL_MAX);
        self
    }

    pub(super) fn layout(&self) -> Layout {
        self.redis.layout()
    }

    pub(super) fn request_timeout(&self) -> Duration {
        self.redis.request_timeout
    }

    pub(super) fn counter_ttl(&self) -> Duration {
        self.redis.counter_ttl
    }

    /// Starts connecting to the nodes, without a session; `limit` is the time limit of one request.
    pub(super) fn connect(&self, limit: Duration) -> Nodes {
        self.connect_with(limit, Hints::default())
    }

    /// Starts connecting to the nodes, with these subscriptions.
    pub(super) fn connect_with(&self, limit: Duration, hints: Hints) -> Nodes {
        Nodes::connect(&self.redis.connector(), limit, hints)
    }
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidConfig, "configure Redlock").with_message(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(url: &str) -> Result<RedlockConfig> {
        RedlockConfig::from_url(BackendUrl::parse(url)?)
    }

    #[test]
    fn url_sets_all_options() {
        let config =
            from("redlock://me:hunter2@h1,h2:1,h3/2?max_ttl=30s&prefix=app:&names=raw&request_timeout=50ms")
                .unwrap();
        assert_eq!(
            (config.max_ttl, config.request_timeout()),
            (Duration::from_secs(30), Duration::from_millis(50))
        );
        let text = format!("{config:?}");
        assert!(text.contains("app:") && !text.contains("hunter2"), "{text}");
        assert_eq!(from("redlock://h1,h2,h3?max_ttl=99d").unwrap().max_ttl, TTL_MAX);
    }

    /// No ttl would be allowed.
    #[test]
    fn longest_ttl_is_not_below_the_shortest() {
        assert_eq!(from("redlock://h1,h2,h3?max_ttl=999ms").unwrap().max_ttl, MAX_TTL_MIN);
    }

    #[test]
    fn nodes_are_odd_in_number_and_different() {
        for nodes in ["a", "a,b", "a,b,c,d", "a,b,c,d,e,f,g,h,i,j,k", "a,b,a", "a,b,b:6379"] {
            assert_eq!(
                from(&format!("redlock://{nodes}")).unwrap_err().kind(),
                ErrorKind::InvalidConfig,
                "{nodes}"
            );
        }
        for nodes in ["a,b,c", "a,b,c,d,e", "a:1,a:2,a:3", "a,b,c,d,e,f,g,h,i"] {
            from(&format!("redlock://{nodes}")).unwrap();
        }
    }

    #[test]
    fn invalid_options_are_refused() {
        for url in [
            "redis://a,b,c",
            "redlock://a,b,c?queue=fifo",
            "redlock://a,b,c?min_replicas=1",
            "redlock://a,b,c?max_ttl=soon",
            "redlock://a,b,c?max_tll=1s",
            "redlock://a,b,c/x",
        ] {
            assert_eq!(from(url).unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
        }
        let sentinels = RedisConfig::sentinel(["a", "b", "c"], "main").unwrap();
        assert_eq!(RedlockConfig::new(sentinels).unwrap_err().kind(), ErrorKind::InvalidConfig);
        let cluster = RedisConfig::cluster(["a", "b", "c"]).unwrap();
        assert_eq!(RedlockConfig::new(cluster).unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
}
