//! Cases that only Redis has.

mod clock;
mod errors;
mod expiry;
mod failover;
mod forgetting;
mod hand_over;
mod migration;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use lockkit_conformance::Case;
use lockkit_core::{
    Clock, FencingToken, LockClient, LockName, Metadata,
    backend::{Acquired, Backend, Claim, ClaimControl, Grant, Session},
};
use lockkit_testbed::{Redis, RedisCluster, RedisSentinels};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::{Servers, backend};

/// Generous bound against hangs.
const HANG: Duration = Duration::from_secs(30);

/// A ttl that no case outlives by waiting for something else; waiters that nobody wakes look again after 15 s.
const LONG: Duration = Duration::from_secs(60);

/// Less than such a waiter's pause: who is served within it was told.
const TOLD_MAX: Duration = Duration::from_secs(10);

/// What a busy machine may add to a bound.
const SLACK: Duration = Duration::from_secs(5);

pub(super) fn on_one_server() -> Vec<Case> {
    let mut cases = anywhere::<Redis>();
    cases.extend(hand_over::CASES);
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

/// What holds whatever the servers are.
fn anywhere<S: Servers>() -> Vec<Case> {
    [hand_over::anywhere::<S>(), forgetting::anywhere::<S>(), expiry::anywhere::<S>()].concat()
}

/// A fresh client.
async fn client(url: &str, ttl: Duration) -> Result<LockClient> {
    Ok(LockClient::builder(backend(url)?).ttl(ttl).build().await?)
}

/// A session that nobody renews: one of a client that is dead.
async fn dead(url: &str, ttl: Duration) -> Result<Arc<dyn Session>> {
    Ok(backend(url)?.open_session(ttl, Clock::boot()).await?)
}

/// Takes a free lock in such a session.
async fn take(session: &Arc<dyn Session>, name: &LockName) -> Result<Grant> {
    let metadata = Metadata::of_this_process(Some("conformance"));
    match session.acquire(Claim::new(name.clone(), true, metadata, &ClaimControl::new())).await? {
        Acquired::Granted(grant) => Ok(grant),
        other => bail!("a free lock was not granted: {other:?}"),
    }
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

/// Talks to servers while the executor's other tasks go on.
fn off<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// Looks again and again until it is so; how long that took.
async fn until(what: &str, so: impl AsyncFn() -> Result<bool>) -> Result<Duration> {
    let start = Instant::now();
    while !so().await? {
        ensure!(start.elapsed() < HANG, "it did not come about within {HANG:?} that {what}");
        sleep(Duration::from_millis(5)).await;
    }
    Ok(start.elapsed())
}

/// Waits until somebody waits for this lock.
async fn has_waiter(client: &LockClient, name: &LockName) -> Result<()> {
    let waits = async || Ok(!client.inspect(name.as_str()).await?.waiters.is_empty());
    until("the claim waits", waits).await.map(drop)
}

/// Whether there is such a key.
fn exists(servers: &impl Servers, key: &str) -> Result<bool> {
    Ok(servers.node_of(key)?.cli(&["EXISTS", key])?.number() == Some(1))
}

/// Takes only writes with the largest token so far, as the resource behind a lock should.
#[derive(Debug, Default)]
struct Shelf(AtomicU64);

impl Shelf {
    /// Whether the write was taken.
    fn write(&self, token: FencingToken) -> bool {
        self.0.fetch_max(token.get(), SeqCst) <= token.get()
    }
}

/// Something that an operator does to all servers again and again.
#[derive(Debug)]
struct Pest<S> {
    servers: Arc<S>,
    is_over: Arc<AtomicBool>,
    task: JoinHandle<Result<u64>>,
}

impl<S: Servers> Pest<S> {
    fn start(servers: S, pause: Duration, command: &'static [&'static str]) -> Self {
        let (servers, is_over) = (Arc::new(servers), Arc::new(AtomicBool::new(false)));
        let (its_servers, its_end) = (Arc::clone(&servers), Arc::clone(&is_over));
        let task = tokio::task::spawn_blocking(move || {
            let mut rounds = 0;
            while !its_end.load(SeqCst) {
                for node in its_servers.masters()? {
                    node.cli(command)?;
                }
                rounds += 1;
                std::thread::sleep(pause);
            }
            Ok(rounds)
        });
        Self { servers, is_over, task }
    }

    /// How often it was done.
    async fn end(self) -> Result<u64> {
        self.is_over.store(true, SeqCst);
        self.task.await?
    }
}
