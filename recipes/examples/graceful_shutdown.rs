//! A service that is told to stop finishes what it has begun, and passes its lock on at once.
//!
//! Start it twice. One of them prints `BEGIN` and `END` for each order; the other one waits for the lock.
//!
//! ```text
//! LOCKKIT_BACKEND=file:///tmp/locks cargo run -p lockkit-recipes --example graceful_shutdown
//! ```
//!
//! After `kill` (SIGTERM, as from Kubernetes or systemd) the first one finishes its order and exits, and the other one goes
//! on. After `kill -9` the order is not finished, and the other one waits for the ttl. Give the platform more time
//! than `GRACE` before it kills (`terminationGracePeriodSeconds`, `TimeoutStopSec`).

use std::{env, time::Duration};

use anyhow::{Context, Result};
use lockkit::{ErrorKind, FencingToken, LockClient};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};

/// How long an order may take after the signal.
const GRACE: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() -> Result<()> {
    let url = env::var("LOCKKIT_BACKEND").context("LOCKKIT_BACKEND is not set to the URL of a store")?;
    let mut terminated = signal(SignalKind::terminate())?;
    let client = lockkit::connect(url).await?;
    let mut work = tokio::spawn(work_off(client.clone()));
    tokio::select! {
        _ = terminated.recv() => {
            // From here on nothing new is acquired: what waits for a lock gets `Closed`. A lock that is held is renewed
            // until its guard is released.
            client.drain(GRACE).await?;
            work.await?
        }
        ended = &mut work => {
            client.close().await?;
            ended?
        }
    }
}

/// A database that the order is written to compares the token: docs/fencing.md.
async fn order(token: FencingToken) {
    println!("BEGIN {token}");
    sleep(Duration::from_millis(500)).await;
    println!("END {token}");
}

/// Works off orders until the client is drained.
async fn work_off(client: LockClient) -> Result<()> {
    let lock = client.lock("orders")?;
    loop {
        let guard = match lock.acquire().await {
            Ok(guard) => guard,
            Err(error) if error.kind() == ErrorKind::Closed => return Ok(()),
            Err(error) => return Err(error.into()), // not an outage of the store: `acquire` waits through those
        };
        if let Err(error) = guard.run(order(guard.token())).await {
            eprintln!("{error:#}"); // the lock was lost: the order may have ended in the middle, and another service has the next one
        } else if let Err(error) = guard.release().await {
            eprintln!("{error:#}"); // unless it was lost just now, the client repeats the release in the background
        }
    }
}
