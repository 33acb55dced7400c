//! The conformance harness for independent masters.
#![allow(missing_docs, dead_code, unreachable_pub, clippy::unwrap_used, reason = "part of test programs")]

pub mod access;
#[path = "../bare.rs"]
pub mod bare;
pub mod cases;
#[path = "../patient.rs"]
pub mod patient;
pub mod raw;
pub mod rights;
pub mod three;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use async_trait::async_trait;
use lockkit_conformance::{
    Access, AnyBackend, Case, ClientLink, Entry, Harness, Hook, Sharing, Store, StoreFault, WallClock,
};
use lockkit_core::{
    LockName,
    backend::{Backend, BackendInfo, BackendUrl, Promises},
    limits::LOCK_NAME_BYTES_MAX,
};
use lockkit_redis::{RedlockBackend, RedlockConfig};
use lockkit_testbed::{
    Blocking, LINK_HOOKS, Proxy, ProxyLink, Redis, RedisMasters, SERVER_HOOKS, ServerClock, StartedOnce,
};

use self::access::ExtraServers;

/// How many cases run concurrently.
const PARALLEL: usize = 8;

/// The commands that clients send.
const REQUESTS: [&str; 4] = ["evalsha", "eval", "subscribe", "unsubscribe"];

/// Cases that a program leaves to another one, with the reason.
pub type LeftOut = (&'static str, &'static [&'static str]);

#[derive(Debug)]
pub struct RedlockHarness<const NODES: usize> {
    name: &'static str,
    own: &'static [Case],
    left_out: &'static [LeftOut],
    shared: StartedOnce<Masters>,
}

impl<const NODES: usize> RedlockHarness<NODES> {
    pub fn new(name: &'static str, own: &'static [Case]) -> Self {
        Self { name, own, left_out: &[], shared: StartedOnce::default() }
    }

    /// Leaves these cases to another program.
    #[must_use]
    pub fn without(self, left_out: &'static [LeftOut]) -> Self {
        let known: HashSet<_> = lockkit_conformance::cases().iter().map(|case| case.name).collect();
        let unknown = left_out.iter().flat_map(|(_, cases)| *cases).find(|case| !known.contains(*case));
        assert_eq!(unknown, None, "the suite has no such case");
        Self { left_out, ..self }
    }
}

impl<const NODES: usize> Harness for RedlockHarness<NODES> {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn info(&self) -> BackendInfo {
        RedlockBackend::new(config("redlock://a,b,c").unwrap()).info()
    }

    fn promises(&self) -> Promises {
        RedlockBackend::new(config("redlock://a,b,c").unwrap()).promises()
    }

    fn expiry_delay(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    fn hooks(&self) -> Vec<Hook> {
        let own = [
            Hook::WallClock,
            Hook::Watched,
            Hook::Secret,
            Hook::DenyLock,
            #[cfg(feature = "tls")]
            Hook::Tls,
        ];
        [&SERVER_HOOKS[..], &LINK_HOOKS, &own].concat()
    }

    fn why_not(&self, hook: Hook) -> Option<String> {
        match hook {
            Hook::Tls => Some("built without the feature \"tls\"".to_owned()),
            Hook::Wipe => Some("a set whose majority has lost its data needs the operator".to_owned()),
            _ => None,
        }
    }

    fn left_out(&self, case: &Case) -> Option<String> {
        let (reason, _) = self.left_out.iter().find(|(_, cases)| cases.contains(&case.name))?;
        Some((*reason).to_owned())
    }

    fn wall_clock(&self) -> Result<Box<dyn WallClock>> {
        Ok(Box::new(ServerClock::new()?))
    }

    fn parallel(&self) -> usize {
        PARALLEL
    }

    fn store(&self, sharing: Sharing) -> Result<Arc<dyn Store>> {
        let start = || Masters::start_for_an_operator(NODES);
        Ok(match sharing {
            Sharing::Own | Sharing::Login => Arc::new(start()?),
            _ => self.shared.get_or_start(start)?,
        })
    }

    fn connect(&self, address: &str) -> Result<AnyBackend> {
        backend(address)
    }

    fn may_stay(&self, Entry { place, is_bounded, .. }: &Entry) -> Option<&'static str> {
        match &**place {
            "lockkit:redlock" => Some("the marker of the node"),
            place if place.ends_with(":fence") && *is_bounded => {
                Some("later tokens must be above earlier ones")
            }
            place if place.ends_with(":record") && *is_bounded => Some("records outlive holds"),
            _ => None,
        }
    }

    /// Its counter and its record at each node. The marker of a node belongs to no lock.
    fn left_per_lock(&self) -> usize {
        2 * NODES
    }

    fn own_cases(&self) -> Vec<Case> {
        self.own.to_vec()
    }
}

pub fn config(url: &str) -> Result<RedlockConfig> {
    Ok(RedlockConfig::from_url(BackendUrl::parse(url)?)?)
}

pub fn backend(url: &str) -> Result<AnyBackend> {
    Ok(AnyBackend::new(RedlockBackend::new(config(url)?)))
}

/// The URL of the nodes at these addresses, for a user with only the documented rights.
pub fn url_of(endpoints: &[String]) -> String {
    format!("redlock://{}@{}", rights::LOGIN, endpoints.join(","))
}

/// A new set of masters.
#[derive(Debug)]
pub struct Masters {
    nodes: Blocking<RedisMasters>,
    pub endpoints: Vec<String>,
    majority: usize,
    extra: ExtraServers,
}

impl Masters {
    pub fn start(count: usize) -> Result<Self> {
        Self::start_with(count, "")
    }

    /// With the rights that an operator needs besides, to list locks and to see how long they remain.
    pub fn start_for_an_operator(count: usize) -> Result<Self> {
        Self::start_as(count, "", &format!("{} +pttl +scan", rights::RIGHTS))
    }

    /// Sets up the nodes by a URL with these options.
    pub fn start_with(count: usize, options: &str) -> Result<Self> {
        Self::start_as(count, options, rights::RIGHTS)
    }

    fn start_as(count: usize, options: &str, rights: &str) -> Result<Self> {
        let nodes = RedisMasters::start_with(count, &[&["--user"], &*rights::user(rights)].concat())?;
        let endpoints = (0..count).map(|number| nodes.node(number).endpoint()).collect();
        let nodes = Blocking::new(nodes);
        let masters = Self { nodes, endpoints, majority: count / 2 + 1, extra: ExtraServers::default() };
        let url = format!("{}{options}", masters.url());
        // In a thread, because the caller may be on an executor already.
        let set_up = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async { Ok::<_, anyhow::Error>(lockkit_redis::init(&config(&url)?).await?) })
        });
        set_up.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the set-up panicked")))?;
        Ok(masters)
    }

    pub fn url(&self) -> String {
        url_of(&self.endpoints)
    }

    /// Runs `work` on the nodes, off the executor.
    pub async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut RedisMasters) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.nodes.with(work).await
    }

    /// How many nodes have the lock.
    pub async fn nodes_with(&self, name: &LockName) -> Result<usize> {
        let lock = encoded(name);
        self.with(move |nodes| {
            let mut count = 0;
            for number in 0..nodes.len() {
                count += usize::from(nodes.node(number).cli(&["EXISTS", &lock])?.number() == Some(1));
            }
            Ok(count)
        })
        .await
    }

    /// Runs `work` on a majority of the nodes, without which no client can lock.
    async fn to_majority(&self, work: impl Fn(&Redis) -> Result<()> + Send + 'static) -> Result<()> {
        let majority = self.majority;
        self.with(move |nodes| (0..majority).try_for_each(|number| work(nodes.node(number)))).await
    }
}

/// The key of a lock.
pub fn encoded(name: &LockName) -> String {
    name.encode(3 * LOCK_NAME_BYTES_MAX)
}

/// Overwrites the metadata of the holder, as another program might.
fn write_junk(node: &Redis, lock: &str) -> Result<()> {
    let value = node.cli(&["GET", lock])?;
    if let Some((claim, _)) = value.text().split_once('{') {
        let junk = [claim.as_bytes(), b"{", &[0xff; 100_000]].concat();
        let words: [&[u8]; 4] = [b"SET", lock.as_bytes(), &junk, b"KEEPTTL"];
        node.command(&words)?;
    }
    Ok(())
}

#[async_trait]
impl Store for Masters {
    fn backend(&self) -> Result<AnyBackend> {
        backend(&self.url())
    }

    fn address(&self) -> Option<String> {
        Some(self.url())
    }

    async fn backend_for(&self, access: Access) -> Result<AnyBackend> {
        self.extra.backend_for(&access, self).await
    }

    async fn inflict(&self, fault: StoreFault) -> Result<()> {
        match fault {
            StoreFault::DeleteEntries(name) => {
                let key = encoded(&name);
                // At all nodes: if only a majority lost the lock, a heartbeat between two deletions would restore the
                // first one, and the lock would keep its majority.
                self.with(move |nodes| {
                    (0..nodes.len()).try_for_each(|number| nodes.node(number).cli(&["DEL", &key]).map(drop))
                })
                .await
            }
            StoreFault::WriteJunk(name) => {
                let lock = encoded(&name);
                self.with(move |nodes| {
                    (0..nodes.len()).try_for_each(|number| write_junk(nodes.node(number), &lock))
                })
                .await
            }
            StoreFault::Freeze => self.to_majority(|node| node.pause()).await,
            StoreFault::Thaw => self.to_majority(|node| node.resume()).await,
            StoreFault::Restart => {
                self.with(|nodes| (0..nodes.len()).try_for_each(|number| nodes.node_mut(number).restart()))
                    .await
            }
            StoreFault::Stop => {
                self.with(|nodes| (0..nodes.len()).try_for_each(|number| nodes.node_mut(number).kill())).await
            }
            StoreFault::Start => {
                self.with(|nodes| (0..nodes.len()).try_for_each(|number| nodes.node_mut(number).restart()))
                    .await
            }
            other => other.unsupported(),
        }
    }

    async fn link(&self) -> Result<Arc<dyn ClientLink>> {
        let proxies = self.endpoints.iter().map(Proxy::start_redis).collect::<Result<Vec<_>>>()?;
        let endpoints: Vec<String> = proxies.iter().map(Proxy::endpoint).collect();
        Ok(Arc::new(ProxyLink::new(proxies, url_of(&endpoints), backend)))
    }

    /// One per holder, at whichever nodes: a majority grants a lock, and the others get it later.
    async fn entries(&self, name: &LockName) -> Result<Vec<String>> {
        let lock = encoded(name);
        self.with(move |nodes| {
            let mut holders = BTreeSet::new();
            for number in 0..nodes.len() {
                let holder = nodes.node(number).cli(&["GET", &lock])?;
                if !holder.text().is_empty() {
                    holders.insert(format!("{lock} of {}", holder.text()));
                }
            }
            Ok(holders.into_iter().collect())
        })
        .await
    }

    /// Of the busiest node: a client sends every request to every node.
    async fn requests(&self) -> Result<u64> {
        self.with(|nodes| {
            let mut most = 0;
            for number in 0..nodes.len() {
                let counts = REQUESTS.iter().map(|command| nodes.node(number).calls(command));
                most = most.max(counts.sum::<Result<u64>>()?);
            }
            Ok(most)
        })
        .await
    }

    /// At all nodes at once, as a release is published by each of them; until a majority has.
    async fn bare_notification(&self) -> Result<Duration> {
        let all = self.endpoints.iter().map(|endpoint| bare::bare_notification(endpoint));
        let mut all = futures_util::future::try_join_all(all).await?;
        all.sort_unstable();
        all.get(self.majority - 1).copied().context("no node")
    }

    async fn contents(&self) -> Result<Vec<Entry>> {
        self.with(|nodes| {
            let mut entries = Vec::new();
            for number in 0..nodes.len() {
                let keys = nodes.node(number).lifetimes()?;
                entries.extend(keys.into_iter().map(|(place, is_bounded)| Entry::new(place, is_bounded)));
            }
            Ok(entries)
        })
        .await
    }

    async fn counts(&self) -> Result<BTreeMap<&'static str, u64>> {
        self.with(|nodes| {
            let mut counts = BTreeMap::new();
            for number in 0..nodes.len() {
                *counts.entry("connections").or_default() += nodes.node(number).clients()?;
                *counts.entry("channels").or_default() += nodes.node(number).channels()?.len() as u64;
            }
            Ok(counts)
        })
        .await
    }

    async fn watched(&self) -> Result<Vec<String>> {
        self.with(|nodes| {
            let channels = (0..nodes.len()).map(|number| nodes.node(number).channels());
            Ok(channels.collect::<Result<Vec<_>>>()?.concat())
        })
        .await
    }

    /// When no majority of the nodes has the lock any more.
    async fn frees_within(&self, name: &LockName) -> Result<Option<Duration>> {
        let (lock, majority) = (encoded(name), self.majority);
        self.with(move |nodes| {
            let ends = (0..nodes.len()).map(|number| nodes.node(number).lifetime(&lock));
            let mut ends = ends.collect::<Result<Vec<_>>>()?;
            // Nodes where it is free already come last.
            ends.sort_unstable_by(|one, other| other.cmp(one));
            Ok(ends[majority - 1])
        })
        .await
    }
}
