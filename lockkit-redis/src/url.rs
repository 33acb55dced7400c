//! Parses a configuration from a URL.

use lockkit_core::{
    Result,
    backend::{BackendUrl, Host},
};

use crate::{
    Names, Queue, RedisConfig, SCHEME, SCHEME_CLUSTER, SCHEME_SENTINEL, SCHEME_UNIX, SCHEMES_TLS, Tls,
    config::invalid, tls, topology::Topology,
};

/// The host in the URL of a socket with a user: a standard URL with a user needs a host.
const HERE: &str = "localhost";

impl RedisConfig {
    /// Parses one of
    ///
    /// ```text
    /// redis://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][/DATABASE]
    /// redis+unix://[[USER]:PASSWORD@localhost]/PATH[?db=DATABASE]
    /// redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]/MASTER[?db=DATABASE]
    /// redis+cluster://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]
    /// ```
    ///
    /// with the options `prefix`, `names=raw`, `queue` (`fifo` or `none`), `min_replicas`, `request_timeout` and
    /// `counter_ttl`, each as the method of that name; with Sentinels also `sentinel_user`, and `sentinel_password` or
    /// `sentinel_password_file` (a password in the arguments of a program can be read by every user of the machine). A
    /// password without a user is that of the user `default`.
    /// With TLS the schemes begin with `rediss` (there is none for the socket), and take the files `ca`, `cert` and
    /// `key`, see [`Tls`].
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for another scheme, a user without a password, a database that is not a number, a certificate
    /// without its key, an unknown option, options of TLS without TLS; `Unsupported` for TLS without the feature `tls`.
    pub fn from_url(url: BackendUrl) -> Result<Self> {
        let is_tls = SCHEMES_TLS.contains(&url.scheme());
        let scheme =
            if is_tls { url.scheme().replacen("rediss", SCHEME, 1) } else { url.scheme().to_owned() };
        Self::from_parts(url, &scheme, is_tls)
    }

    /// Parses the servers of a URL with another scheme, which are independent of each other.
    pub(crate) fn of_nodes(url: BackendUrl, is_tls: bool) -> Result<Self> {
        Self::from_parts(url, SCHEME, is_tls)
    }

    fn from_parts(mut url: BackendUrl, scheme: &str, is_tls: bool) -> Result<Self> {
        if is_tls && !cfg!(feature = "tls") {
            return Err(tls::not_in_this_build());
        }
        let mut config = Self::of_servers(&mut url, scheme)?;
        if is_tls {
            config = config.tls(Tls::take_from(&mut url)?);
        }
        config = match (url.user(), url.password()) {
            (Some(user), Some(password)) => config.user(user, password),
            (None, Some(password)) => config.password(password),
            (None, None) => config,
            (Some(_), None) => {
                return Err(invalid(
                    "a user for Redis needs a password: USER:PASSWORD@HOST, or LOCKKIT_PASSWORD",
                ));
            }
        };
        config.take_options(url)
    }

    /// Parses scheme, servers and database.
    fn of_servers(url: &mut BackendUrl, scheme: &str) -> Result<Self> {
        let servers: Vec<String> = url.hosts().iter().map(Host::to_string).collect();
        let path = url.path().trim_matches('/').to_owned();
        match scheme {
            SCHEME => Ok(Self::new(servers)?.database(parse_number(&path, "database")?)),
            SCHEME_UNIX if !path.is_empty() && matches!(&*servers.concat(), "" | HERE) => {
                Ok(Self::unix(url.path()).database(take_database(url)?))
            }
            SCHEME_UNIX => Err(invalid("redis+unix:/// needs the path of a socket")),
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
        if matches!(self.topology, Topology::Sentinel(_)) {
            self = self.take_sentinel_login(&mut url)?;
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
}

impl RedisConfig {
    fn take_sentinel_login(self, url: &mut BackendUrl) -> Result<Self> {
        let mut take = |option: &str| url.take(&format!("sentinel_{option}"));
        match (take("user"), take("password"), take("password_file")) {
            (_, Some(_), Some(_)) => {
                Err(invalid("sentinel_password and sentinel_password_file are two passwords"))
            }
            (user, None, Some(file)) => Ok(self.sentinel_password_file(user, file)),
            (Some(user), Some(password), None) => Ok(self.sentinel_user(user, password)),
            (None, Some(password), None) => Ok(self.sentinel_password(password)),
            (None, None, None) => Ok(self),
            (Some(_), None, None) => {
                Err(invalid("sentinel_user needs a sentinel_password or a sentinel_password_file"))
            }
        }
    }
}

fn take_database(url: &mut BackendUrl) -> Result<u32> {
    parse_number(&url.take("db").unwrap_or_default(), "db")
}

/// Parses a number; 0 for an empty text.
fn parse_number(text: &str, what: &str) -> Result<u32> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| invalid(format!("{what} is not a number")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkit_core::{ErrorKind, LockName};

    use super::*;
    use crate::topology::{Address, Password, Sentinels};

    fn from(url: &str) -> Result<RedisConfig> {
        RedisConfig::from_url(BackendUrl::parse(url)?)
    }

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.to_owned(), port)
    }

    #[test]
    fn url_sets_every_option() {
        let config = from(
            "redis://me:s%40cret@h1:1/2?prefix=app:&names=raw&queue=none&min_replicas=1&request_timeout=500ms\
             &counter_ttl=1h",
        )
        .unwrap();
        assert_eq!(config.topology, Topology::Single(tcp("h1", 1)));
        assert_eq!(
            (config.login.user.as_deref(), config.login.password.clone()),
            (Some("me"), Some(Password::Text("s@cret".to_owned())))
        );
        assert_eq!(
            (config.login.database, config.queue_in_use(), config.min_replicas),
            (2, Queue::None, Some(1))
        );
        assert_eq!(config.request_timeout, Duration::from_millis(500));
        assert_eq!(config.counter_ttl, Duration::from_secs(3600));
        assert_eq!(config.layout().keys(&LockName::new("a/b").unwrap()).unwrap().lock(), "app:a/b");
    }

    /// Each grant would cost another round trip.
    #[test]
    fn no_replicas_are_not_waited_for() {
        assert_eq!(from("redis://h/?min_replicas=0").unwrap().min_replicas, None);
    }

    #[test]
    fn raw_names_queue_only_on_request() {
        for (url, queue) in [
            ("redis://h", Queue::Fifo),
            ("redis://h/?names=encoded&queue=none", Queue::None),
            ("redis://h/?names=raw", Queue::None),
            ("redis://h/?queue=fifo&names=raw", Queue::Fifo),
        ] {
            let config = from(url).unwrap();
            assert_eq!(config.queue_in_use(), queue, "{url}");
            assert!(format!("{config:?}").contains(&format!("queue: {queue:?}")), "{config:?}");
        }
    }

    #[test]
    fn several_servers_are_a_master_and_its_replicas() {
        let config = from("redis://:secret@h1:1,h2,[::1]:3").unwrap();
        assert_eq!(config.topology, Topology::Replicas(vec![tcp("h1", 1), tcp("h2", 6379), tcp("::1", 3)]));
        assert_eq!(
            (config.login.user, config.login.password),
            (None, Some(Password::Text("secret".to_owned())))
        );
    }

    #[test]
    fn socket_has_a_path() {
        let config = from("redis+unix:///run/redis%201.sock?db=3").unwrap();
        assert_eq!(config.topology, Topology::Single(Address::Unix("/run/redis 1.sock".into())));
        assert_eq!(config.login.database, 3);
        let config = from("redis+unix://me:secret@localhost/run/redis.sock").unwrap();
        assert_eq!(config.topology, Topology::Single(Address::Unix("/run/redis.sock".into())));
        assert_eq!(config.login.user.as_deref(), Some("me"));
    }

    #[test]
    fn scheme_selects_sentinels_or_cluster() {
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
    fn scheme_selects_tls_and_options_its_files() {
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
    fn mistakes_are_invalid_config() {
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
            "redis+sentinel://h/main?sentinel_user=me",
            "redis+sentinel://h/main?sentinel_password=secret&sentinel_password_file=/run/secret",
            "redis://h/?sentinel_password_file=/run/secret",
            "redis://h/?sentinel_password=secret",
            "redis+cluster://h/2",
            "redis+cluster:///",
            "redis://h/?ca=/ca.pem",
            "redis+ssh://h",
        ] {
            assert_eq!(from(url).unwrap_err().kind(), ErrorKind::InvalidConfig, "{url}");
        }
    }
}
