//! Locks on a majority of independent Redis servers.
//!
//! ```text
//! cargo run -p lockkit-recipes --features redis --example with_redlock -- 10.0.0.1,10.0.0.2,10.0.0.3
//! ```
//!
//! The servers need `appendonly yes` with `appendfsync always`, or no persistence at all. They are set up once, by an
//! operator with `lockkit init redlock://...`, or as here. Do not set them up from a script that also starts servers: see
//! docs/guarantees.md.

use std::{env, time::Duration};

use anyhow::{Context, Result};
use lockkit::{
    LockClient,
    redis::{RedisConfig, RedlockBackend, RedlockConfig, init},
};

#[tokio::main]
async fn main() -> Result<()> {
    let servers = env::args().nth(1).context("usage: with_redlock HOST:PORT,HOST:PORT,HOST:PORT")?;
    // 3, 5, 7 or 9 servers; every client must name all of them.
    let config = RedlockConfig::new(RedisConfig::new(servers.split(','))?.prefix("recipes:"))?;
    println!("SET UP {:?}", init(&config).await?); // a second time, it changes nothing
    let backend = RedlockBackend::new(config);
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
