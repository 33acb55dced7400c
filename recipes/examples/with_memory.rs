//! Locks within one process: for tests, and for an application that runs alone today and may not tomorrow.
//!
//! ```text
//! cargo run -p lockkit-recipes --example with_memory
//! ```
//!
//! All clients of one `memory:NAME` in a process share a server; clients of another name or in another process do not.

use anyhow::Result;

#[tokio::main]
async fn main() -> Result<()> {
    let client = lockkit::connect("memory:shop?ttl=10s").await?;
    let other = lockkit::connect("memory:shop").await?;
    let stranger = lockkit::connect("memory:another").await?;

    let guard = client.lock("orders/42")?.acquire().await?;
    println!("HELD {}", guard.token());
    println!("BUSY {}", other.lock("orders/42")?.try_acquire().await?.is_none());
    println!("ANOTHER {}", stranger.lock("orders/42")?.try_acquire().await?.is_some());
    guard.release().await?;
    println!("FREE {}", other.lock("orders/42")?.try_acquire().await?.is_some());

    client.close().await?;
    stranger.close().await?;
    Ok(other.close().await?)
}
