//! What ZooKeeper's own cases have in common.

use std::time::Duration;

use anyhow::{Result, ensure};
use lockkit_core::{LockClient, LockName};
use tokio::time::{Instant, sleep};

use crate::backend;

/// Generous bound against hangs.
pub(crate) const HANG: Duration = Duration::from_secs(30);

/// A ttl that no case outlives by waiting for something else; waiters that nobody wakes look again after 20 s.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A fresh client, by way of these servers (`HOST:PORT`, separated by commas), which know this tick.
pub(crate) async fn client(servers: &str, tick: Duration, ttl: Duration) -> Result<LockClient> {
    let backend = backend(&format!("zk://{servers}?tick={}ms", tick.as_millis()))?;
    Ok(LockClient::builder(backend).ttl(ttl).build().await?)
}

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

/// Talks to a server while the executor's other tasks go on.
pub(crate) fn off<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// Looks again and again until it is so; how long that took.
pub(crate) async fn until(what: &str, so: impl AsyncFn() -> Result<bool>) -> Result<Duration> {
    let start = Instant::now();
    while !so().await? {
        ensure!(start.elapsed() < HANG, "it did not come about within {HANG:?} that {what}");
        sleep(Duration::from_millis(10)).await;
    }
    Ok(start.elapsed())
}
