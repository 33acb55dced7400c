//! Locks in Redis, with the configuration in code instead of a URL.
//!
//! ```text
//! cargo run -p lockkit-recipes --features redis --example with_redis -- 10.0.0.1:6379
//! ```
//!
//! Several servers are a master and its replicas. `RedisConfig::sentinel` and `RedisConfig::cluster` are for the others.

use std::{env, time::Duration};

use anyhow::{Context, Result};
use lockkit::{
    LockClient,
    redis::{RedisBackend, RedisConfig},
};

#[tokio::main]
async fn main() -> Result<()> {
    let servers = env::args().nth(1).context("usage: with_redis HOST:PORT,HOST:PORT...")?;
    // With replicas, `.min_replicas(1)` keeps a failover from losing grants that one of them has not acknowledged.
    let config = RedisConfig::new(servers.split(','))?.prefix("recipes:");
    let backend = RedisBackend::new(config);
    let client = LockClient::builder(backend.clone()).ttl(Duration::from_secs(10)).build().await?;
    let other = LockClient::builder(backend).build().await?;

    let guard = client.lock("orders/42")?.acquire().await?;
    println!("HELD {}", guard.token());
    println!("BUSY {}", other.lock("orders/42")?.try_acquire().await?.is_none());
    guard.release().await?;
    println!("FREE {}", other.lock("orders/42")?.try_acquire().await?.is_some());

    client.close().await?;
    Ok(other.close().await?)
}
