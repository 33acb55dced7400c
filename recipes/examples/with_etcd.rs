//! Locks in etcd, with the configuration in code instead of a URL.
//!
//! ```text
//! cargo run -p lockkit-recipes --features etcd --example with_etcd -- 10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379
//! ```
//!
//! The key names the grant: a transaction of etcd that compares its create revision is refused once the grant has ended.

use std::{env, time::Duration};

use anyhow::{Context, Result};
use lockkit::{
    LockClient,
    etcd::{EtcdBackend, EtcdConfig},
};

#[tokio::main]
async fn main() -> Result<()> {
    let servers = env::args().nth(1).context("usage: with_etcd HOST:PORT,HOST:PORT...")?;
    // Name all members: one that answers is enough. `.user(name, password)` and `.tls(...)` as the cluster needs them.
    let config = EtcdConfig::new(servers.split(','))?.prefix("recipes");
    let backend = EtcdBackend::new(config);
    let client = LockClient::builder(backend.clone()).ttl(Duration::from_secs(10)).build().await?;
    let other = LockClient::builder(backend).build().await?;

    let guard = client.lock("orders/42")?.acquire().await?;
    println!("HELD {} {:?}", guard.token(), guard.evidence().context("etcd has evidence")?);
    println!("BUSY {}", other.lock("orders/42")?.try_acquire().await?.is_none());
    guard.release().await?;
    println!("FREE {}", other.lock("orders/42")?.try_acquire().await?.is_some());

    client.close().await?;
    Ok(other.close().await?)
}
