//! Holds that end by themselves.

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

/// The shortest that there is.
const TTL: Duration = Duration::from_secs(1);

pub(super) const CASES: [Case; 1] =
    [own_case!(a_release_that_comes_after_the_end_leaves_the_next_hold_alone: R10, P7; bugs 50)];

pub(super) fn anywhere<S: Servers>() -> Vec<Case> {
    vec![
        own_case!(a_dead_holders_lock_goes_to_a_waiter_when_its_time_is_over<S>: R9, P4 P5; bugs 45),
        own_case!(a_renewal_after_the_end_finds_nothing_and_brings_nothing_back<S>: R11, P7 P11),
    ]
}

/// Redis tells nobody: the waiter's own timer does it.
async fn a_dead_holders_lock_goes_to_a_waiter_when_its_time_is_over<S: Servers>() -> Result<()> {
    let servers = off(S::start)?;
    let (holder, waiter) =
        (dead(&servers.url_for_clients(), TTL).await?, client(&servers.url_for_clients(), LONG).await?);
    let start = Instant::now();
    let grant = take(&holder, &name("r9")).await?;
    let guard = timeout(HANG, waiter.lock("r9")?.acquire()).await??;
    let took = start.elapsed();
    println!("{}: taken over {:?} after the last ttl's end", S::NAME, took.saturating_sub(TTL));
    ensure!(took >= TTL, "before its end: after {took:?}");
    ensure!(took < TTL + SLACK, "by no timer: after {took:?}");
    ensure!(guard.token() > grant.token(), "{} after {}", guard.token(), grant.token());
    guard.release().await?;
    Ok(())
}

async fn a_release_that_comes_after_the_end_leaves_the_next_hold_alone() -> Result<()> {
    let server = off(<Redis as Servers>::start)?;
    let proxy = Proxy::start_redis(server.endpoint())?;
    let url = format!("{}&request_timeout=60s", url_at(&proxy.endpoint()));
    let (late, next, key) =
        (dead(&url, TTL).await?, client(&server.url_for_clients(), LONG).await?, key(&name("r10")));
    let grant = take(&late, &name("r10")).await?;
    proxy.set(Direction::Requests, Flow::Hold);
    let releasing = tokio::spawn({
        let (late, grant) = (late.clone(), grant.clone());
        async move { late.release(&grant).await }
    });
    until("the release is under way", async || Ok(proxy.holds(&grant.claim().to_string()))).await?;
    let guard = timeout(HANG, next.lock("r10")?.acquire()).await??;
    let value = off(|| server.cli(&["GET", &key]))?;
    proxy.pass();
    timeout(HANG, releasing).await??.context("a release that is done")?;
    ensure!(off(|| server.cli(&["GET", &key]))? == value, "the late release has ended the next hold");
    guard.check()?;
    guard.release().await?;
    Ok(())
}

async fn a_renewal_after_the_end_finds_nothing_and_brings_nothing_back<S: Servers>() -> Result<()> {
    let servers = off(S::start)?;
    let (late, key) = (dead(&servers.url_for_clients(), TTL).await?, key(&name("r11")));
    let grant = take(&late, &name("r11")).await?;
    until("its time is over", async || Ok(!off(|| exists(&servers, &key))?)).await?;
    let beat = late.renew(std::slice::from_ref(&grant)).await;
    ensure!(matches!(beat.holds[..], [(_, Renewal::Gone)]), "{beat:?}");
    ensure!(!off(|| exists(&servers, &key))?, "the renewal brought it back");
    Ok(())
}
