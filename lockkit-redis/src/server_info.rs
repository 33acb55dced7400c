//! What a server reports about itself in `INFO`.

use tracing::{info, warn};

/// The first major version with RESP3.
pub(crate) const VERSION_MIN: u32 = 6;

/// What a server reports about itself in `INFO`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServerInfo {
    pub(crate) version: String,
    /// Changes with each start.
    pub(crate) run_id: String,
    /// `noeviction` unless the server may evict keys when memory is short.
    pub(crate) eviction_policy: String,
    /// `0` if the server writes no append-only file.
    pub(crate) aof: String,
    /// The number of connected replicas.
    pub(crate) replicas: String,
}

impl ServerInfo {
    pub(crate) fn parse(info: &str) -> Self {
        let field = |name: &str| {
            let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.unwrap_or_default().trim().to_owned()
        };
        Self {
            version: field("redis_version"),
            run_id: field("run_id"),
            eviction_policy: field("maxmemory_policy"),
            aof: field("aof_enabled"),
            replicas: field("connected_slaves"),
        }
    }

    /// Returns whether the server is known to be older than [`VERSION_MIN`].
    pub(crate) fn is_too_old(&self) -> bool {
        let major = self.version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        major.is_some_and(|major| major < VERSION_MIN)
    }

    /// Returns whether a restart of the server is known to lose acknowledged writes.
    pub(crate) fn loses_writes_on_restart(&self) -> bool {
        self.aof == "0"
    }

    /// Returns whether the server is known to have a replica that may be promoted.
    pub(crate) fn has_replicas(&self) -> bool {
        !matches!(&*self.replicas, "" | "0")
    }

    /// Returns whether the server may evict locks when memory is short.
    pub(crate) fn may_evict(&self) -> bool {
        !matches!(&*self.eviction_policy, "" | "noeviction")
    }

    /// Logs what may lose locks: a warning where nobody would want it, and advice (which `lockkit doctor` shows) where it is
    /// a choice.
    pub(crate) fn log_warnings(&self, waits_for_replicas: bool) {
        if self.may_evict() {
            warn!(
                policy = self.eviction_policy,
                "this Redis may evict keys, locks too, when memory is short: set maxmemory-policy to noeviction"
            );
        }
        if self.loses_writes_on_restart() {
            info!(
                target: "lockkit::advice",
                "this Redis writes no append-only file: a restart loses locks that are held; set appendonly yes, and appendfsync \
                 always to lose none"
            );
        }
        if self.has_replicas() && !waits_for_replicas {
            info!(
                target: "lockkit::advice",
                replicas = self.replicas,
                "this Redis has replicas, and locks do not wait for them: a replica that is promoted may lack locks that are \
                 held; set min_replicas in the URL"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkit_conformance::direct::LogText;

    use super::*;

    #[test]
    fn old_servers_are_found_by_their_version() {
        for (version, is_too_old) in [("5.0.14", true), ("6.0.16", false), ("7.0.15", false), ("", false)] {
            let info = ServerInfo::parse(&format!("# Server\r\nredis_version:{version}\r\n"));
            assert_eq!(info.is_too_old(), is_too_old, "{version}");
        }
    }

    #[test]
    fn replicas_are_found_by_their_number() {
        assert!(ServerInfo::parse("role:master\r\nconnected_slaves:2\r\n").has_replicas());
        assert!(!ServerInfo::parse("role:master\r\nconnected_slaves:0\r\n").has_replicas());
        assert!(!ServerInfo::parse("").has_replicas());
    }

    #[test]
    fn eviction_is_found_by_its_policy() {
        assert!(ServerInfo::parse("redis_version:7.0.15\r\nmaxmemory_policy:allkeys-lru\r\n").may_evict());
        assert!(!ServerInfo::parse("maxmemory_policy:noeviction\r\n").may_evict());
        assert!(!ServerInfo::parse("").may_evict());
    }

    /// Who has followed an advice is not given it again.
    #[test]
    fn each_advice_is_for_servers_that_need_it() {
        let advice = |info: &str, waits_for_replicas| {
            let log = LogText::of_this_thread(tracing::Level::INFO);
            ServerInfo::parse(info).log_warnings(waits_for_replicas);
            ["set appendonly yes", "set min_replicas"].map(|advice| log.text().contains(advice))
        };
        assert_eq!(advice("aof_enabled:0\r\nconnected_slaves:1\r\n", false), [true, true]);
        assert_eq!(advice("aof_enabled:1\r\nconnected_slaves:1\r\n", true), [false, false]);
        assert_eq!(advice("", false), [false, false], "nothing is known");
    }
}
