//! The stores, and the servers that are measured.

use std::path::Path;

use anyhow::{Context, Result};
use clap::ValueEnum;
use lockkit_testbed::{Etcd, Proxy, Redis, RedisMasters, ZooKeeper};
use serde::Serialize;
use tempfile::TempDir;

use crate::usage::{Usage, cpu_of};

/// A store with its way to lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// one etcd server
    Etcd,
    /// one ZooKeeper server
    Zk,
    /// one Redis server
    Redis,
    /// five independent Redis servers
    Redlock,
    /// one process
    Memory,
    /// lock files of one host
    File,
}

/// How many servers Redlock has.
const REDLOCK_NODES: usize = 5;

/// Faster, and what the others have: data that a crash of the machine loses.
const REDIS_OPTIONS: [&str; 2] = ["--appendonly", "no"];

/// The servers of a store, on this machine and with no other clients.
pub(crate) enum Server {
    Etcd(Etcd),
    Zk(ZooKeeper),
    Redis(Redis),
    Redlock(RedisMasters),
    Memory,
    File(TempDir),
}

impl Backend {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Etcd, Self::Zk, Self::Redis, Self::Redlock, Self::Memory, Self::File];

    /// Returns its name, which is also the scheme of its URLs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Zk => "zk",
            Self::Redis => "redis",
            Self::Redlock => "redlock",
            Self::Memory => "memory",
            Self::File => "file",
        }
    }

    /// Whether clients reach it over a network, so that a server can freeze.
    pub(crate) fn has_servers(self) -> bool {
        !matches!(self, Self::Memory | Self::File)
    }

    /// Whether processes can share it.
    pub(crate) fn is_shared(self) -> bool {
        self != Self::Memory
    }
}

/// Returns lockkit's URL of a store.
pub(crate) fn url(scheme: &str, servers: &[String]) -> String {
    match scheme {
        "memory" => "memory:bench".to_owned(),
        // Names of temporary folders need no escapes.
        _ => format!("{scheme}://{}", servers.join(",")),
    }
}

impl Server {
    pub(crate) fn start(backend: Backend) -> Result<Self> {
        let started = match backend {
            Backend::Etcd => Self::Etcd(Etcd::start()?),
            Backend::Zk => Self::Zk(ZooKeeper::start()?),
            Backend::Redis => Self::Redis(Redis::start_with(&REDIS_OPTIONS)?),
            Backend::Redlock => Self::Redlock(RedisMasters::start_with(REDLOCK_NODES, &REDIS_OPTIONS)?),
            Backend::Memory => Self::Memory,
            Backend::File => Self::File(folder()?),
        };
        Ok(started)
    }

    /// Returns address and port of each server, or the folder.
    pub(crate) fn addresses(&self) -> Vec<String> {
        match self {
            Self::Etcd(etcd) => vec![etcd.endpoint()],
            Self::Zk(zookeeper) => vec![zookeeper.endpoint()],
            Self::Redis(redis) => vec![redis.endpoint()],
            Self::Redlock(masters) => nodes(masters).map(Redis::endpoint).collect(),
            Self::Memory => Vec::new(),
            Self::File(folder) => vec![folder.path().display().to_string()],
        }
    }

    /// Returns a proxy in front of each server. Those of etcd understand its protocol.
    pub(crate) fn proxies(&self) -> Result<Vec<Proxy>> {
        let start = if matches!(self, Self::Etcd(_)) { Proxy::start_grpc } else { Proxy::start };
        self.addresses().into_iter().map(start).collect()
    }

    /// Freezes the servers: of five the majority.
    pub(crate) fn freeze(&self) -> Result<()> {
        match self {
            Self::Etcd(etcd) => etcd.pause(),
            Self::Zk(zookeeper) => zookeeper.pause(),
            Self::Redis(redis) => redis.pause(),
            Self::Redlock(masters) => {
                nodes(masters).take(masters.len() / 2 + 1).try_for_each(|node| node.pause())
            }
            Self::Memory | Self::File(_) => Ok(()),
        }
    }

    pub(crate) fn resume(&self) -> Result<()> {
        match self {
            Self::Etcd(etcd) => etcd.resume(),
            Self::Zk(zookeeper) => zookeeper.resume(),
            Self::Redis(redis) => redis.resume(),
            Self::Redlock(masters) => nodes(masters).try_for_each(|node| node.resume()),
            Self::Memory | Self::File(_) => Ok(()),
        }
    }

    /// Returns what the servers have used so far; nothing where there is no server.
    pub(crate) fn usage(&self) -> Result<Option<Usage>> {
        Ok(match self {
            Self::Etcd(etcd) => Some(etcd_usage(etcd)?),
            Self::Zk(zookeeper) => Some(zookeeper_usage(zookeeper)?),
            Self::Redis(redis) => Some(redis_usage(redis)?),
            Self::Redlock(masters) => {
                let each = nodes(masters).map(redis_usage).collect::<Result<Vec<_>>>()?;
                each.into_iter().reduce(Usage::plus)
            }
            Self::Memory | Self::File(_) => None,
        })
    }

    /// Returns the memory of the servers' data in bytes, if they report it.
    pub(crate) fn memory(&self) -> Result<Option<u64>> {
        match self {
            Self::Redis(redis) => redis_number(redis, "memory", "used_memory").map(Some),
            Self::Redlock(masters) => nodes(masters)
                .map(|node| redis_number(node, "memory", "used_memory"))
                .sum::<Result<_>>()
                .map(Some),
            _ => Ok(None),
        }
    }

    /// Returns version and durability, a line of the report each.
    pub(crate) fn conditions(&self) -> [(&'static str, String); 2] {
        let redis = |redis: &Redis, count: &str| {
            let version = info(redis, "server").ok().and_then(|info| field(&info, "redis_version"));
            (format!("{count}Redis {}", version.unwrap_or_default()), "no appended file, no snapshots")
        };
        let (server, durability) = match self {
            Self::Etcd(etcd) => {
                (format!("etcd {}", etcd_version(etcd)), "one member, data in memory (tmpfs)")
            }
            Self::Zk(zookeeper) => (
                format!(
                    "ZooKeeper {}; java with C1 only, serial collector",
                    zookeeper.version().unwrap_or_default()
                ),
                "one server, log in memory (tmpfs): a sync costs nothing, as with forceSync=no",
            ),
            Self::Redis(server) => redis(server, "one "),
            Self::Redlock(masters) => redis(masters.node(0), "five "),
            Self::Memory => ("none".to_owned(), "the process"),
            Self::File(_) => ("none".to_owned(), "a folder in memory (tmpfs)"),
        };
        [("server", server), ("durability", durability.to_owned())]
    }
}

/// A temporary folder, in memory where `/dev/shm` exists.
fn folder() -> Result<TempDir> {
    let in_memory = TempDir::with_prefix_in("lockkit-bench-", Path::new("/dev/shm"));
    Ok(in_memory.or_else(|_| TempDir::with_prefix("lockkit-bench-"))?)
}

fn nodes(masters: &RedisMasters) -> impl Iterator<Item = &Redis> {
    (0..masters.len()).map(|number| masters.node(number))
}

fn etcd_usage(etcd: &Etcd) -> Result<Usage> {
    let metrics = etcd.metrics()?;
    Ok(Usage {
        cpu_us: cpu_of(etcd.pid().context("etcd is not running")?)?,
        requests: Some(metrics.sum("grpc_server_msg_received_total", &[])),
        commands: Some(metrics.proposals()),
        bytes_in: Some(metrics.sum("etcd_network_client_grpc_received_bytes_total", &[])),
        bytes_out: Some(metrics.sum("etcd_network_client_grpc_sent_bytes_total", &[])),
    })
}

fn etcd_version(etcd: &Etcd) -> String {
    let program = lockkit_testbed::find_program("etcd", "etcd-server");
    let output =
        program.ok().and_then(|etcd| std::process::Command::new(etcd).arg("--version").output().ok());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let version = text.lines().find_map(|line| line.strip_prefix("etcd Version: "));
    version.map_or_else(|| format!("at {}", etcd.endpoint()), str::to_owned)
}

fn zookeeper_usage(zookeeper: &ZooKeeper) -> Result<Usage> {
    let metrics = zookeeper.metrics()?;
    Ok(Usage {
        cpu_us: cpu_of(zookeeper.pid().context("ZooKeeper is not running")?)?,
        requests: Some(metrics.packets_received()),
        commands: None,
        bytes_in: Some(metrics.sum("zk_bytes_received_count", &[])),
        bytes_out: None,
    })
}

fn redis_usage(redis: &Redis) -> Result<Usage> {
    let stats = info(redis, "stats")?;
    let count = |name| field(&stats, name).and_then(|value| value.parse().ok());
    let commands = info(redis, "commandstats")?;
    // Without those that ask for these numbers.
    let calls = commands.lines().filter(|line| !line.starts_with("cmdstat_info:"));
    let calls = calls.filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok());
    Ok(Usage {
        cpu_us: cpu_of(redis.pid().context("Redis is not running")?)?,
        requests: count("total_reads_processed"),
        commands: Some(calls.sum()),
        bytes_in: count("total_net_input_bytes"),
        bytes_out: count("total_net_output_bytes"),
    })
}

fn redis_number(redis: &Redis, section: &str, name: &str) -> Result<u64> {
    let value = field(&info(redis, section)?, name).and_then(|value| value.parse().ok());
    value.with_context(|| format!("Redis reports no {name}"))
}

fn info(redis: &Redis, section: &str) -> Result<String> {
    Ok(redis.cli(&["INFO", section])?.text().to_owned())
}

fn field(info: &str, name: &str) -> Option<String> {
    info.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
}
