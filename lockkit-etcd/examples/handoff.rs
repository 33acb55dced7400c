//! Handoffs per second of one contended lock: lockkit and etcd's own Lock RPC, on a separate server.
//!
//! Eight clients, each with its own connection and lease, take and release the same lock in a loop. Both kinds run in
//! turns, so that other load on the machine affects both; only the ratio counts.
//!
//! ```text
//! cargo run --release -p lockkit-etcd --example handoff
//! ```

use std::time::{Duration, Instant};

use etcd_client::{Client, LockOptions};
use lockkit_core::{LockClient, backend::BackendUrl};
use lockkit_etcd::{EtcdBackend, EtcdConfig};
use lockkit_testbed::Etcd;
use tokio::task::JoinSet;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const CONTENDERS: usize = 8;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> Result {
    let etcd = Etcd::start()?;
    let (mut clients, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..CONTENDERS {
        let backend = EtcdBackend::new(EtcdConfig::from_url(BackendUrl::parse(&etcd.url())?)?);
        clients.push(LockClient::builder(backend).build().await?);
        let mut peer = Client::connect([etcd.endpoint()], None).await?;
        let lease = peer.lease_grant(300, None).await?.id();
        peers.push((peer, lease));
    }
    println!("{CONTENDERS} contenders, {ROUNDS} rounds of {ROUND:?} each; handoffs per second");
    println!("round   lockkit   Lock RPC   ratio");
    let mut ratios = Vec::new();
    for round in 1..=ROUNDS {
        let ours = per_second(clients.iter().map(|client| by_lockkit(client.clone()))).await?;
        let theirs =
            per_second(peers.iter().map(|(client, lease)| by_lock_rpc(client.clone(), *lease))).await?;
        println!("{round:>5} {ours:>9.0} {theirs:>10.0} {:>7.1}", ours / theirs);
        ratios.push(ours / theirs);
    }
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.1} ({:.1} to {:.1})", ratios[ROUNDS / 2], ratios[0], ratios[ROUNDS - 1]);
    Ok(())
}

/// Acquires and releases until the time is up. Returns how often.
async fn by_lockkit(client: LockClient) -> Result<u64> {
    let lock = client.lock("handoff")?;
    let mut grants = 0;
    let started = Instant::now();
    while started.elapsed() < ROUND {
        lock.acquire().await?.release().await?;
        grants += 1;
    }
    Ok(grants)
}

async fn by_lock_rpc(mut client: Client, lease: i64) -> Result<u64> {
    let mut grants = 0;
    let started = Instant::now();
    while started.elapsed() < ROUND {
        let held = client.lock("handoff-rpc", Some(LockOptions::new().with_lease(lease))).await?;
        client.unlock(held.key()).await?;
        grants += 1;
    }
    Ok(grants)
}

async fn per_second(
    contenders: impl Iterator<Item = impl Future<Output = Result<u64>> + Send + 'static>,
) -> Result<f64> {
    let mut total = 0;
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for contender in contenders {
        tasks.spawn(contender);
    }
    while let Some(grants) = tasks.join_next().await {
        total += grants??;
    }
    Ok(total as f64 / started.elapsed().as_secs_f64())
}
