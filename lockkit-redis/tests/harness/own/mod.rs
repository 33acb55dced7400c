//! Conformance cases that only Redis has.

mod clock;
mod errors;
mod expiry;
mod failover;
mod forgetting;
mod handoff;
mod migration;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use anyhow::{Result, bail};
use lockkit_conformance::{
    Case,
    direct::name,
    own::{HANG, LONG, off, until},
};
use lockkit_core::{
    Clock, FencingToken, LockClient, LockName, Metadata,
    backend::{Acquired, Backend, Claim, ClaimControl, Grant, Session},
};
use lockkit_testbed::{Redis, RedisCluster, RedisSentinels};
use tokio::task::JoinHandle;

use super::{Servers, backend};

/// The longest wait for a grant by notification: shorter than any pause before a re-check, which is ten seconds, +- an
/// eighth, with a [`LONG`] ttl.
const NOTIFIED_MAX: Duration = Duration::from_secs(8);

/// What a busy machine may add to a bound.
const SLACK: Duration = Duration::from_secs(5);

pub(super) fn on_one_server() -> Vec<Case> {
    let mut cases = anywhere::<Redis>();
    cases.extend(handoff::CASES);
    cases.extend(expiry::CASES);
    cases.extend(clock::CASES);
    cases.extend(errors::CASES);
    cases.extend(forgetting::CASES);
    cases
}

pub(super) fn on_sentinels() -> Vec<Case> {
    [anywhere::<RedisSentinels>(), failover::CASES.into()].concat()
}

pub(super) fn on_a_cluster() -> Vec<Case> {
    [anywhere::<RedisCluster>(), migration::CASES.into()].concat()
}

/// The cases for any servers.
fn anywhere<S: Servers>() -> Vec<Case> {
    [handoff::anywhere::<S>(), forgetting::anywhere::<S>(), expiry::anywhere::<S>()].concat()
}

/// Opens a new client.
async fn client(url: &str, ttl: Duration) -> Result<LockClient> {
    Ok(LockClient::builder(backend(url)?).ttl(ttl).build().await?)
}

/// Opens a session that nobody renews, like one of a dead client.
async fn dead(url: &str, ttl: Duration) -> Result<Arc<dyn Session>> {
    Ok(backend(url)?.open_session(ttl, Clock::boot()).await?)
}

/// Acquires a free lock in such a session.
async fn take(session: &Arc<dyn Session>, name: &LockName) -> Result<Grant> {
    let metadata = Metadata::of_this_process(Some("conformance"));
    match session.acquire(Claim::new(name.clone(), true, metadata, &ClaimControl::new())).await? {
        Acquired::Granted(grant) => Ok(grant),
        other => bail!("a free lock was not granted: {other:?}"),
    }
}

/// Waits until the lock has a waiter.
async fn has_waiter(client: &LockClient, name: &LockName) -> Result<()> {
    let waits = async || Ok(!client.inspect(name.as_str()).await?.waiters.is_empty());
    until("the claim waits", waits).await.map(drop)
}

/// Returns whether the key exists.
fn exists(servers: &impl Servers, key: &str) -> Result<bool> {
    Ok(servers.node_of(key)?.cli(&["EXISTS", key])?.number() == Some(1))
}

/// A fenced resource: accepts only writes with the largest token so far.
#[derive(Debug, Default)]
struct FencedResource(AtomicU64);

impl FencedResource {
    /// Returns whether the write was accepted.
    fn write(&self, token: FencingToken) -> bool {
        self.0.fetch_max(token.get(), SeqCst) <= token.get()
    }
}

/// Repeats a command of an operator at all servers.
#[derive(Debug)]
struct RepeatedCommand<S> {
    servers: Arc<S>,
    is_stopped: Arc<AtomicBool>,
    task: JoinHandle<Result<u64>>,
}

impl<S: Servers> RepeatedCommand<S> {
    fn start(servers: S, pause: Duration, command: &'static [&'static str]) -> Self {
        let (servers, is_stopped) = (Arc::new(servers), Arc::new(AtomicBool::new(false)));
        let (targets, stopped) = (Arc::clone(&servers), Arc::clone(&is_stopped));
        let task = tokio::task::spawn_blocking(move || {
            let mut rounds = 0;
            while !stopped.load(SeqCst) {
                for node in targets.masters()? {
                    node.cli(command)?;
                }
                rounds += 1;
                std::thread::sleep(pause);
            }
            Ok(rounds)
        });
        Self { servers, is_stopped, task }
    }

    /// Stops, and returns how often the command was sent.
    async fn end(self) -> Result<u64> {
        self.is_stopped.store(true, SeqCst);
        self.task.await?
    }
}
