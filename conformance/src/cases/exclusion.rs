//! One holder at a time, and tokens that rise.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lockkit_core::{ErrorKind, Lock, LockClient};
use tokio::time::sleep;

use crate::{
    Case, Hook,
    case::{Need, case},
    context::{Cx, kind, within},
};

pub(super) const CASES: &[Case] = &[
    case!(a_held_lock_is_busy_to_others_and_free_after_its_release: TimedExclusion TokenOrder; bugs 13),
    case!(a_guarded_counter_loses_no_increment: TimedExclusion; bugs 2 24),
    case!(two_locks_of_one_client_exclude_each_other: TimedExclusion; bugs 4),
    case!(many_first_acquires_of_a_fresh_client_are_all_served: TimedExclusion TruthfulErrors; bugs 51 68),
    case!(a_guard_is_released_from_another_thread: Reentry; bugs 48),
    case!(a_clean_release_leaves_no_entry: NoResidue, needs Need::Hook(Hook::Entries); bugs 17 35),
    case!(a_lock_works_on_a_current_thread_runtime: TimedExclusion NoLostWakeUp,
        needs Need::RealTime; bugs 70),
    case!(a_blocking_call_inside_async_code_is_refused: TruthfulErrors; bugs 70),
];

/// How long a hold is used. Most of a shorter hold would pass in the round trips of its grant and release, in which a
/// second holder does no harm.
pub(super) const USED: Duration = Duration::from_millis(3);

async fn a_held_lock_is_busy_to_others_and_free_after_its_release(cx: Cx) -> Result<()> {
    let name = cx.name();
    let (one, other) = (cx.lock(&name).await?, cx.lock(&name).await?);
    let held = one.acquire().await?;
    ensure!(other.try_acquire().await?.is_none(), "two clients hold {name:?}");
    ensure!(held.is_held(), "the holder is not disturbed");
    let first = held.token();
    held.release().await?;
    let next = other.try_acquire().await?.context("free after its release")?;
    ensure!(next.token() > first, "{} is not larger than {first}", next.token());
    Ok(next.release().await?)
}

async fn a_guarded_counter_loses_no_increment(cx: Cx) -> Result<()> {
    let (name, mut locks) = (cx.name(), Vec::new());
    for _ in 0..8 {
        locks.push(cx.lock(&name).await?);
    }
    counts_exactly(locks, cx.times(500, 12)).await
}

/// Counts under the same lock in several tasks: two holders at once lose an increment.
pub(super) async fn counts_exactly(locks: Vec<Lock>, rounds: usize) -> Result<()> {
    let (counter, due) = (Arc::new(AtomicU64::new(0)), (locks.len() * rounds) as u64);
    let count = |lock: Lock| {
        let counter = Arc::clone(&counter);
        tokio::spawn(async move {
            for _ in 0..rounds {
                let guard = lock.acquire().await?;
                let seen = counter.load(Ordering::SeqCst);
                sleep(USED).await;
                counter.store(seen + 1, Ordering::SeqCst);
                guard.release().await?;
            }
            lockkit_core::Result::<()>::Ok(())
        })
    };
    for task in locks.into_iter().map(count).collect::<Vec<_>>() {
        task.await??;
    }
    let counted = counter.load(Ordering::SeqCst);
    ensure!(counted == due, "{counted} of {due} increments are there");
    Ok(())
}

async fn two_locks_of_one_client_exclude_each_other(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.client().await?);
    let (one, other) = (client.lock(name.as_str())?, client.lock(name.as_str())?);
    let held = one.acquire().await?;
    ensure!(other.try_acquire().await?.is_none(), "one session holds {name:?} twice");
    held.release().await?;
    let next = other.try_acquire().await?.context("free after its release")?;
    Ok(next.release().await?)
}

async fn many_first_acquires_of_a_fresh_client_are_all_served(cx: Cx) -> Result<()> {
    const NAMES: usize = 10;
    let client = cx.client().await?;
    let locks: Vec<_> = (0..NAMES).map(|_| (cx.name(), Arc::new(AtomicBool::new(false)))).collect();
    let mut tasks = Vec::new();
    for number in 0..100 {
        let (name, inside) = &locks[number % NAMES];
        let (lock, inside) = (client.lock(name.as_str())?, Arc::clone(inside));
        tasks.push(tokio::spawn(async move {
            let guard = lock.acquire().await?;
            ensure!(!inside.swap(true, Ordering::SeqCst), "two callers hold {:?}", guard.name());
            sleep(USED).await;
            inside.store(false, Ordering::SeqCst);
            Ok(guard.release().await?)
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn a_guard_is_released_from_another_thread(cx: Cx) -> Result<()> {
    let name = cx.name();
    let guard = cx.lock(&name).await?.acquire().await?;
    let runtime = tokio::runtime::Handle::current();
    let thread = std::thread::spawn(move || runtime.spawn(async move { guard.release().await }));
    // Joined without an await, during which a paused clock would advance.
    let Ok(released) = thread.join() else { anyhow::bail!("the thread panicked") };
    released.await??;
    let next = cx.lock(&name).await?.try_acquire().await?.context("free after its release")?;
    Ok(next.release().await?)
}

async fn a_clean_release_leaves_no_entry(cx: Cx) -> Result<()> {
    let name = cx.name();
    let lock = cx.lock(&name).await?;
    let guard = lock.acquire().await?;
    ensure!(!cx.entries(&name).await?.is_empty(), "the hook does not see the holder");
    guard.release().await?;
    let left = cx.entries(&name).await?;
    ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(())
}

async fn a_lock_works_on_a_current_thread_runtime(cx: Cx) -> Result<()> {
    let name = cx.name();
    let (first, second) = (cx.backend()?, cx.backend()?);
    let ttl = cx.long_ttl();
    let bound = cx.bounds(ttl).cleanup() * 2;
    let work = move || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(within(bound, "a handoff on one thread", async {
            let one = lockkit_core::LockClient::builder(first).ttl(ttl).build().await?;
            let other = lockkit_core::LockClient::builder(second).ttl(ttl).build().await?;
            let guard = one.lock(name.as_str())?.acquire().await?;
            let waiting = other.lock(name.as_str())?;
            let waiter = cx.enqueue(&waiting, 0).await?;
            guard.release().await?;
            waiter.await??.release().await?;
            one.close().await?;
            anyhow::Ok(other.close().await?)
        }))?
    };
    tokio::task::spawn_blocking(work).await?
}

async fn a_blocking_call_inside_async_code_is_refused(cx: Cx) -> Result<()> {
    let (name, ttl) = (cx.name(), cx.long_ttl());
    let (inside, outside) = (cx.backend()?, cx.backend()?);
    let connected = LockClient::builder(inside).ttl(ttl).build_blocking();
    ensure!(kind(connected)? == ErrorKind::Unsupported, "wrong error kind");
    let (client, guard) = outside_any_runtime(move || {
        let client = LockClient::builder(outside).ttl(ttl).build_blocking()?;
        let guard = client.lock(name.as_str())?.acquire()?;
        Ok((client, guard))
    })?;
    let lock = client.lock(guard.name())?;
    for refused in [kind(lock.acquire())?, kind(lock.try_acquire())?, kind(client.close())?] {
        ensure!(refused == ErrorKind::Unsupported, "refused as {refused:?}");
    }
    ensure!(guard.is_held(), "a refused call disturbed the holder");
    outside_any_runtime(move || {
        guard.release()?;
        Ok(client.close()?)
    })
}

/// Runs blocking calls on a thread of their own, on the real clock, and waits for it.
fn outside_any_runtime<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    std::thread::spawn(work).join().map_err(|_| anyhow::anyhow!("a blocking call panicked"))?
}
