//! A server whose wall clock steps: the one thing that a lock with an absolute end cannot survive.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockkit_conformance::{Case, own_case};
use lockkit_core::LockName;
use lockkit_testbed::{Redis, ServerClock};
use tokio::time::timeout;

use super::{
    super::{Servers, key, rights::user, servers::rights},
    HANG, SLACK, Shelf, client, dead, has_waiter, name, off, take, until,
};

pub(super) const CASES: [Case; 2] = [
    own_case!(a_clock_put_forward_ends_a_hold_and_its_token_is_refused: R8, P2 P3 P11),
    own_case!(a_clock_put_back_delays_no_waiter_of_a_living_holder: R8, P3 P4 P5),
];

/// So much longer than the machine may be late that a beat is told from a deadline.
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
    let (one, other, shelf) = (client(&url, TTL).await?, client(&url, TTL).await?, Shelf::default());
    let early = one.lock("r8")?.acquire().await?;
    ensure!(shelf.write(early.token()), "the first write");
    clock.step_forward(2 * TTL)?;
    let next = other.lock("r8")?.try_acquire().await?.context("the clock has ended the first hold")?;
    println!("two believe to hold the lock: {}", early.is_held());
    ensure!(next.token() > early.token(), "{} after {}", next.token(), early.token());
    ensure!(shelf.write(next.token()) && !shelf.write(early.token()), "fencing");
    timeout(TTL / 3 + SLACK, early.lost()).await.context("the loss is told by a beat")?;
    next.release().await?;
    Ok(())
}

async fn a_clock_put_back_delays_no_waiter_of_a_living_holder() -> Result<()> {
    let (clock, redis) = off(start)?;
    let url = redis.url_for_clients();
    let (one, other) = (client(&url, TTL).await?, client(&url, TTL).await?);
    let (lost, dead) = (dead(&url, TTL).await?, name("r8-dead"));
    let (guard, grant) = (one.lock("r8")?.acquire().await?, take(&lost, &dead).await?);
    let waiting = tokio::spawn({
        let lock = other.lock("r8")?;
        async move { lock.acquire().await }
    });
    has_waiter(&other, &name("r8")).await?;
    clock.step_back(HOUR)?;
    let remaining = |name: &LockName| off(|| redis.cli(&["PTTL", &key(name)]));
    let is_mended = async || Ok(remaining(&name("r8"))?.number() <= i64::try_from(TTL.as_millis()).ok());
    until("a beat has set the holder's end anew", is_mended).await?;
    guard.check()?;
    let first = guard.token();
    guard.release().await?;
    let second = timeout(HANG, waiting).await???;
    ensure!(second.token() > first, "{} after {first}", second.token());
    // Nobody sets a dead holder's end anew: this is what is not promised.
    let late = remaining(&dead)?.number().unwrap_or_default();
    ensure!(late > 3_500_000, "the dead holder's lock ends in {late} ms");
    clock.step_forward(HOUR)?;
    let third = timeout(HANG, other.lock("r8-dead")?.acquire()).await??;
    ensure!(third.token() > grant.token(), "{} after {}", third.token(), grant.token());
    Ok(())
}
