//! What a server says about itself in `INFO`.

/// The first major version with RESP3.
pub(crate) const VERSION_MIN: u32 = 6;

/// What a server says about itself in `INFO`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) version: String,
    /// Another one after each start.
    pub(crate) run_id: String,
    /// `noeviction` unless keys may vanish when memory is short.
    pub(crate) eviction: String,
    /// `0` where nothing is appended to a file.
    pub(crate) aof: String,
    /// How many replicas are connected.
    pub(crate) replicas: String,
}

impl Probe {
    pub(crate) fn parse(info: &str) -> Self {
        let field = |name: &str| {
            let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.unwrap_or_default().trim().to_owned()
        };
        Self {
            version: field("redis_version"),
            run_id: field("run_id"),
            eviction: field("maxmemory_policy"),
            aof: field("aof_enabled"),
            replicas: field("connected_slaves"),
        }
    }

    /// Whether the server is known to lack what is needed.
    pub(crate) fn is_too_old(&self) -> bool {
        let major = self.version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        major.is_some_and(|major| major < VERSION_MIN)
    }

    /// Whether a restart of the server is known to lose what it has acknowledged.
    pub(crate) fn forgets(&self) -> bool {
        self.aof == "0"
    }

    /// Whether the server is known to have a replica that may be promoted in its place.
    pub(crate) fn has_replicas(&self) -> bool {
        !matches!(&*self.replicas, "" | "0")
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
        for (version, is_too_old) in [("5.0.14", true), ("6.0.16", false), ("7.0.15", false), ("", false)] {
            let probe = Probe::parse(&format!("# Server\r\nredis_version:{version}\r\n"));
            assert_eq!(probe.is_too_old(), is_too_old, "{version}");
        }
    }

    #[test]
    fn a_server_says_whether_it_has_replicas() {
        assert!(Probe::parse("role:master\r\nconnected_slaves:2\r\n").has_replicas());
        assert!(!Probe::parse("role:master\r\nconnected_slaves:0\r\n").has_replicas());
        assert!(!Probe::parse("").has_replicas());
    }

    #[test]
    fn a_server_says_whether_keys_may_vanish() {
        assert!(Probe::parse("redis_version:7.0.15\r\nmaxmemory_policy:allkeys-lru\r\n").may_evict());
        assert!(!Probe::parse("maxmemory_policy:noeviction\r\n").may_evict());
        assert!(!Probe::parse("").may_evict());
    }
}
