//! Redis as a [lockkit](https://docs.rs/lockkit) backend.
//!
//! A lock is a plain string key with a ttl, as `SET key value NX PX ttl` makes it. So this library and all others that
//! lock like that exclude each other. A queue is kept next to the key: the release grants the lock to the next waiter
//! in the same script and notifies only its client. Other libraries poll, or wake all waiters at once.
//!
//! * **Exclusion** holds while clock rates differ by less than one per cent, the server's wall clock takes no step, and
//!   no failover loses a grant: replication is asynchronous. [`RedisConfig::min_replicas`] makes that less likely. A
//!   resource that checks **fencing tokens** is safe in any case.
//! * **First come, first served** among clients of this library. A waiter whose client died is skipped.
//! * **Tokens** rise even when the token counters are lost, provided that the clocks of the old and the new server
//!   differ by less than the pause between two grants: token = max(counter + 1, server time in microseconds).
//! * When a client dies, its lock is granted to the next waiter at the end of its ttl. When a waiting client dies, it
//!   may still be granted the lock once, for one more ttl.
//!
//! Besides locks:
//!
//! * **Evidence**: a script of your own writes only while the grant holds its lock, see [`GUARD`].
//! * **Elections**: observers read the leader at the master, and learn of changes by a message on a channel of the lock.
//!   Candidates publish there; locks without a proposal cost nothing more. A leader that dies is noticed when its ttl
//!   has ended.
//! * **Records** of a lock, which only its holder writes. They expire when their writer has asked for it. A server at
//!   its memory limit refuses them.
//! * **Pins**: the lock's key has a longer ttl, and heartbeats ask for the rest of it.
//!
//! Operators inspect, list and break locks without a session. The holder of a broken lock is notified at once, and the
//! next waiter is granted the lock, as after a release. Locks with raw names cannot be listed.
//!
//! A failover may lose evidence, elections, records, pins and breaks like a grant. [`RedisConfig::min_replicas`] makes
//! that less likely, as for grants; a break, like a release, does not wait for replicas.
//!
//! Needs Redis 6 or later. [`RedisConfig::user`] lists the keys, channels and commands that a user with limited rights
//! needs.

#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod admin;
mod backend;
mod broken;
mod config;
mod error;
mod evidence;
#[cfg(feature = "_fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod keys;
mod reconnect;
mod redlock;
mod server;
mod server_info;
mod session;
#[cfg(test)]
mod tests;
mod tls;
mod topology;
mod url;
mod wire;

#[doc(inline)]
pub use lockkit_core::backend::tls::Tls;

pub use self::{
    admin::INSPECTED_WAITERS_MAX,
    backend::RedisBackend,
    config::{Queue, RedisConfig},
    evidence::GUARD,
    keys::Names,
    redlock::{RedlockBackend, RedlockConfig, SCHEME_REDLOCK, SCHEME_REDLOCK_TLS, SetUp, init},
};

/// The URL scheme of one server, or of a master and its replicas.
pub const SCHEME: &str = "redis";

/// The URL scheme of one server on this machine, reached by its Unix socket.
pub const SCHEME_UNIX: &str = "redis+unix";

/// The URL scheme of a master that Sentinels name.
pub const SCHEME_SENTINEL: &str = "redis+sentinel";

/// The URL scheme of a cluster.
pub const SCHEME_CLUSTER: &str = "redis+cluster";

/// The URL schemes of this backend with TLS.
pub const SCHEMES_TLS: [&str; 3] = ["rediss", "rediss+sentinel", "rediss+cluster"];

/// All URL schemes of this backend.
pub const SCHEMES: [&str; 7] =
    [SCHEME, SCHEME_UNIX, SCHEME_SENTINEL, SCHEME_CLUSTER, SCHEMES_TLS[0], SCHEMES_TLS[1], SCHEMES_TLS[2]];
