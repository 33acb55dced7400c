//! Lifetimes at their edges, and how long they are kept up.

use std::time::Duration;

use anyhow::{Result, ensure};
use lockkit_core::{ErrorKind, LockClient, LockGuard, backend::Lifetime};
use tokio::time::{Instant, sleep};

use crate::{
    Case, Hook,
    case::{Need, case},
    context::{Cx, kind},
};

pub(super) const CASES: &[Case] = &[
    case!(a_ttl_of_zero_is_refused: C6, P12; bugs 52 53),
    case!(a_ttl_of_years_is_refused: C6, P12; bugs 52),
    case!(a_short_ttl_is_raised_and_reported: C6, P11; bugs 53),
    case!(a_hold_never_outlives_the_ttl_that_is_reported: C6, P11; bugs 52 58),
    case!(many_locks_of_one_client_are_kept_over_many_ttls: C16, P11; bugs 12 37 38 43),
    case!(many_locks_cost_few_requests_to_keep: C16, P11,
        needs Need::Hook(Hook::Requests), Need::Ttl; bugs 12),
];

async fn build(cx: &Cx, ttl: Duration) -> Result<lockkit_core::Result<LockClient>> {
    Ok(LockClient::builder(cx.backend()?).ttl(ttl).clock(cx.clock()).build().await)
}

async fn a_ttl_of_zero_is_refused(cx: Cx) -> Result<()> {
    ensure!(kind(build(&cx, Duration::ZERO).await?)? == ErrorKind::InvalidConfig, "another kind");
    Ok(())
}

async fn a_ttl_of_years_is_refused(cx: Cx) -> Result<()> {
    const TEN_YEARS: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
    for ttl in [TEN_YEARS, Duration::from_millis(u64::MAX), Duration::MAX] {
        ensure!(kind(build(&cx, ttl).await?)? == ErrorKind::InvalidConfig, "another kind for {ttl:?}");
    }
    Ok(())
}

async fn a_short_ttl_is_raised_and_reported(cx: Cx) -> Result<()> {
    let client = cx.client_with_ttl(Duration::from_millis(1)).await?;
    let (granted, least) = (client.ttl(), cx.info().ttl_min);
    ensure!(granted >= least.max(Duration::from_millis(1)), "{granted:?} is less than {least:?}");
    ensure!(
        (granted == Duration::MAX) == (cx.info().lifetime == Lifetime::Process),
        "a ttl of {granted:?} for {:?}",
        cx.info().lifetime
    );
    let name = cx.name();
    let guard = client.lock(name.as_str())?.acquire().await?;
    ensure!(guard.is_held(), "held with the least ttl");
    // On a loaded machine so short a ttl may pass before the release is sent.
    drop(guard);
    Ok(())
}

async fn a_hold_never_outlives_the_ttl_that_is_reported(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.short_client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let (left, bounds) = (guard.remaining(), cx.bounds_of(&client));
    ensure!(left <= bounds.validity, "{left:?} left of a ttl of {:?}", bounds.ttl);
    Ok(guard.release().await?)
}

async fn many_locks_of_one_client_are_kept_over_many_ttls(cx: Cx) -> Result<()> {
    let client = cx.short_client().await?;
    let mut guards: Vec<LockGuard> = Vec::new();
    for _ in 0..cx.times(1_000, 150) {
        guards.push(client.lock(cx.name().as_str())?.acquire().await?);
    }
    let bounds = cx.bounds_of(&client);
    let (ttls, beats) = (if cx.is_paused() { 5 } else { 2 }, 3);
    // That nothing happens for so long: no hold ends.
    sleep(if bounds.ttl == Duration::MAX { bounds.beat * beats } else { bounds.ttl * ttls }).await;
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    ensure!(lost == 0, "{lost} of {} holds are lost", guards.len());
    ensure!(cx.log().renewals() >= guards.len(), "they were not even renewed");
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

/// Requests of one beat where all holds live by a session: its own, and the reading of this many holds at a time.
const HOLDS_PER_REQUEST: u64 = 32;

async fn many_locks_cost_few_requests_to_keep(cx: Cx) -> Result<()> {
    let (client, count) = (cx.short_client().await?, cx.times(1_000, 150) as u64);
    let mut guards: Vec<LockGuard> = Vec::new();
    for _ in 0..count {
        guards.push(client.lock(cx.name().as_str())?.acquire().await?);
    }
    let (bounds, start) = (cx.bounds_of(&client), Instant::now());
    let before = cx.requests().await?;
    for _ in 0..3 {
        cx.renewed(&guards, bounds).await?;
    }
    let (requests, took) = (cx.requests().await? - before, start.elapsed());
    let per_beat = match cx.info().lifetime {
        Lifetime::Session => 2 + count.div_ceil(HOLDS_PER_REQUEST),
        _ => 2 + count,
    };
    let beats = took.as_secs_f64() / bounds.beat.as_secs_f64();
    cx.publish("requests per second", requests as f64 / took.as_secs_f64());
    // One beat more at either end, and half as many again for those that come early or are repeated.
    let allowed = ((beats + 2.0) * 1.5 * per_beat as f64) as u64;
    ensure!(requests <= allowed, "{requests} requests in {took:?} for {count} holds, {allowed} allowed");
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}
