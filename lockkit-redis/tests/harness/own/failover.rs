//! Failovers to a replica that was not told.

use anyhow::{Context, Result, ensure};
use lockkit_conformance::{Case, own_case};
use lockkit_core::ErrorKind;
use lockkit_testbed::RedisSentinels;
use tokio::time::{Instant, timeout};

use super::{
    super::{Servers, key},
    HANG, LONG, SLACK, Shelf, client, name, off, until,
};

pub(super) const CASES: [Case; 2] = [
    own_case!(a_failover_without_replication_overlaps_and_the_token_decides: R5 R6, P2 P3 P11; bugs 47),
    own_case!(a_grant_that_replicas_must_know_of_is_refused_before_such_a_failover: R5, P1 P12; bugs 47),
];

/// Cuts all replicas off, once they have all that there is.
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
    let (url, shelf) = (sentinels.url_for_clients(), Shelf::default());
    let (one, other) = (client(&url, LONG).await?, client(&url, LONG).await?);
    let before = one.lock("r5")?.acquire().await?;
    before.release().await?;
    let former = off(|| stop_replicating(&sentinels))?;
    let untold = one.lock("r5")?.acquire().await?;
    ensure!(shelf.write(untold.token()), "the first write");
    let start = Instant::now();
    let master = off(|| sentinels.failover())?;
    ensure!(master != former, "no failover");
    let next = timeout(HANG, other.lock("r5")?.acquire()).await??;
    println!(
        "granted again {:?} after the failover began, while the first holder's guard says {}; {} after {}",
        start.elapsed(),
        untold.is_held(),
        next.token(),
        untold.token()
    );
    ensure!(next.token() > untold.token(), "{} after {}", next.token(), untold.token());
    ensure!(shelf.write(next.token()) && !shelf.write(untold.token()), "fencing");
    timeout(LONG / 3 + SLACK, untold.lost()).await.context("the first holder is told by a beat")?;
    println!("the first holder was told {:?} after the failover began", start.elapsed());
    next.check()?;
    next.release().await?;
    Ok(())
}

async fn a_grant_that_replicas_must_know_of_is_refused_before_such_a_failover() -> Result<()> {
    let sentinels = off(<RedisSentinels as Servers>::start)?;
    let url = sentinels.url_for_clients();
    let safe = client(&format!("{url}&min_replicas=1&request_timeout=1s"), LONG).await?;
    let (lock, other) = (safe.lock("r5")?, client(&url, LONG).await?);
    // A replica answers for the first time when it has written all that it got.
    until("a replica counts", async || match lock.try_acquire().await {
        Ok(Some(guard)) => Ok(guard.release().await.is_ok()),
        _ => Ok(false),
    })
    .await?;
    let former = off(|| stop_replicating(&sentinels))?;
    let refused = timeout(HANG, lock.try_acquire()).await?.map(|granted| granted.map(drop));
    println!("without replicas: {refused:?}");
    let error = refused.err().context("granted without a replica")?;
    ensure!(error.kind() == ErrorKind::Unavailable, "{error}");
    let left = off(|| sentinels.node(former).keys(&key(&name("r5"))))?;
    ensure!(left.is_empty(), "refused, and left there");
    ensure!(off(|| sentinels.failover())? != former, "no failover");
    let next = timeout(HANG, other.lock("r5")?.acquire()).await??;
    next.release().await?;
    Ok(())
}
