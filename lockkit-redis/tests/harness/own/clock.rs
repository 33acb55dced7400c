//! A server whose wall clock steps. A lock that expires at an absolute time cannot survive that.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockkit_conformance::{Case, own_case};
use lockkit_core::LockName;
use lockkit_testbed::{Redis, ServerClock};
use tokio::time::timeout;

use super::{
    super::{Servers, key, rights::user, servers::rights},
    FencedResource, HANG, SLACK, client, dead, has_waiter, name, off, take, until,
};

pub(super) const CASES: [Case; 2] = [
    own_case!(a_clock_put_forward_ends_a_hold_and_its_token_is_refused: FencedExclusion TokenOrder BoundedLoss),
    own_case!(a_clock_put_back_delays_no_waiter_of_a_living_holder: TokenOrder BoundedTakeover NoLostWakeUp),
];

/// Long enough to tell a heartbeat from a deadline, however late the machine is.
const TTL: Duration = Duration::from_secs(4 * SLACK.as_secs());

const HOUR: Duration = Duration::from_secs(60 * 60);

fn start() -> Result<(ServerClock, Redis)> {
    let clock = ServerClock::new()?;
    let redis = Redis::start_on(&clock)?;
    let rights = rights();
    redis.cli(&[&["ACL", "SETUSER"], &*user(&rights)].concat())?;
    Ok((clock, redis))
}

async fn a_clock_put_forward_ends_a_hold_and_its_token_is_refused() -> Result<()> {
    let (clock, redis) = off(start)?;
    let url = redis.url_for_clients();
    let (one, other, resource) =
        (client(&url, TTL).await?, client(&url, TTL).await?, FencedResource::default());
    let early = one.lock("clock")?.acquire().await?;
    ensure!(resource.write(early.token()), "the first write");
    clock.step_forward(2 * TTL)?;
    let next = other.lock("clock")?.try_acquire().await?.context("the clock has ended the first hold")?;
    println!("two clients believe that they hold the lock: {}", early.is_held());
    ensure!(next.token() > early.token(), "{} after {}", next.token(), early.token());
    ensure!(resource.write(next.token()) && !resource.write(early.token()), "fencing");
    timeout(TTL / 3 + SLACK, early.lost()).await.context("no heartbeat reported the loss")?;
    next.release().await?;
    Ok(())
}

async fn a_clock_put_back_delays_no_waiter_of_a_living_holder() -> Result<()> {
    let (clock, redis) = off(start)?;
    let url = redis.url_for_clients();
    let (one, other) = (client(&url, TTL).await?, client(&url, TTL).await?);
    let (lost, dead) = (dead(&url, TTL).await?, name("clock-dead"));
    let (guard, grant) = (one.lock("clock")?.acquire().await?, take(&lost, &dead).await?);
    let waiting = tokio::spawn({
        let lock = other.lock("clock")?;
        async move { lock.acquire().await }
    });
    has_waiter(&other, &name("clock")).await?;
    clock.step_back(HOUR)?;
    let remaining = |name: &LockName| off(|| redis.cli(&["PTTL", &key(name)]));
    let is_restarted =
        async || Ok(remaining(&name("clock"))?.number() <= i64::try_from(TTL.as_millis()).ok());
    until("a heartbeat has restarted the holder's lifetime", is_restarted).await?;
    guard.check()?;
    let first = guard.token();
    guard.release().await?;
    let second = timeout(HANG, waiting).await???;
    ensure!(second.token() > first, "{} after {first}", second.token());
    // Nobody renews a dead holder's lock, so the step delays its end: no promise covers that.
    let late = remaining(&dead)?.number().unwrap_or_default();
    ensure!(late > 3_500_000, "the dead holder's lock ends in {late} ms");
    clock.step_forward(HOUR)?;
    let third = timeout(HANG, other.lock("clock-dead")?.acquire()).await??;
    ensure!(third.token() > grant.token(), "{} after {}", third.token(), grant.token());
    Ok(())
}
