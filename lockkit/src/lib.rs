//! Distributed locks: one API over real stores, with guards, a fencing token on every grant, and a loss signal.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
//! let client = lockkit::connect("memory:").await?; // or file:///var/lib/locks, etcd://10.0.0.1:2379
//! let lock = client.lock("orders/42")?; // a name; holds nothing, does no I/O
//!
//! let guard = lock.acquire().await?; // waits for its turn
//! write_row(42, "paid", guard.token()).await; // the store refuses a lower token than it has seen
//! guard.release().await?; // or drop it: the release is then sent in the background
//!
//! if let Some(guard) = lock.try_acquire().await? {
//!     let work = write_row(42, "shipped", guard.token());
//!     guard.run(work).await?; // stops the work when the lock is lost; what it returned too late is in the error
//! }
//! client.close().await?; // before the program ends: nothing is sent after that, and others would wait for the ttl
//! # Ok(()) }
//! # async fn write_row(_row: u64, _value: &str, _token: lockkit::FencingToken) {}
//! ```
//!
//! # Backends
//!
//! | URL | feature | what it needs |
//! |---|---|---|
//! | `memory:NAME` | always there | nothing; one process, in which all clients of one NAME (none: `memory:`) share a server |
//! | `etcd://h1:2379,h2:2379/prefix` | `etcd` | etcd 3.4 or later; `protoc` to build the client crate |
//! | `etcds://h1:2379/?ca=/etc/etcd/ca.pem` | `etcd`, `tls` | as `etcd`, with TLS; `&cert=FILE&key=FILE` for a client certificate |
//! | `zk://h1:2181,h2:2181/chroot` | `zk` | ZooKeeper 3.6 or later; the chroot must exist |
//! | `zks://h1:2281/?ca=/etc/zookeeper/ca.pem` | `zk`, `tls` | as `zk`, with TLS; `&cert=FILE&key=FILE` for a client certificate |
//! | `redis://host:6379/0` | `redis` | Redis 6 or later; several hosts: a master and its replicas |
//! | `redis+sentinel://s1,s2,s3/name` | `redis` | Sentinels that know the master by this name |
//! | `redis+cluster://h1,h2` | `redis` | a cluster |
//! | `redlock://h1,h2,h3` | `redis` | a majority of independent servers, after one `lockkit init`; `redlocks` with TLS |
//! | `redis+unix:///run/redis.sock` | `redis` | a server of this host |
//! | `rediss://host:6379/?ca=/etc/redis/ca.pem` | `redis`, `tls` | the same with TLS, also `rediss+sentinel`, `rediss+cluster` |
//! | `file:///path/of/a/folder` | `file` | nothing; several processes on one host |
//!
//! A test should have a `memory:NAME` of its own: a server counts time by the tokio clock of whoever asks it, so that
//! a paused clock that one test advances would end the locks of all others at the same server.
//!
//! No feature is on by default, and without one no client of any store is compiled. Every URL takes the options
//! `ttl` (how long others wait for a dead holder: `?ttl=10s`) and `label` (what they see beside its locks); the
//! others belong to the backend. A backend that is not in this list is passed to [`LockClient::builder`].
//!
//! # What a lock cannot promise
//!
//! A process can be paused after it has looked at its guard and before it writes; it then writes without the lock,
//! whatever the lock service does. Only the resource can refuse that write: send [`LockGuard::token`] along and have
//! it refuse every token that is lower than one it has seen, as [`Fence`] does.

#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

mod connect;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;

pub use lockkit_core::{
    BootInstant, ClientBuilder, ClientOptions, Clock, Error, ErrorKind, Fence, FencingToken, Lock,
    LockClient, LockGuard, LockName, Metadata, Owner, Result, RunError, Status, StatusWatch, TimeSource,
    backend, limits, memory,
};
#[cfg(feature = "etcd")]
pub use lockkit_etcd as etcd;
#[cfg(feature = "file")]
pub use lockkit_file as file;
#[cfg(feature = "redis")]
pub use lockkit_redis as redis;
#[cfg(feature = "zk")]
pub use lockkit_zk as zk;

pub use self::connect::{builder, connect, schemes};
