//! The properties of a backend.

use std::time::Duration;

use super::Powers;
use crate::limits::TTL_MAX;

/// The properties of a backend, shown in the guarantee table.
///
/// [`new`](Self::new) claims the least; set each field to what the backend guarantees. The fields are of three kinds:
///
/// * The client works by `ttl_min`, `ttl_max`, `heartbeat` and `lifetime`; `scheme` labels its logs and metrics.
/// * `powers` are what the client offers besides locks.
/// * `queue`, `token`, `loss` and `failover` are claims about the store, which the client does not read. The conformance
///   suite selects cases and bounds by `queue`, `token` and `loss`.
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
    /// Claim: the order in which waiters are granted.
    pub queue: QueueKind,
    /// Claim: what the order of fencing tokens survives.
    pub token: TokenStrength,
    /// Claim: how soon the holder learns of a loss at the server.
    pub loss: LossDetection,
    /// Claim: what a failover of the store can lose.
    pub failover: FailoverLoss,
    /// What the sessions can do besides locking.
    pub powers: Powers,
}

impl BackendInfo {
    /// Returns the properties of a backend that claims the least: any ttl up to [`TTL_MAX`], three heartbeats per ttl,
    /// no order of waiters, tokens that rise within a process, losses found by heartbeats, a failover that loses
    /// grants, no powers.
    pub fn new(scheme: &'static str, lifetime: Lifetime) -> Self {
        Self {
            scheme,
            ttl_min: Duration::ZERO,
            ttl_max: TTL_MAX,
            heartbeat: HeartbeatInterval::PerTtl(3),
            lifetime,
            queue: QueueKind::Unordered,
            token: TokenStrength::Process,
            loss: LossDetection::Heartbeat,
            failover: FailoverLoss::Unreplicated,
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

/// The order in which waiters are granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueKind {
    /// First come, first served, among the waiters that stay alive.
    Fifo,
    /// In no particular order.
    Unordered,
}

/// What the order of fencing tokens survives, beyond the end of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenStrength {
    /// Everything within one history of the store's data.
    History,
    /// Also the loss of the counters, if wall clocks differ by less than the pause between two grants.
    ClockFloor,
    /// Nothing: the numbers restart with the process.
    Process,
}

/// How soon the holder learns of a loss at the server.
///
/// A hold that is merely not renewed ends at its deadline on every backend, without I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossDetection {
    /// The server reports a lost session at once; a heartbeat finds a single lost hold.
    SessionPushed,
    /// A heartbeat finds the loss.
    Heartbeat,
}

/// What a failover of the store can lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailoverLoss {
    /// Nothing that was acknowledged: the store replicates by consensus.
    Nothing,
    /// Grants that were not replicated yet.
    Unreplicated,
    /// There is no failover: one process or one host.
    NoFailover,
}
