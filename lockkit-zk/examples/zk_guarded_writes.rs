//! A writer that has lost its lock without noticing is refused by ZooKeeper itself, where the data live in the same
//! ensemble as the lock.
//!
//! ```sh
//! cargo run -p lockkit-zk --example zk_guarded_writes -- zk://127.0.0.1:2181
//! ```

use anyhow::{Context, Result, bail, ensure};
use lockkit_core::{
    LockClient,
    backend::{BackendUrl, Evidence},
};
use lockkit_zk::{ZkBackend, ZkConfig};
use zookeeper_client::{Acls, Client, CreateMode, Error, MultiWriteError};

/// The node that the lock protects.
const DATA: &str = "/guarded-writes";

/// Matches any version of the holder's node: it only has to exist.
const ANY_VERSION: i32 = -1;

#[allow(dead_code, reason = "a test runs the same code")]
#[tokio::main]
async fn main() -> Result<()> {
    run(&std::env::args().nth(1).context("the URL of a ZooKeeper server is missing")?).await
}

/// Writes as the holder, and then as one whose session has ended in the meantime.
pub(crate) async fn run(url: &str) -> Result<()> {
    let backend = ZkBackend::new(ZkConfig::from_url(BackendUrl::parse(url)?)?);
    // The data are written by a client of your own, with the same chroot.
    let servers = url.trim_start_matches("zk://").split('?').next().unwrap_or_default();
    let zookeeper = Client::connect(servers.trim_end_matches('/')).await?;
    zookeeper.create(DATA, b"", &CreateMode::Ephemeral.with_acls(Acls::anyone_all())).await?;

    let first = LockClient::builder(backend.clone()).build().await?;
    let guard = first.lock("guarded-writes")?.acquire().await?;
    let Some(Evidence::NodeExists { path: holder, .. }) = guard.evidence() else {
        bail!("this form of the lock has no evidence");
    };
    write(&zookeeper, holder, b"by the first").await?;

    // Instead of a pause that is longer than the ttl: the session ends, and the writer still has its evidence.
    first.close().await?;
    let second = LockClient::builder(backend.clone()).build().await?;
    let _guard = second.lock("guarded-writes")?.acquire().await?;

    // The second holder has written nothing yet.
    let stale = write(&zookeeper, holder, b"late").await;
    ensure!(
        stale == Err(MultiWriteError::OperationFailed { index: 0, source: Error::NoNode }),
        "the stale writer was not refused: {stale:?}"
    );
    ensure!(zookeeper.get_data(DATA).await?.0 == b"by the first", "the stale writer has written");
    println!("the write of the first holder was refused, because its node is gone");
    Ok(second.close().await?)
}

/// Writes the data, if the holder's node exists: both in one transaction.
async fn write(zookeeper: &Client, holder: &str, data: &[u8]) -> Result<(), MultiWriteError> {
    let mut transaction = zookeeper.new_multi_writer();
    transaction.add_check_version(holder, ANY_VERSION)?;
    transaction.add_set_data(DATA, data, None)?;
    transaction.commit().await.map(drop)
}
