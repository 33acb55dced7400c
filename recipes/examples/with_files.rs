//! Locks between the processes of one host, without any server.
//!
//! ```text
//! cargo run -p lockkit-recipes --example with_files -- /var/lib/my-app/locks
//! ```
//!
//! A lock ends with its process, however that ends: there is no ttl to wait for. The folder must be on a local file system.
//! Who may write to it may lock.

use std::env;

use anyhow::{Context, Result};
use lockkit::{
    LockClient,
    file::{FileBackend, FileConfig},
};

#[tokio::main]
async fn main() -> Result<()> {
    let folder = env::args().nth(1).context("usage: with_files FOLDER")?;
    let backend = FileBackend::new(FileConfig::new(folder)?); // the folder is created
    let client = LockClient::builder(backend.clone()).label("with_files").build().await?;
    let other = LockClient::builder(backend).build().await?;

    let guard = client.lock("orders/42")?.acquire().await?;
    println!("HELD {}", guard.token());
    println!("BUSY {}", other.lock("orders/42")?.try_acquire().await?.is_none());
    guard.release().await?;
    println!("FREE {}", other.lock("orders/42")?.try_acquire().await?.is_some());

    client.close().await?;
    Ok(other.close().await?)
}
