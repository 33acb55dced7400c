//! Tests of the testbed: its servers, their clusters, and the proxies in front of them.
#![cfg(test)]

mod cluster;
mod etcd;
mod postgres;
mod proxy;
mod proxy_etcd;
mod proxy_redis;
mod redis;
mod redis_nodes;
#[cfg(feature = "tls")]
mod redis_tls;
mod zookeeper;

use std::time::{Duration, Instant};

/// Generous bound against hangs.
const HANG: Duration = Duration::from_secs(60);

#[track_caller]
fn until(condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < HANG, "the condition was never met");
        std::thread::sleep(Duration::from_millis(5));
    }
}
