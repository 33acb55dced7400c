//! Sets of locks, which are acquired, lost and released together.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use lockkit_core::{ErrorKind, LockClient, LockName, RunError};
use tokio::time::sleep;

use super::{cancel::drop_after, exclusion::USED};
use crate::{
    Case, Hook,
    case::{Need, case},
    context::{Cx, rises, within},
};

pub(super) const CASES: &[Case] = &[
    case!(several_locks_are_acquired_by_all_callers_without_deadlock: TimedExclusion NoLostWakeUp),
    case!(a_set_of_locks_is_all_or_nothing: NoOrphan TruthfulErrors),
    case!(loss_of_one_lock_is_the_loss_of_the_set: BoundedLoss, needs Need::Hook(Hook::DeleteEntries)),
    case!(cancelled_set_leaves_nothing: NoOrphan),
];

/// Returns new names, in the order in which a set acquires them.
fn names(cx: &Cx, count: usize) -> Vec<LockName> {
    let mut names: Vec<LockName> = (0..count).map(|_| cx.name()).collect();
    names.sort();
    names
}

/// Checks that a client is granted each of these locks within this time, and releases it.
async fn are_free_soon(client: &LockClient, names: &[&LockName], bound: Duration) -> Result<()> {
    for name in names {
        let guard = client.lock(name.as_str())?.acquire_timeout(bound).await?;
        guard.with_context(|| format!("{name:?} is not free within {bound:?}"))?.release().await?;
    }
    Ok(())
}

async fn several_locks_are_acquired_by_all_callers_without_deadlock(cx: Cx) -> Result<()> {
    const NAMES: usize = 6;
    let names = names(&cx, NAMES);
    let holders: Arc<Vec<AtomicU32>> = Arc::new((0..NAMES).map(|_| AtomicU32::new(0)).collect());
    let mut callers = Vec::new();
    for _ in 0..cx.times(20, 5) {
        let (client, mut sets) = (cx.client().await?, Vec::new());
        for _ in 0..cx.times(20, 4) {
            // Neighbours on a circle, from a random place on: many sets overlap, and each order is somebody's.
            let (first, count) = (cx.random(NAMES as u64) as usize, 2 + cx.random(3) as usize);
            let chosen: Vec<usize> = (first..first + count).map(|place| place % NAMES).collect();
            let set = client.lock_all(chosen.iter().map(|index| &names[*index]))?;
            sets.push((chosen, set));
        }
        let holders = Arc::clone(&holders);
        callers.push(tokio::spawn(async move {
            for (chosen, set) in sets {
                let guard = set.acquire().await?;
                for index in &chosen {
                    ensure!(holders[*index].fetch_add(1, Ordering::SeqCst) == 0, "two callers hold one lock");
                }
                sleep(USED).await;
                for index in &chosen {
                    holders[*index].fetch_sub(1, Ordering::SeqCst);
                }
                guard.release().await?;
            }
            anyhow::Ok(())
        }));
    }
    let all = async {
        for caller in callers {
            caller.await??;
        }
        anyhow::Ok(())
    };
    within(cx.bounds(cx.long_ttl()).takeover(), "every caller is granted its sets", all).await?
}

async fn a_set_of_locks_is_all_or_nothing(cx: Cx) -> Result<()> {
    let (names, bound) = (names(&cx, 3), cx.bounds(cx.long_ttl()).cleanup());
    let (client, other) = (cx.client().await?, cx.client().await?);
    let set = client.lock_all(&names)?;
    for busy in &names {
        let held = other.lock(busy.as_str())?.acquire().await?;
        ensure!(set.try_acquire().await?.is_none(), "a set was granted with a lock that another one holds");
        // The time limit may be shorter than the requests to a loaded server.
        match set.acquire_timeout(Duration::from_millis(50)).await {
            Ok(guard) => ensure!(guard.is_none(), "a set was granted with a lock that another one holds"),
            Err(error) => ensure!(error.kind() == ErrorKind::Unavailable, "{error}"),
        }
        let free: Vec<&LockName> = names.iter().filter(|name| *name != busy).collect();
        are_free_soon(&other, &free, bound).await?;
        ensure!(held.is_held(), "the holder was disturbed");
        let token = held.token();
        held.release().await?;
        let guard = set.acquire_timeout(bound).await?.context("all locks of the set are free")?;
        rises(token, guard.token(busy).context("a token of each lock")?)?;
        for name in &names {
            ensure!(other.lock(name.as_str())?.try_acquire().await?.is_none(), "{name:?} is held twice");
        }
        guard.release().await?;
        are_free_soon(&other, &names.iter().collect::<Vec<_>>(), bound).await?;
    }
    Ok(())
}

async fn loss_of_one_lock_is_the_loss_of_the_set(cx: Cx) -> Result<()> {
    let (names, client) = (names(&cx, 3), cx.steady_client().await?);
    let guard = client.lock_all(&names)?.acquire().await?;
    cx.inflict(crate::StoreFault::DeleteEntries(names[1].clone())).await?;
    let bounds = cx.bounds_of(&client);
    let work = guard.run(std::future::pending::<()>());
    let lost = match within(bounds.notice(1)?, "the work is dropped", work).await? {
        Err(RunError::Stopped(lost)) => lost,
        other => bail!("not stopped by the loss: {other:?}"),
    };
    ensure!(lost.kind() == ErrorKind::Lost && lost.lock() == Some(&names[1]), "not the first loss: {lost}");
    ensure!(!guard.is_held() && guard.remaining().is_zero(), "the set is held without one of its locks");
    let released = guard.release().await;
    ensure!(released.is_err_and(|error| error.lock() == Some(&names[1])), "the release hides the loss");
    let other = cx.client().await?;
    are_free_soon(&other, &names.iter().collect::<Vec<_>>(), cx.bounds_of(&other).cleanup()).await
}

async fn cancelled_set_leaves_nothing(cx: Cx) -> Result<()> {
    let (names, bound) = (names(&cx, 3), cx.bounds(cx.long_ttl()).cleanup());
    let (client, other) = (cx.client().await?, cx.client().await?);
    let (set, all) = (client.lock_all(&names)?, names.iter().collect::<Vec<_>>());
    for number in 0..cx.times(200, 20) {
        // Each of them, or none, is busy: the set is dropped while it acquires, or while it waits.
        let held = match names.get(number % (names.len() + 1)) {
            Some(busy) => Some(other.lock(busy.as_str())?.acquire_timeout(bound).await?.context("not free")?),
            None => None,
        };
        if cx.is_paused() {
            drop_after(number / 4 % 50, set.acquire()).await;
        } else {
            // Polls say little about the progress at a server, so drop after a part of some round trips.
            let _ = tokio::time::timeout(cx.part_of(Duration::from_millis(12)), set.acquire()).await;
        }
        if let Some(held) = held {
            held.release().await?;
        }
        are_free_soon(&other, &all, bound).await.context("a cancelled set is in the way")?;
    }
    Ok(())
}
