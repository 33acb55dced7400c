//! Holds that expire.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockkit_conformance::{Case, own_case};
use lockkit_core::backend::Renewal;
use lockkit_testbed::{Direction, Flow, Proxy, Redis};
use tokio::time::{Instant, timeout};

use super::{
    super::{Servers, key, servers::url_at},
    HANG, LONG, SLACK, client, dead, exists, name, off, take, until,
};

/// The shortest ttl.
const TTL: Duration = Duration::from_secs(1);

pub(super) const CASES: [Case; 1] =
    [own_case!(release_after_expiry_does_not_end_the_next_hold: NoForeignRelease; bugs 50)];

pub(super) fn anywhere<S: Servers>() -> Vec<Case> {
    vec![
        own_case!(lock_of_a_dead_holder_is_granted_when_it_expires<S>: BoundedTakeover NoLostWakeUp; bugs 45),
        own_case!(renewal_after_expiry_restores_nothing<S>: NoForeignRelease BoundedLoss),
    ]
}

/// Redis reports no expiry: the waiter's own timer makes it re-check.
async fn lock_of_a_dead_holder_is_granted_when_it_expires<S: Servers>() -> Result<()> {
    let servers = off(S::start)?;
    let (holder, waiter) =
        (dead(&servers.url_for_clients(), TTL).await?, client(&servers.url_for_clients(), LONG).await?);
    let start = Instant::now();
    let grant = take(&holder, &name("dead-holder")).await?;
    let guard = timeout(HANG, waiter.lock("dead-holder")?.acquire()).await??;
    let took = start.elapsed();
    println!("{}: taken over {:?} after the end of the ttl", S::NAME, took.saturating_sub(TTL));
    ensure!(took >= TTL, "before the end of the ttl: after {took:?}");
    ensure!(took < TTL + SLACK, "not by the timer: after {took:?}");
    ensure!(guard.token() > grant.token(), "{} after {}", guard.token(), grant.token());
    guard.release().await?;
    Ok(())
}

async fn release_after_expiry_does_not_end_the_next_hold() -> Result<()> {
    let server = off(<Redis as Servers>::start)?;
    let proxy = Proxy::start_redis(server.endpoint())?;
    let url = format!("{}&request_timeout=60s", url_at(&proxy.endpoint()));
    let (late, next, key) =
        (dead(&url, TTL).await?, client(&server.url_for_clients(), LONG).await?, key(&name("late-release")));
    let grant = take(&late, &name("late-release")).await?;
    proxy.set(Direction::Requests, Flow::Hold);
    let releasing = tokio::spawn({
        let (late, grant) = (late.clone(), grant.clone());
        async move { late.release(&grant).await }
    });
    until("the release is under way", async || Ok(proxy.holds(&grant.claim().to_string()))).await?;
    let guard = timeout(HANG, next.lock("late-release")?.acquire()).await??;
    let value = off(|| server.cli(&["GET", &key]))?;
    proxy.pass();
    timeout(HANG, releasing).await??.context("the late release failed")?;
    ensure!(off(|| server.cli(&["GET", &key]))? == value, "the late release has ended the next hold");
    guard.check()?;
    guard.release().await?;
    Ok(())
}

async fn renewal_after_expiry_restores_nothing<S: Servers>() -> Result<()> {
    let servers = off(S::start)?;
    let (late, key) = (dead(&servers.url_for_clients(), TTL).await?, key(&name("late-renewal")));
    let grant = take(&late, &name("late-renewal")).await?;
    until("the lock expires", async || Ok(!off(|| exists(&servers, &key))?)).await?;
    let answered = async {
        loop {
            let heartbeat = late.renew(std::slice::from_ref(&grant)).await;
            // A quarter of the ttl is short for an answer on a busy machine.
            if !matches!(heartbeat.holds[..], [(_, Renewal::Unknown(_))]) {
                break heartbeat;
            }
        }
    };
    let heartbeat = timeout(HANG, answered).await.context("no heartbeat is answered")?;
    ensure!(matches!(heartbeat.holds[..], [(_, Renewal::Gone)]), "{heartbeat:?}");
    ensure!(!off(|| exists(&servers, &key))?, "the renewal restored the lock");
    Ok(())
}
