//! The least and the largest ttl, and holds that are kept over many ttls.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use lockkit_core::{
    Clock, ErrorKind, LockClient, LockGuard, LockName,
    backend::{Backend, Grant, Lifetime, Session},
};
use tokio::time::{Instant, sleep};

use crate::{
    Case, Hook,
    case::{Need, case},
    context::{Cx, kind},
    direct::take,
};

/// Pause between two readings of the remaining time.
const READ_PAUSE: Duration = Duration::from_millis(5);

pub(super) const CASES: &[Case] = &[
    case!(a_ttl_of_zero_is_refused: TruthfulErrors; bugs 52 53),
    case!(a_ttl_of_years_is_refused: TruthfulErrors; bugs 52),
    case!(a_short_ttl_is_raised_and_reported: BoundedLoss; bugs 53),
    case!(a_hold_never_outlives_the_ttl_that_is_reported: BoundedLoss; bugs 52 58),
    case!(many_locks_of_one_client_are_kept_over_many_ttls: BoundedLoss; bugs 12 37 38 43),
    case!(many_locks_cost_few_requests_to_keep: BoundedLoss,
        needs Need::Hook(Hook::Requests), Need::Ttl; bugs 12),
];

async fn build(cx: &Cx, ttl: Duration) -> Result<lockkit_core::Result<LockClient>> {
    Ok(LockClient::builder(cx.backend()?).ttl(ttl).clock(cx.clock()).build().await)
}

async fn a_ttl_of_zero_is_refused(cx: Cx) -> Result<()> {
    ensure!(kind(build(&cx, Duration::ZERO).await?)? == ErrorKind::InvalidConfig, "wrong error kind");
    Ok(())
}

async fn a_ttl_of_years_is_refused(cx: Cx) -> Result<()> {
    const TEN_YEARS: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
    for ttl in [TEN_YEARS, Duration::from_millis(u64::MAX), Duration::MAX] {
        ensure!(kind(build(&cx, ttl).await?)? == ErrorKind::InvalidConfig, "wrong error kind for {ttl:?}");
    }
    Ok(())
}

async fn a_short_ttl_is_raised_and_reported(cx: Cx) -> Result<()> {
    const SHORT: Duration = Duration::from_millis(1);
    let client = cx.client_with_ttl(SHORT).await?;
    let (granted, least) = (client.ttl(), cx.info().ttl_min);
    ensure!(granted >= least.max(SHORT), "{granted:?} is less than {least:?}");
    ensure!(
        (granted == Duration::MAX) == (cx.info().lifetime == Lifetime::Process),
        "a ttl of {granted:?} for {:?}",
        cx.info().lifetime
    );
    let name = cx.name();
    if granted == Duration::MAX {
        let guard = client.lock(name.as_str())?.acquire().await?;
        ensure!(guard.remaining() == Duration::MAX, "a deadline after {:?}", guard.remaining());
        return Ok(guard.release().await?);
    }
    // The store must keep to the reported ttl: a hold without renewals lasts at least until its deadline, and ends soon
    // after it. Load can only delay the next grant.
    let clock = cx.clock();
    let (silent, dead) = silent_with_least_ttl(&cx, &name, &clock).await?;
    let bounds = cx.bounds(silent.ttl());
    ensure!(bounds.ttl == granted, "a session has {:?}, a client {granted:?}", bounds.ttl);
    let next = cx.lock(&name).await?.acquire_timeout(bounds.takeover()).await?;
    let after = clock.now().since(dead.armed_at());
    let next = next.with_context(|| format!("still locked after {after:?}, with a ttl of {granted:?}"))?;
    ensure!(after >= bounds.validity, "granted to the next after {after:?}, of {:?}", bounds.validity);
    next.release().await?;
    let _ = silent.close().await;
    Ok(())
}

/// Returns a grant without renewals in a session of the least ttl. On a loaded machine such a session may end before it
/// is open or granted the lock, so this is tried several times.
async fn silent_with_least_ttl(cx: &Cx, name: &LockName, clock: &Clock) -> Result<(Arc<dyn Session>, Grant)> {
    const TRIES: usize = 10;
    let least = cx.info().ttl_min.max(Duration::from_millis(1));
    for _ in 0..TRIES {
        let silent = match cx.backend()?.open_session(least, clock.clone()).await {
            Ok(silent) => silent,
            Err(error) if error.is_temporary() => continue,
            Err(error) => return Err(error.into()),
        };
        if let Ok(dead) = take(&silent, name).await {
            return Ok((silent, dead));
        }
    }
    bail!("none of {TRIES} sessions of the least ttl was granted a free lock")
}

async fn a_hold_never_outlives_the_ttl_that_is_reported(cx: Cx) -> Result<()> {
    /// Renewals that are observed.
    const RENEWALS: u32 = 2;
    let (name, client) = (cx.name(), cx.client_with_ttl(cx.short_ttl() * 2).await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let (bounds, start) = (cx.bounds_of(&client), Instant::now());
    let before = cx.log().renewed(&name);
    while cx.log().renewed(&name) < before + RENEWALS as usize {
        let left = guard.remaining();
        ensure!(left <= bounds.validity, "{left:?} left of a ttl of {:?}", bounds.ttl);
        ensure!(guard.is_held(), "lost: {:?}", guard.check().err());
        ensure!(start.elapsed() < bounds.heartbeat * RENEWALS * 2 + bounds.slack, "not renewed");
        // The most is left right after a renewal.
        sleep(READ_PAUSE).await;
    }
    Ok(guard.release().await?)
}

async fn many_locks_of_one_client_are_kept_over_many_ttls(cx: Cx) -> Result<()> {
    // Not the least ttl: on a busy machine, requests for so many holds take a good part of it.
    let client = cx.client_with_ttl(cx.short_ttl() * 2).await?;
    let mut guards: Vec<LockGuard> = Vec::new();
    for _ in 0..cx.times(1_000, 150) {
        guards.push(client.lock(cx.name().as_str())?.acquire().await?);
    }
    let bounds = cx.bounds_of(&client);
    let (ttls, heartbeats) = (if cx.is_paused() { 5 } else { 2 }, 3);
    // Nothing must happen in this time: no hold ends.
    sleep(if bounds.ttl == Duration::MAX { bounds.heartbeat * heartbeats } else { bounds.ttl * ttls }).await;
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    ensure!(lost == 0, "{lost} of {} holds are lost", guards.len());
    ensure!(cx.log().renewals() >= guards.len(), "they were not even renewed");
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

/// Where holds live with a session, one request of a heartbeat checks this many of them.
const HOLDS_PER_REQUEST: u64 = 32;

async fn many_locks_cost_few_requests_to_keep(cx: Cx) -> Result<()> {
    // Not the least ttl: on a busy machine, one heartbeat for so many holds takes a good part of it.
    let (client, count) = (cx.client_with_ttl(cx.short_ttl() * 2).await?, cx.times(1_000, 150) as u64);
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
    let per_heartbeat = match cx.info().lifetime {
        Lifetime::Session => 2 + count.div_ceil(HOLDS_PER_REQUEST),
        _ => 2 + count,
    };
    let heartbeats = took.as_secs_f64() / bounds.heartbeat.as_secs_f64();
    cx.publish("requests per second", requests as f64 / took.as_secs_f64());
    // One heartbeat more at either end, and half as many again for those that are sent early or repeated.
    let allowed = ((heartbeats + 2.0) * 1.5 * per_heartbeat as f64) as u64;
    ensure!(requests <= allowed, "{requests} requests in {took:?} for {count} holds, {allowed} allowed");
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}
