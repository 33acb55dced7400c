//! Writes that etcd refuses once their writer has lost the lock, because lock and data are in the same etcd.
//!
//! A fencing token needs a resource that remembers the highest one. Here nothing is remembered: the transaction of the
//! write compares the create revision of the lock's key. The key is gone before the lock passes on, so a stale write is
//! refused even if the next holder has not written anything yet.
//!
//! ```text
//! cargo run -p lockkit-etcd --example etcd_guarded_writes -- 127.0.0.1:2379
//! ```

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
use lockkit_core::{
    LockClient,
    backend::{BackendUrl, Evidence},
};
use lockkit_etcd::{EtcdBackend, EtcdConfig};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result {
    let endpoint = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:2379".to_owned());
    println!("stored: {}", stale_writer(&format!("etcd://{endpoint}"), &endpoint).await?);
    Ok(())
}

/// Puts a value if the holder with this evidence still has the lock.
pub(crate) async fn put_guarded(
    client: &mut Client,
    evidence: &Evidence,
    key: &str,
    value: &str,
) -> Result<bool> {
    let Evidence::CreateRevision { key: lock, revision, .. } = evidence else {
        return Err("this is no evidence of etcd".into());
    };
    let is_held = Compare::create_revision(&**lock, CompareOp::Equal, *revision);
    Ok(client.txn(Txn::new().when([is_held]).and_then([TxnOp::put(key, value, None)])).await?.succeeded())
}

/// The first holder's session ends while it is about to write. Returns what is stored after both have tried.
pub(crate) async fn stale_writer(url: &str, endpoint: &str) -> Result<String> {
    let mut client = Client::connect([endpoint], None).await?;
    let backend = EtcdBackend::new(EtcdConfig::from_url(BackendUrl::parse(url)?)?);
    let first = LockClient::builder(backend.clone()).build().await?;
    let second = LockClient::builder(backend).build().await?;
    let guard = first.lock("account")?.acquire().await?;
    let stale = guard.evidence().ok_or("etcd has evidence of every grant")?;
    assert!(put_guarded(&mut client, stale, "account", "1 by the first holder").await?);
    // As if its process had paused for longer than the ttl.
    first.close().await?;
    let held = second.lock("account")?.acquire().await?;
    assert!(!put_guarded(&mut client, stale, "account", "2 by the first holder").await?, "not fenced");
    let evidence = held.evidence().ok_or("etcd has evidence of every grant")?;
    assert!(put_guarded(&mut client, evidence, "account", "2 by the second holder").await?);
    held.release().await?;
    second.close().await?;
    let stored = client.get("account", None).await?;
    Ok(stored.kvs().first().ok_or("nothing is stored")?.value_str()?.to_owned())
}
