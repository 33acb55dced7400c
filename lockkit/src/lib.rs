//! Distributed locks: one API over real stores, with guards, a fencing token on every grant, and a loss signal.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
//! let client = lockkit::connect("memory:").await?; // or file:///var/lib/locks, etcd://10.0.0.1:2379
//! let lock = client.lock("orders/42")?; // no I/O yet
//!
//! let guard = lock.acquire().await?; // waits
//! write_row(42, "paid", guard.token()).await; // the store refuses a lower token than the highest it has seen
//! guard.release().await?; // or drop it: the release is then sent in the background
//!
//! if let Some(guard) = lock.try_acquire().await? {
//!     let work = write_row(42, "shipped", guard.token());
//!     guard.run(work).await?; // stops the work when the lock is lost
//! }
//! client.close().await?; // sends what is pending; without it, others wait for the ttl
//! # Ok(()) }
//! # async fn write_row(_row: u64, _value: &str, _token: lockkit::FencingToken) {}
//! ```
//!
//! # Backends
//!
//! | URL | feature | requires |
//! |---|---|---|
//! | `memory:NAME` | always there | nothing; all clients of one NAME in one process share a server, also those of `memory:` without a name |
//! | `etcd://h1:2379,h2:2379/prefix` | `etcd` | etcd 3.4 or later |
//! | `etcds://h1:2379/?ca=/etc/etcd/ca.pem` | `etcd`, `tls` | as `etcd`, with TLS; `&cert=FILE&key=FILE` for a client certificate |
//! | `zk://h1:2181,h2:2181/chroot` | `zk` | ZooKeeper 3.6 or later; the chroot must exist |
//! | `zks://h1:2281/?ca=/etc/zookeeper/ca.pem` | `zk`, `tls` | as `zk`, with TLS; `&cert=FILE&key=FILE` for a client certificate |
//! | `redis://host:6379/0` | `redis` | Redis 6 or later; several hosts: a master and its replicas |
//! | `redis+sentinel://s1,s2,s3/name` | `redis` | Sentinels that know the master by this name |
//! | `redis+cluster://h1,h2` | `redis` | a cluster |
//! | `redlock://h1,h2,h3` | `redis` | 3, 5, 7 or 9 independent servers, set up once by `lockkit init`; `redlocks` with TLS |
//! | `redis+unix:///run/redis.sock` | `redis` | a server on this host |
//! | `rediss://host:6379/?ca=/etc/redis/ca.pem` | `redis`, `tls` | Redis with TLS; also `rediss+sentinel`, `rediss+cluster`, not the socket |
//! | `file:///path/of/a/folder` | `file` | nothing; several processes on one host |
//!
//! Give each test a `memory:NAME` of its own. A server reads the tokio clock of its callers, so a test that advances a
//! paused clock would end the locks of all other tests at the same server. With the feature `testing`,
//! [`memory::MemoryServer`] has faults for tests of your application: lost replies, ended sessions, a frozen server.
//!
//! No feature is on by default. Without a feature, no client of any store is compiled. Every URL takes the options `ttl` (how
//! long others wait for a dead holder: `?ttl=10s`), `connect_timeout` (how long to wait for a store that starts later) and
//! `label` (shown to others with its locks). The other options depend on the backend. Pass a backend that is not in this
//! list to [`LockClient::builder`].
//!
//! # Built on the lock
//!
//! * [`LockClient::election`]: one of several candidates leads, and everybody can see who.
//! * [`LockClient::once_per`]: work that begins at most once per period, over all processes.
//! * [`Lock::hold_at_least`]: nobody else gets the lock for a minimum time, even if its holder dies.
//! * [`LockClient::lock_all`]: several locks all or nothing, in one order for all callers, so that they never wait for
//!   each other in a circle.
//! * [`LockGuard::evidence`]: what a transaction in the same store can compare to refuse the writes of former holders.
//! * [`blocking`]: locks and sets without async code.
//!
//! [`Powers`](backend::Powers) lists what a backend may lack; it then returns `Unsupported`.
//!
//! # Watching it at work
//!
//! * With the feature `metrics` every client emits [`metrics`]: durations, losses by reason, margins, waiters.
//! * What it does is in spans and events of `tracing`, always: [logs and spans](lockkit_core#logs-and-spans) has the table.
//!   A lost lock is one warning with its name, token and reason.
//! * [`LockClient::status`] is the state of the session, and [`LockClient::inspect`] shows who holds a lock and who waits.
//!
//! # What a lock cannot promise
//!
//! A process can be paused after it has looked at its guard and before it writes. It then writes without the lock,
//! whatever the lock service does. Only the resource can refuse that write: send [`LockGuard::token`] along, and let the
//! resource refuse every token lower than the highest it has seen, as [`Fence`] does.

#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod blocking;
#[cfg(doctest)]
#[doc = include_str!("../../docs/built-on-locks.md")]
mod built_on_locks {}
mod connect;
#[cfg(feature = "_fuzzing")]
#[doc(hidden)]
pub mod fuzzing;

pub use lockkit_core::{
    BootInstant, ClientBuilder, ClientOptions, Clock, Election, Error, ErrorKind, Fence, FencingToken,
    Leader, Leadership, Listing, Lock, LockAll, LockClient, LockGuard, LockName, Metadata, Observer, OncePer,
    Owner, Proposal, Result, RunError, SetGuard, Status, StatusWatch, Turn, backend, limits, memory, metrics,
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
