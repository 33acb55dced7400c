//! Real servers for tests, demos and benchmarks.
//!
//! Each server has its own loopback address, free ports and temporary folder. It ends when the value that started it is
//! dropped, and also when the process that holds the value is killed.
//!
//! A [`Proxy`] in front of a server delays, holds, drops and resets its connections; a [`SmallDisk`] fills up.
//!
//! Linux only: it uses all of 127.0.0.0/8, `/bin/sh` and POSIX signals. It depends on no client crate, so that every
//! other crate may use it.
//!
//! ```no_run
//! let etcd = lockkit_testbed::Etcd::start()?;
//! println!("{} is up, {} proposals so far", etcd.url(), etcd.metrics()?.proposals());
//! # anyhow::Ok(())
//! ```

mod address;
mod blocking;
#[cfg(feature = "tls")]
mod certificates;
mod cluster;
#[cfg(feature = "conformance")]
mod conformance;
mod daemon;
mod disk;
mod etcd;
#[cfg(feature = "tls")]
mod handshake;
mod metrics;
mod pool;
mod postgres;
mod proxy;
mod redis;
mod resp;
mod socket_owner;
mod started_once;
mod supervised;
mod sync;
mod wait;
mod zookeeper;

#[cfg(feature = "tls")]
pub use self::certificates::{Certificates, Identity, ServerCertificate};
#[cfg(feature = "conformance")]
pub use self::conformance::{ClusterStore, LINK_HOOKS, Members, ProxyLink, SERVER_HOOKS};
pub use self::{
    blocking::Blocking,
    cluster::{Cluster, Member, Server},
    daemon::{Daemon, find_program},
    disk::SmallDisk,
    etcd::{Etcd, EtcdCluster},
    metrics::Metrics,
    pool::{Pool, Taken},
    postgres::Postgres,
    proxy::{Counts, Direction, Flow, Message, Proxy},
    redis::{
        BehindProxies, Migration, OldRedis, Redis, RedisCluster, RedisMasters, RedisReplicas, RedisSentinels,
        ServerClock,
    },
    resp::{Pending, Reply},
    started_once::StartedOnce,
    wait::{HANG, eventually, until},
    zookeeper::{Connection, PeerRoute, ZooKeeper, ZooKeeperEnsemble, ZooKeeperOptions},
};
