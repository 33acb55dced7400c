//! Lock files between real processes, and folders with faults.

// The helpers of tests are no `#[test]` themselves, which is all that clippy.toml exempts.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests are not recognised as tests"
)]

mod child;
mod exclusion;
mod failures;
mod holder;
mod links;
mod loss;
mod waiting;

use std::{future::Future, path::Path, time::Duration};

use lockkit_core::{Error, LockClient};
use lockkit_file::{FileBackend, FileConfig};

/// Bound on everything that is expected to happen soon.
const SOON: Duration = Duration::from_secs(30);

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(SOON, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {SOON:?}"),
    }
}

async fn try_client(folder: &Path) -> Result<LockClient, Error> {
    LockClient::builder(FileBackend::new(FileConfig::new(folder)?)).build().await
}

async fn client(folder: &Path) -> LockClient {
    try_client(folder).await.unwrap()
}
