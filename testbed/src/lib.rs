//! Real servers for tests, demos and benchmarks: each on a loopback address and free ports of its own, in a
//! temporary folder, ended with the value that started it, even when its process is killed.
//!
//! A [`Proxy`] in front of a server does to its connections what networks do, a [`SmallDisk`] gets full.
//!
//! Linux only (it uses all of 127.0.0.0/8, `/bin/sh` and POSIX signals); knows no client crate, so that everything
//! may use it.
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
mod gateway;
#[cfg(feature = "tls")]
mod handshake;
mod metrics;
mod process;
mod proxy;
mod redis;
mod resp;
mod started_once;
mod supervised;
mod zookeeper;

#[cfg(feature = "tls")]
pub use self::certificates::{Certificates, Identity, ServerCertificate};
pub use self::{
    blocking::Blocking,
    cluster::EtcdCluster,
    disk::SmallDisk,
    etcd::Etcd,
    metrics::Metrics,
    proxy::{Counts, Direction, Flow, Message, Proxy},
    redis::{
        Migration, OldRedis, Redis, RedisCluster, RedisMasters, RedisReplicas, RedisSentinels, ServerClock,
    },
    resp::{Pending, Reply},
    started_once::StartedOnce,
    zookeeper::{Connection, ZooKeeper, ZooKeeperEnsemble, ZooKeeperOptions},
};
