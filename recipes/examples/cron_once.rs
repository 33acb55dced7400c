//! A job that cron starts on every host, and that one of them does each day.
//!
//! Start it several times, on one host or on many:
//!
//! ```text
//! LOCKKIT_BACKEND=file:///tmp/locks cargo run -p lockkit-recipes --example cron_once
//! ```
//!
//! The first one prints `SENT`, and the others print `BEGUN ALREADY`, until midnight UTC. Clocks of hosts may
//! differ by up to a day. The job begins *at most* once: if it fails, or its host dies, nobody repeats it before the next day.
//! `lockkit run --once-per 1d` is the same for a shell command.

use std::{env, time::Duration};

use anyhow::{Context, Result};
use lockkit::{FencingToken, LockClient};

/// From 00:00 UTC to 00:00 UTC.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[tokio::main]
async fn main() -> Result<()> {
    let url = env::var("LOCKKIT_BACKEND").context("LOCKKIT_BACKEND is not set to the URL of a store")?;
    let client = lockkit::connect(url).await?;
    let ended = send_once_a_day(&client).await;
    client.close().await?; // also after an error: others need not wait for the ttl
    ended
}

async fn send_once_a_day(client: &LockClient) -> Result<()> {
    let invoices = client.once_per("invoices", DAY)?;
    // The work is dropped at its next await when the lock is lost: `run` then returns an error.
    match invoices.run(async |guard| send_invoices(guard.token()).await).await? {
        Some(count) => println!("SENT {count}"),
        None => println!("BEGUN ALREADY"),
    }
    Ok(())
}

/// The work. The token goes along with everything that it writes, so that the store of the invoices can refuse the writes
/// of a host that was paused for too long: see docs/fencing.md.
async fn send_invoices(_token: FencingToken) -> u32 {
    tokio::time::sleep(Duration::from_millis(100)).await;
    42
}
