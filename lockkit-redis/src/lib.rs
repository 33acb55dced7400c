//! Redis as a [lockkit](https://docs.rs/lockkit) backend.
//!
//! A lock is a plain string key with a ttl, as `SET key value NX PX ttl` makes it, so that this library and all others
//! that lock like that exclude each other. Beside it lies a queue: the release hands the lock to the next client in the
//! same script and wakes only that one, where other libraries poll, or wake all waiters at once.
//!
//! * **Exclusion** while clock rates differ by less than one per cent, the server's wall clock takes no step, and no
//!   failover loses a grant: replication is asynchronous. [`RedisConfig::min_replicas`] makes that less likely; a
//!   resource that checks **fencing tokens** is safe in any case.
//! * **First come, first served** among clients of this library; a client that dies in the queue is skipped.
//! * **Tokens** rise also when the counters are lost, as long as the clocks of the old and the new server differ by less
//!   than the pause between two grants: token = max(counter + 1, server time in microseconds).
//! * A client that dies is succeeded at the end of its ttl; one that dies in the queue may be granted the lock once more,
//!   for another ttl.
//!
//! Needs Redis 6 or later. Keys, channels and commands that a user with limited rights needs: see [`RedisConfig::user`].

#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

mod acquire;
mod admin;
mod backend;
mod claims;
mod config;
mod error;
mod expiry;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod keys;
mod node;
mod probe;
mod redlock;
mod renew;
mod replicas;
mod scripts;
mod sentinel;
mod server;
mod session;
mod slots;
mod tls;
mod topology;
mod url;

#[doc(inline)]
pub use lockkit_core::backend::tls::Tls;

pub use self::{
    admin::INSPECTED_WAITERS_MAX,
    backend::RedisBackend,
    config::{Queue, RedisConfig},
    keys::Names,
    redlock::{RedlockBackend, RedlockConfig, SCHEME_REDLOCK, SCHEME_REDLOCK_TLS, SetUp, init},
};

/// The URL scheme of one server, or of a master and its replicas.
pub const SCHEME: &str = "redis";

/// The URL scheme of one server of this machine, by its Unix socket.
pub const SCHEME_UNIX: &str = "redis+unix";

/// The URL scheme of servers of which Sentinels say who is the master.
pub const SCHEME_SENTINEL: &str = "redis+sentinel";

/// The URL scheme of a cluster.
pub const SCHEME_CLUSTER: &str = "redis+cluster";

/// The URL schemes of this backend with TLS.
pub const SCHEMES_TLS: [&str; 3] = ["rediss", "rediss+sentinel", "rediss+cluster"];

/// All URL schemes of this backend.
pub const SCHEMES: [&str; 7] =
    [SCHEME, SCHEME_UNIX, SCHEME_SENTINEL, SCHEME_CLUSTER, SCHEMES_TLS[0], SCHEMES_TLS[1], SCHEMES_TLS[2]];
