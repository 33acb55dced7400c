//! Tests of the testbed: its servers, their clusters, and the proxies in front of them.
#![cfg(test)]

mod cluster;
mod etcd;
mod postgres;
mod process;
mod proxy;
mod proxy_etcd;
mod proxy_redis;
mod redis;
mod redis_nodes;
#[cfg(feature = "tls")]
mod redis_tls;
mod zookeeper;
