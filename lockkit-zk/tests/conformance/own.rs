//! Helpers of ZooKeeper's own cases.

use std::time::Duration;

use anyhow::{Result, ensure};
use lockkit_conformance::own::{off, until};
use lockkit_core::{LockClient, LockName};
use lockkit_testbed::{Pool, Proxy, Taken, ZooKeeper, ZooKeeperOptions};
use lockkit_zk::ZkBackend;

use crate::{backend, store::entries};

/// Less than the time to the first re-check of a waiter with a [`LONG`](lockkit_conformance::own::LONG) ttl (at least
/// 8.75 s), minus the earlier steps
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

/// Returns a server for one case, as if it were new. It never removes empty directories.
///
/// # Errors
///
/// When none starts.
pub(crate) fn server() -> Result<Taken<ZooKeeper>> {
    static SERVERS: Pool<ZooKeeper> = Pool::new();
    let options = ZooKeeperOptions { reap_every: Duration::from_secs(24 * 60 * 60), ..Default::default() };
    SERVERS.take(ZooKeeper::clear, || ZooKeeper::start_with(options))
}

/// Returns a server, a proxy in front of it, and a client that connects through the proxy.
pub(crate) async fn linked(ttl: Duration) -> Result<(Taken<ZooKeeper>, Proxy, LockClient)> {
    let server = off(server)?;
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
    // They go with the connection, just after the answer to the close.
    until("no watch is left", async || Ok(off(|| server.watches())? == 0)).await?;
    ensure!(off(|| server.ephemerals())?.is_empty(), "nodes are left");
    Ok(())
}
