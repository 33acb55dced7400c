//! Locks in ZooKeeper, with the configuration in code instead of a URL.
//!
//! ```text
//! cargo run -p lockkit-recipes --features zk --example with_zookeeper -- 10.0.0.1:2181,10.0.0.2:2181,10.0.0.3:2181
//! ```
//!
//! The server moves the ttl into its own bounds, by default 2 to 20 ticks: the example prints what it granted.

use std::{env, time::Duration};

use anyhow::{Context, Result};
use lockkit::{
    LockClient,
    zk::{ZkBackend, ZkConfig},
};

#[tokio::main]
async fn main() -> Result<()> {
    let servers = env::args().nth(1).context("usage: with_zookeeper HOST:PORT,HOST:PORT...")?;
    // Name all servers: the client looks for one that has a quorum. `.user(...)`, `.access(...)` and `.tls(...)` as the
    // ensemble needs them.
    let config = ZkConfig::new(servers.split(','))?;
    let backend = ZkBackend::new(config);
    let client = LockClient::builder(backend.clone()).ttl(Duration::from_secs(10)).build().await?;
    let other = LockClient::builder(backend).build().await?;
    println!("TTL {:?}", client.ttl());

    let guard = client.lock("orders/42")?.acquire().await?;
    println!("HELD {} {:?}", guard.token(), guard.evidence().context("ZooKeeper has evidence")?);
    println!("BUSY {}", other.lock("orders/42")?.try_acquire().await?.is_none());
    guard.release().await?;
    println!("FREE {}", other.lock("orders/42")?.try_acquire().await?.is_some());

    client.close().await?;
    Ok(other.close().await?)
}
