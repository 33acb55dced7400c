//! What a backend is and promises.

use std::time::Duration;

use crate::limits::TTL_MAX;

/// What a backend is and promises: shown in the guarantee table, checked by the conformance suite.
///
/// Made by [`new`](Self::new), which claims as little as possible; the fields are set to what the backend keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendInfo {
    /// The URL scheme, such as `etcd`.
    pub scheme: &'static str,
    /// Shortest ttl; a shorter one is raised to it.
    pub ttl_min: Duration,
    /// Longest ttl; a longer one is refused.
    pub ttl_max: Duration,
    /// How often a session is renewed.
    pub beat: BeatInterval,
    /// What ends a hold that is not renewed.
    pub lifetime: Lifetime,
    /// In which order waiters are served.
    pub queue: QueueKind,
    /// What the order of fencing tokens survives.
    pub token: TokenStrength,
    /// How soon a loss that the server knows of is noticed.
    pub loss: LossDetection,
    /// What a failover of the store can lose.
    pub failover: FailoverLoss,
}

impl BackendInfo {
    /// A backend that claims the least: any ttl up to [`TTL_MAX`], three heartbeats per ttl, no order of waiters,
    /// tokens that rise within a process, losses noticed by heartbeats, a failover that loses grants.
    pub fn new(scheme: &'static str, lifetime: Lifetime) -> Self {
        Self {
            scheme,
            ttl_min: Duration::ZERO,
            ttl_max: TTL_MAX,
            beat: BeatInterval::PerTtl(3),
            lifetime,
            queue: QueueKind::Unordered,
            token: TokenStrength::Process,
            loss: LossDetection::Beat,
            failover: FailoverLoss::Unreplicated,
        }
    }
}

/// How often a session is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BeatInterval {
    /// This many times per ttl; 3 unless the store needs more.
    PerTtl(u32),
    /// At a fixed interval, where there is no ttl.
    Every(Duration),
}

impl BeatInterval {
    /// Time between two beats of a session with this ttl.
    pub fn interval(self, ttl: Duration) -> Duration {
        match self {
            Self::PerTtl(beats) => ttl / beats.max(1),
            Self::Every(interval) => interval,
        }
    }
}

/// What ends a hold that is not renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lifetime {
    /// All holds of a client live and die with its session (an etcd lease, a ZooKeeper session). A client whose hold
    /// has passed its deadline abandons the session, so that dead holds do not keep their entries alive.
    Session,
    /// Every hold has a lifetime of its own (a Redis key with a ttl).
    Hold,
    /// A hold has no lifetime: it ends by release or with its process (a file lock).
    Process,
}

/// In which order waiters are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueKind {
    /// First come, first served, among waiters that stay alive.
    Fifo,
    /// In no particular order.
    Unordered,
}

/// What the order of fencing tokens survives, beyond the end of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenStrength {
    /// Everything within one data history of the store.
    History,
    /// Also the loss of the counters, as long as wall clocks agree better than the pause between two grants.
    ClockFloor,
    /// Nothing: the numbers start anew with the process.
    Process,
}

/// How soon a loss that the server knows of is noticed by the holder. (A hold that is merely not renewed ends at its
/// deadline on every backend, without I/O.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossDetection {
    /// A lost session is told at once, a single lost hold within one beat.
    SessionPushed,
    /// Within one beat.
    Beat,
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
