//! The harness of the conformance suite for Redis in any topology.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, reason = "part of test programs")]

mod bare;
mod own;
mod patient;
mod rights;
mod servers;

use std::{collections::BTreeMap, fmt::Debug, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use lockkit_conformance::{AnyBackend, Case, ClientLink, Entry, Harness, Hook, Sharing, Store, StoreFault};
use lockkit_core::{
    LockName,
    backend::{Backend, BackendInfo, BackendUrl, Evidence, Promises},
    limits::LOCK_NAME_BYTES_MAX,
};
use lockkit_redis::{RedisBackend, RedisConfig};
use lockkit_testbed::{Blocking, LINK_HOOKS, Proxy, ProxyLink, Redis, SERVER_HOOKS, StartedOnce};

/// Cases that run in parallel.
const PARALLEL: usize = 8;

/// The commands of clients that count as requests; those between servers and Sentinels do not.
const REQUESTS: [&str; 5] = ["evalsha", "eval", "subscribe", "ping", "wait"];

/// The prefix of the keys of all locks.
const PREFIX: &str = "suite:";

/// One or more servers that a client uses as one Redis.
pub trait Servers: Debug + Send + Sync + Sized + 'static {
    /// The name in reports.
    const NAME: &str;

    fn start() -> Result<Self>;

    /// Returns the endpoints of all servers that clients connect to.
    fn endpoints(&self) -> Vec<String>;

    /// Returns the URL of servers at these endpoints, with the [`PREFIX`]; more options may be appended.
    fn url_at(endpoints: &[String]) -> String;

    fn url_for_clients(&self) -> String {
        Self::url_at(&self.endpoints())
    }

    fn own_cases() -> Vec<Case>;

    /// Returns the node that has this key.
    fn node_of(&self, key: &str) -> Result<&Redis>;

    /// Returns every node that has keys now.
    fn masters(&self) -> Result<Vec<&Redis>>;

    fn freeze(&self) -> Result<()>;

    fn thaw(&self) -> Result<()>;

    /// Restarts every node that has keys now, with its data.
    fn restart(&mut self) -> Result<()>;

    /// Kills every node that has keys now.
    fn stop(&mut self) -> Result<()>;

    /// Starts the killed nodes again, with their data.
    fn start_again(&mut self) -> Result<()>;
}

#[derive(Debug)]
pub struct RedisHarness<S> {
    shared: StartedOnce<RunningStore<S>>,
}

impl<S: Servers> RedisHarness<S> {
    pub fn new() -> Self {
        Self { shared: StartedOnce::default() }
    }
}

impl<S: Servers> Harness for RedisHarness<S> {
    fn name(&self) -> String {
        S::NAME.to_owned()
    }

    fn info(&self) -> BackendInfo {
        RedisBackend::new(RedisConfig::new(["127.0.0.1"]).unwrap()).info()
    }

    fn promises(&self) -> Promises {
        RedisBackend::new(RedisConfig::new(["127.0.0.1"]).unwrap()).promises()
    }

    fn expiry_delay(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    fn hooks(&self) -> Vec<Hook> {
        [&SERVER_HOOKS[..], &LINK_HOOKS, &[Hook::Evidence, Hook::Watched]].concat()
    }

    fn parallel(&self) -> usize {
        PARALLEL
    }

    fn store(&self, sharing: Sharing) -> Result<Arc<dyn Store>> {
        if sharing == Sharing::Own {
            return Ok(Arc::new(RunningStore::<S>::start()?));
        }
        Ok(self.shared.get_or_start(RunningStore::start)?)
    }

    fn connect(&self, address: &str) -> Result<AnyBackend> {
        backend(address)
    }

    fn may_stay(&self, Entry { place, is_bounded, .. }: &Entry) -> Option<&'static str> {
        // Clients give all of them a ttl.
        if !is_bounded {
            return None;
        }
        if place.ends_with(":record") {
            return Some("kept as long as its writer has asked");
        }
        place.ends_with(":fence").then_some("no later token may be below one that was granted")
    }

    /// Its counter and its record.
    fn left_per_lock(&self) -> usize {
        2
    }

    fn own_cases(&self) -> Vec<Case> {
        S::own_cases()
    }
}

fn backend(url: &str) -> Result<AnyBackend> {
    Ok(AnyBackend::new(RedisBackend::new(RedisConfig::from_url(BackendUrl::parse(url)?)?)))
}

/// Servers of one store.
#[derive(Debug)]
struct RunningStore<S> {
    servers: Blocking<S>,
    url: String,
    endpoints: Vec<String>,
}

impl<S: Servers> RunningStore<S> {
    fn start() -> Result<Self> {
        let servers = S::start()?;
        let (url, endpoints) = (servers.url_for_clients(), servers.endpoints());
        Ok(Self { servers: Blocking::new(servers), url, endpoints })
    }

    async fn delete_entries(&self, name: &LockName) -> Result<()> {
        let entries = self.entries(name).await?;
        self.servers
            .with(move |servers| {
                entries.iter().try_for_each(|key| servers.node_of(key)?.cli(&["DEL", key]).map(drop))
            })
            .await
    }

    async fn write_junk(&self, name: &LockName) -> Result<()> {
        const JUNK: &[u8] = &[0xff; 100_000];
        let (counter, lapses) = (side(name, "fence"), side(name, "deadlines"));
        self.servers
            .with(move |servers| {
                let node = servers.node_of(&counter)?;
                // The metadata of the holder end the counter's value.
                node.command(&[b"APPEND", counter.as_bytes(), JUNK])?;
                for field in node.cli(&["HKEYS", &lapses])?.list() {
                    if field.text().starts_with('@') {
                        node.command(&[b"HSET", lapses.as_bytes(), field.text().as_bytes(), JUNK])?;
                    }
                }
                Ok(())
            })
            .await
    }
}

/// Returns the key of a lock.
fn key(name: &LockName) -> String {
    format!("{PREFIX}{}", name.encode(3 * LOCK_NAME_BYTES_MAX))
}

/// Returns a side key of a lock.
fn side(name: &LockName, what: &str) -> String {
    format!("lockkit:{{{}}}:{what}", key(name))
}

#[async_trait]
impl<S: Servers> Store for RunningStore<S> {
    fn backend(&self) -> Result<AnyBackend> {
        backend(&self.url)
    }

    fn address(&self) -> Option<String> {
        Some(self.url.clone())
    }

    async fn inflict(&self, fault: StoreFault) -> Result<()> {
        match fault {
            StoreFault::DeleteEntries(name) => self.delete_entries(&name).await,
            StoreFault::WriteJunk(name) => self.write_junk(&name).await,
            StoreFault::Freeze => self.servers.with(|servers| servers.freeze()).await,
            StoreFault::Thaw => self.servers.with(|servers| servers.thaw()).await,
            StoreFault::Restart => self.servers.with(Servers::restart).await,
            StoreFault::Stop => self.servers.with(Servers::stop).await,
            StoreFault::Start => self.servers.with(Servers::start_again).await,
            other => other.unsupported(),
        }
    }

    async fn link(&self) -> Result<Arc<dyn ClientLink>> {
        let proxies = Proxy::start_redis_group(&self.endpoints)?;
        let url = S::url_at(&proxies.iter().map(Proxy::endpoint).collect::<Vec<_>>());
        Ok(Arc::new(ProxyLink::new(proxies, url, backend)))
    }

    async fn entries(&self, name: &LockName) -> Result<Vec<String>> {
        let (lock, sides) = (key(name), ["queue", "deadlines"].map(|what| side(name, what)));
        self.servers
            .with(move |servers| {
                let node = servers.node_of(&lock)?;
                let mut entries = Vec::new();
                for key in std::iter::once(lock).chain(sides) {
                    if node.cli(&["EXISTS", &key])?.number() == Some(1) {
                        entries.push(key);
                    }
                }
                Ok(entries)
            })
            .await
    }

    async fn requests(&self) -> Result<u64> {
        self.servers
            .with(|servers| {
                let mut requests = 0;
                for node in servers.masters()? {
                    for command in REQUESTS {
                        requests += node.calls(command)?;
                    }
                }
                Ok(requests)
            })
            .await
    }

    async fn bare_notification(&self) -> Result<Duration> {
        let endpoint = self.servers.with(|servers| {
            let masters = servers.masters()?;
            Ok(masters.first().context("no master")?.endpoint())
        });
        bare::bare_notification(&endpoint.await?).await
    }

    async fn proves(&self, evidence: &Evidence) -> Result<bool> {
        let Evidence::KeyValue { key, value, .. } = evidence.clone() else {
            bail!("not of Redis: {evidence:?}")
        };
        self.servers
            .with(move |servers| {
                // A master of a cluster that has not the key's slot answers with an error.
                let answers = servers.masters()?.into_iter().filter_map(|node| node.cli(&["GET", &key]).ok());
                Ok(answers.into_iter().any(|answer| answer.text() == value.expose()))
            })
            .await
    }

    async fn contents(&self) -> Result<Vec<Entry>> {
        self.servers
            .with(|servers| {
                let mut entries = Vec::new();
                for node in servers.masters()? {
                    let keys = node.lifetimes()?;
                    entries.extend(keys.into_iter().map(|(place, is_bounded)| Entry::new(place, is_bounded)));
                }
                Ok(entries)
            })
            .await
    }

    async fn counts(&self) -> Result<BTreeMap<&'static str, u64>> {
        self.servers
            .with(|servers| {
                let mut counts = BTreeMap::new();
                for node in servers.masters()? {
                    *counts.entry("connections").or_default() += node.clients()?;
                    *counts.entry("channels").or_default() += node.channels()?.len() as u64;
                }
                Ok(counts)
            })
            .await
    }

    async fn watched(&self) -> Result<Vec<String>> {
        self.servers
            .with(|servers| {
                let mut channels = Vec::new();
                for node in servers.masters()? {
                    channels.extend(node.channels()?);
                }
                Ok(channels)
            })
            .await
    }

    async fn frees_within(&self, name: &LockName) -> Result<Option<Duration>> {
        let lock = key(name);
        self.servers.with(move |servers| servers.node_of(&lock)?.lifetime(&lock)).await
    }
}
