//! What the client must know of a backend.

use std::time::Duration;

use super::Powers;
use crate::limits::TTL_MAX;

/// What the client must know of a backend.
///
/// The client works by `ttl_min`, `ttl_max`, `heartbeat` and `lifetime`; `scheme` labels its logs and metrics; `powers` are
/// what it offers besides locks. [`new`](Self::new) has no powers; set each field that differs. What the client does not
/// read is in [`Promises`](super::Promises).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendInfo {
    /// The URL scheme, such as `etcd`.
    pub scheme: &'static str,
    /// Shortest ttl; the client raises a shorter one to it.
    pub ttl_min: Duration,
    /// Longest ttl; the client refuses a longer one.
    pub ttl_max: Duration,
    /// How often the keeper renews a session.
    pub heartbeat: HeartbeatInterval,
    /// What ends a hold that is not renewed; decides how the keeper gives up holds and sessions.
    pub lifetime: Lifetime,
    /// What the sessions can do besides locking.
    pub powers: Powers,
}

impl BackendInfo {
    /// Returns the properties of a backend with any ttl up to [`TTL_MAX`], three heartbeats per ttl, and no powers.
    pub fn new(scheme: &'static str, lifetime: Lifetime) -> Self {
        Self {
            scheme,
            ttl_min: Duration::ZERO,
            ttl_max: TTL_MAX,
            heartbeat: HeartbeatInterval::PerTtl(3),
            lifetime,
            powers: Powers::default(),
        }
    }
}

/// How often a session is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeartbeatInterval {
    /// This many times per ttl; 3 unless the store needs more.
    PerTtl(u32),
    /// At a fixed interval, for backends without a ttl.
    Every(Duration),
}

impl HeartbeatInterval {
    /// Returns the time between two heartbeats of a session with this ttl.
    pub fn interval(self, ttl: Duration) -> Duration {
        match self {
            Self::PerTtl(heartbeats) => ttl / heartbeats.max(1),
            Self::Every(interval) => interval,
        }
    }
}

/// What ends a hold that is not renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lifetime {
    /// The session carries all holds of a client (an etcd lease, a ZooKeeper session). If one hold passes its
    /// deadline, the client abandons the session, because renewals would keep the entry of the dead hold alive.
    Session,
    /// Every hold has its own lifetime (a Redis key with a ttl).
    Hold,
    /// A hold has no lifetime; it ends by release or with its process (a file lock).
    Process,
}
