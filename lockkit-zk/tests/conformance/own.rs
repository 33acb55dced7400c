//! Helpers of ZooKeeper's own cases.

use std::time::Duration;

use anyhow::{Result, ensure};
use lockkit_core::{LockClient, LockName};
use lockkit_testbed::{Proxy, ZooKeeper};
use lockkit_zk::ZkBackend;
use tokio::time::{Instant, sleep};

use crate::{backend, store::entries};

/// Time limit of steps that would hang.
pub(crate) const HANG: Duration = Duration::from_secs(30);

/// A ttl longer than any case.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Less than the time to the first re-check of a waiter with a [`LONG`] ttl (at least 8.75 s), minus the earlier steps
/// of the case.
pub(crate) const BEFORE_A_RECHECK: Duration = Duration::from_secs(5);

/// Returns a new client of these servers (`HOST:PORT`, separated by commas) with this tick.
pub(crate) async fn client(servers: &str, tick: Duration, ttl: Duration) -> Result<LockClient> {
    Ok(LockClient::builder(backend_of(servers, tick)?).ttl(ttl).build().await?)
}

/// Returns a backend for these servers with this tick.
pub(crate) fn backend_of(servers: &str, tick: Duration) -> Result<ZkBackend> {
    backend(&format!("zk://{servers}?tick={}ms", tick.as_millis()))
}

/// The tick of the testbed's servers.
pub(crate) const TICK: Duration = Duration::from_millis(500);

/// Returns a server, a proxy in front of it, and a client that connects through the proxy.
pub(crate) async fn linked(ttl: Duration) -> Result<(ZooKeeper, Proxy, LockClient)> {
    let server = off(ZooKeeper::start)?;
    let proxy = Proxy::start_zookeeper(server.endpoint())?;
    let client = client(&proxy.endpoint(), TICK, ttl).await?;
    Ok((server, proxy, client))
}

/// Checks that no node of this lock is left and, after closing all clients, nothing of them.
pub(crate) async fn nothing_is_left<const N: usize>(
    server: &ZooKeeper,
    lock: &LockName,
    clients: [LockClient; N],
) -> Result<()> {
    until("the queue is empty", async || Ok(off(|| entries(server, lock))?.is_empty())).await?;
    for client in clients {
        client.close().await?;
    }
    ensure!(off(|| server.watches())? == 0, "watches are left");
    ensure!(off(|| server.ephemerals())?.is_empty(), "nodes are left");
    Ok(())
}

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

/// Runs blocking work while the executor's other tasks continue.
pub(crate) fn off<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// Repeats the check until it is true; returns how long that took.
pub(crate) async fn until(what: &str, is_true: impl AsyncFn() -> Result<bool>) -> Result<Duration> {
    let start = Instant::now();
    while !is_true().await? {
        ensure!(start.elapsed() < HANG, "not within {HANG:?}: {what}");
        sleep(Duration::from_millis(10)).await;
    }
    Ok(start.elapsed())
}
