//! Failovers to a replica that does not have the last writes.

use anyhow::{Context, Result, ensure};
use lockkit_conformance::{Case, own_case};
use lockkit_core::ErrorKind;
use lockkit_testbed::RedisSentinels;
use tokio::time::{Instant, timeout};

use super::{
    super::{Servers, key},
    FencedResource, HANG, LONG, SLACK, client, name, off, until,
};

pub(super) const CASES: [Case; 2] = [
    own_case!(a_failover_without_replication_overlaps_and_the_token_decides: FencedExclusion TokenOrder BoundedLoss; bugs 47),
    own_case!(grant_without_replicas_is_refused_before_a_failover: TimedExclusion TruthfulErrors; bugs 47),
];

/// Stops replication at all replicas once they are in sync. Returns the master.
fn stop_replicating(sentinels: &RedisSentinels) -> Result<usize> {
    let master = sentinels.master()?;
    sentinels.replicas().wait_until_in_sync(master)?;
    for number in (0..sentinels.replicas().len()).filter(|&number| number != master) {
        sentinels.node(number).stop_replicating()?;
    }
    Ok(master)
}

async fn a_failover_without_replication_overlaps_and_the_token_decides() -> Result<()> {
    let sentinels = off(<RedisSentinels as Servers>::start)?;
    let (url, resource) = (sentinels.url_for_clients(), FencedResource::default());
    let (one, other) = (client(&url, LONG).await?, client(&url, LONG).await?);
    let before = one.lock("failover")?.acquire().await?;
    before.release().await?;
    let former = off(|| stop_replicating(&sentinels))?;
    let unreplicated = one.lock("failover")?.acquire().await?;
    ensure!(resource.write(unreplicated.token()), "the first write");
    let start = Instant::now();
    let master = off(|| sentinels.failover())?;
    ensure!(master != former, "no failover");
    let next = timeout(HANG, other.lock("failover")?.acquire()).await??;
    println!(
        "granted again {:?} after the failover began, while the first holder's guard says {}; {} after {}",
        start.elapsed(),
        unreplicated.is_held(),
        next.token(),
        unreplicated.token()
    );
    ensure!(next.token() > unreplicated.token(), "{} after {}", next.token(), unreplicated.token());
    ensure!(resource.write(next.token()) && !resource.write(unreplicated.token()), "fencing");
    timeout(LONG / 3 + SLACK, unreplicated.lost()).await.context("no heartbeat reported the loss")?;
    println!("the loss was reported {:?} after the failover began", start.elapsed());
    next.check()?;
    next.release().await?;
    Ok(())
}

async fn grant_without_replicas_is_refused_before_a_failover() -> Result<()> {
    let sentinels = off(<RedisSentinels as Servers>::start)?;
    let url = sentinels.url_for_clients();
    let safe = client(&format!("{url}&min_replicas=1"), LONG).await?;
    let (lock, other) = (safe.lock("failover")?, client(&url, LONG).await?);
    // A replica acknowledges nothing before its first synchronization is complete.
    until("a replica acknowledges", async || match lock.try_acquire().await {
        Ok(Some(guard)) => Ok(guard.release().await.is_ok()),
        _ => Ok(false),
    })
    .await?;
    let former = off(|| stop_replicating(&sentinels))?;
    let refused = timeout(HANG, lock.try_acquire()).await?.map(|granted| granted.map(drop));
    println!("without replicas: {refused:?}");
    let error = refused.err().context("granted without a replica")?;
    ensure!(error.kind() == ErrorKind::Unavailable, "{error}");
    let left = off(|| sentinels.node(former).keys(&key(&name("failover"))))?;
    ensure!(left.is_empty(), "the refused grant is still there");
    ensure!(off(|| sentinels.failover())? != former, "no failover");
    let next = timeout(HANG, other.lock("failover")?.acquire()).await??;
    next.release().await?;
    Ok(())
}
