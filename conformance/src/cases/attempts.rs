//! Attempts that end without a grant: busy, timed out, unanswered.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lockkit_core::{ErrorKind, limits::TRY_ANSWER_MAX};
use tokio::time::{Instant, sleep};

use crate::{
    Case, Hook, LinkFault, StoreFault,
    case::{Need, case},
    context::{Cx, busy_or_unavailable, kind, within},
};

pub(super) const CASES: &[Case] = &[
    case!(many_tries_are_busy_and_leave_nothing: NoOrphan TruthfulErrors; bugs 30),
    case!(tries_over_resetting_connections_are_never_granted: TimedExclusion TruthfulErrors,
        needs Need::Hook(Hook::Reset); bugs 13 30),
    case!(a_timeout_leaves_nothing_that_delays_others: NoOrphan; bugs 6 16 31),
    case!(timeout_returns_none_in_time: TruthfulErrors; bugs 31),
    case!(silence_is_never_reported_as_busy: TruthfulErrors, needs Need::Hook(Hook::Freeze); bugs 55 63),
    case!(timed_out_acquires_leave_no_entries: NoResidue, needs Need::Hook(Hook::Entries); bugs 16 54),
    case!(a_zero_timeout_is_a_try: TruthfulErrors; bugs 53),
];

/// Clients that try at the same time.
const CLIENTS: usize = 50;

async fn many_tries_are_busy_and_leave_nothing(cx: Cx) -> Result<()> {
    let name = cx.name();
    let held = cx.lock(&name).await?.acquire().await?;
    let mut trying = Vec::new();
    let tries = cx.times(200, 20);
    for _ in 0..CLIENTS {
        let lock = cx.lock(&name).await?;
        trying.push(tokio::spawn(async move {
            for _ in 0..tries {
                ensure!(lock.try_acquire().await?.is_none(), "a held lock was granted");
            }
            Ok(())
        }));
    }
    for client in trying {
        client.await??;
    }
    let next = cx.lock(&name).await?;
    held.release().await?;
    // An entry that a try has left would be granted now.
    let guard = next.try_acquire().await?.context("the first try after the release is granted")?;
    Ok(guard.release().await?)
}

async fn tries_over_resetting_connections_are_never_granted(cx: Cx) -> Result<()> {
    const TRIES: usize = 100;
    /// Resets while the tries are under way.
    const RESETS: usize = 5;
    let (link, name) = (cx.link().await?, cx.name());
    let held = cx.lock(&name).await?.acquire().await?;
    let mut locks = Vec::new();
    for _ in 0..CLIENTS / 5 {
        let client = cx.client_of(cx.observe(link.backend()?), cx.long_ttl()).await?;
        locks.push(client.lock(name.as_str())?);
    }
    for _ in 0..cx.times(20, 5) {
        let mut tries = Vec::new();
        for lock in &locks {
            let lock = lock.clone();
            tries.push(tokio::spawn(async move {
                for _ in 0..TRIES / (CLIENTS / 5) {
                    busy_or_unavailable(lock.try_acquire().await)?;
                }
                anyhow::Ok(())
            }));
        }
        for _ in 0..RESETS {
            link.inflict(LinkFault::Reset).await?;
            sleep(cx.part_of(Duration::from_millis(20))).await;
        }
        for lock in tries {
            lock.await??;
        }
    }
    link.heal().await?;
    let other = cx.client().await?;
    held.release().await?;
    let bound = cx.bounds_of(&other).cleanup();
    let next = other.lock(name.as_str())?.acquire_timeout(bound).await?;
    Ok(next.context("a try left an entry")?.release().await?)
}

async fn a_timeout_leaves_nothing_that_delays_others(cx: Cx) -> Result<()> {
    let name = cx.name();
    let held = cx.lock(&name).await?.acquire().await?;
    let gone = cx.lock(&name).await?;
    busy_or_unavailable(gone.acquire_timeout(Duration::from_millis(200)).await)?;
    held.release().await?;
    let next = cx.client().await?;
    let bound = cx.bounds_of(&next).cleanup();
    let guard = next.lock(name.as_str())?.acquire_timeout(bound).await?;
    Ok(guard.context("a waiter that timed out is still in the way")?.release().await?)
}

async fn timeout_returns_none_in_time(cx: Cx) -> Result<()> {
    let name = cx.name();
    let held = cx.lock(&name).await?.acquire().await?;
    let waiting = cx.lock(&name).await?;
    // Long enough for the answer of a loaded server: without one, `Unavailable` would be right.
    let (limit, start) = (Duration::from_secs(5), Instant::now());
    ensure!(waiting.acquire_timeout(limit).await?.is_none(), "two clients hold it");
    let (took, slack) = (start.elapsed(), cx.bounds(cx.long_ttl()).slack);
    ensure!(took >= limit && took <= limit + slack, "returned after {took:?} instead of {limit:?}");
    Ok(held.release().await?)
}

async fn silence_is_never_reported_as_busy(cx: Cx) -> Result<()> {
    let name = cx.name();
    let held = cx.lock(&name).await?.acquire().await?;
    let asking = cx.lock(&name).await?;
    ensure!(asking.try_acquire().await?.is_none(), "busy while the store answers");
    cx.inflict(StoreFault::Freeze).await?;
    let slack = cx.bounds(cx.long_ttl()).slack;
    let start = Instant::now();
    let of_try = asking.try_acquire().await;
    let took = start.elapsed();
    let of_wait = asking.acquire_timeout(Duration::from_millis(300)).await;
    cx.inflict(StoreFault::Thaw).await?;
    ensure!(kind(of_try)? == ErrorKind::Unavailable, "silence was reported as something else");
    ensure!(kind(of_wait)? == ErrorKind::Unavailable, "silence was reported as something else");
    ensure!(took <= TRY_ANSWER_MAX + slack, "a try took {took:?}");
    Ok(within(slack + cx.bounds(cx.long_ttl()).recheck, "the release", held.release()).await??)
}

async fn timed_out_acquires_leave_no_entries(cx: Cx) -> Result<()> {
    let name = cx.name();
    let held = cx.lock(&name).await?.acquire().await?;
    let before = cx.entries(&name).await?;
    let client = cx.client().await?;
    let waiting = client.lock(name.as_str())?;
    for _ in 0..cx.times(1_000, 20) {
        let limit = Duration::from_millis(1 + cx.random(10));
        busy_or_unavailable(waiting.acquire_timeout(limit).await)?;
    }
    let clean = async || Ok(cx.entries(&name).await? == before);
    cx.eventually(cx.bounds_of(&client).cleanup(), "only the holder's entry is left", clean).await?;
    Ok(held.release().await?)
}

async fn a_zero_timeout_is_a_try(cx: Cx) -> Result<()> {
    let name = cx.name();
    let (one, other) = (cx.lock(&name).await?, cx.lock(&name).await?);
    let held = one.acquire_timeout(Duration::ZERO).await?.context("a free lock is granted")?;
    ensure!(other.acquire_timeout(Duration::ZERO).await?.is_none(), "two clients hold it");
    Ok(held.release().await?)
}
