//! What ZooKeeper's own cases have in common.

use std::time::Duration;

use anyhow::{Result, ensure};
use lockkit_core::{LockClient, LockName};
use lockkit_testbed::{Proxy, ZooKeeper};
use lockkit_zk::ZkBackend;
use tokio::time::{Instant, sleep};

use crate::{backend, store::entries};

/// Generous bound against hangs.
pub(crate) const HANG: Duration = Duration::from_secs(30);

/// A ttl that no case outlives by waiting for something else.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Less than the time after which a waiter with a [`LONG`] ttl looks again by itself (at least 8.75 s), and what came
/// before in the case.
pub(crate) const BEFORE_A_LOOK: Duration = Duration::from_secs(5);

/// A fresh client, by way of these servers (`HOST:PORT`, separated by commas), which know this tick.
pub(crate) async fn client(servers: &str, tick: Duration, ttl: Duration) -> Result<LockClient> {
    Ok(LockClient::builder(backend_of(servers, tick)?).ttl(ttl).build().await?)
}

/// A backend for a fresh client, by way of these servers, which know this tick.
pub(crate) fn backend_of(servers: &str, tick: Duration) -> Result<ZkBackend> {
    backend(&format!("zk://{servers}?tick={}ms", tick.as_millis()))
}

/// The tick of the testbed's servers.
pub(crate) const TICK: Duration = Duration::from_millis(500);

/// A server, a proxy in front of it, and a client that goes this way.
pub(crate) async fn linked(ttl: Duration) -> Result<(ZooKeeper, Proxy, LockClient)> {
    let server = off(ZooKeeper::start)?;
    let proxy = Proxy::start_zookeeper(server.endpoint())?;
    let client = client(&proxy.endpoint(), TICK, ttl).await?;
    Ok((server, proxy, client))
}

/// Neither nodes of this lock are left nor, once all clients are closed, anything of them.
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
