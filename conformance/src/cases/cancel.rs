//! Futures, guards and clients that are dropped at the worst moments.

use std::{future::Future, panic::resume_unwind, pin::pin, task::Poll, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lockkit_core::{LockClient, LockName, backend::QueueKind};
use tokio::time::{Instant, sleep};

use crate::{
    Case, Hook,
    case::{Need, case},
    context::{Cx, within},
    direct::HANG,
};

pub(super) const CASES: &[Case] = &[
    case!(a_dropped_guard_is_released: NoOrphan; bugs 70),
    case!(a_guard_dropped_outside_a_runtime_is_released: NoOrphan; bugs 36 70),
    case!(a_guard_that_outlives_its_runtime_is_freed_by_the_ttl: BoundedTakeover NoOrphan,
        needs Need::Ttl; bugs 70),
    case!(an_acquire_dropped_at_any_await_leaves_nothing: NoOrphan; bugs 6 21 39 62 69 71),
    case!(a_waiting_acquire_dropped_at_any_await_leaves_nothing: NoOrphan; bugs 6 21 39 69),
    case!(a_waiter_dropped_around_the_handoff_passes_the_lock_on: NoLostWakeUp NoOrphan; bugs 67 69),
    case!(a_panic_while_a_lock_is_held_releases_it: NoOrphan),
    case!(a_forgotten_guard_is_ended_by_max_hold: NoOrphan; bugs 41),
    case!(the_last_handle_dropped_inside_a_task_ends_the_client: NoOrphan NoResidue; bugs 70),
    case!(own_thread_client_ends_when_dropped_in_async_code: NoResidue, needs Need::RealTime; bugs 70),
    case!(cancelled_acquires_leave_no_entries: NoResidue, needs Need::Hook(Hook::Entries); bugs 21 39),
];

/// Checks that a new client is granted the lock within this time.
async fn is_free_soon(cx: &Cx, name: &LockName, bound: Duration) -> Result<()> {
    let guard = cx.lock(name).await?.acquire_timeout(bound).await?;
    Ok(guard.with_context(|| format!("{name:?} is not free within {bound:?}"))?.release().await?)
}

fn cleanup(cx: &Cx) -> Duration {
    cx.bounds(cx.long_ttl()).cleanup()
}

async fn a_dropped_guard_is_released(cx: Cx) -> Result<()> {
    let name = cx.name();
    drop(cx.lock(&name).await?.acquire().await?);
    is_free_soon(&cx, &name, cleanup(&cx)).await
}

async fn a_guard_dropped_outside_a_runtime_is_released(cx: Cx) -> Result<()> {
    let name = cx.name();
    let guard = cx.lock(&name).await?.acquire().await?;
    let dropped = std::thread::spawn(move || drop(guard)).join();
    ensure!(dropped.is_ok(), "the drop panicked");
    is_free_soon(&cx, &name, cleanup(&cx)).await
}

async fn a_guard_that_outlives_its_runtime_is_freed_by_the_ttl(cx: Cx) -> Result<()> {
    let (name, backend, ttl) = (cx.name(), cx.backend()?, cx.short_ttl());
    let lock_name = name.clone();
    let outlived = move || -> Result<Duration> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (guard, ttl) = runtime.block_on(async {
            let client = LockClient::builder(backend).ttl(ttl).connect_timeout(HANG).build().await?;
            let guard = client.lock(lock_name.as_str())?.acquire().await?;
            anyhow::Ok((guard, client.ttl()))
        })?;
        drop(runtime);
        ensure!(!guard.is_held(), "the hold is no longer renewed");
        drop(guard);
        Ok(ttl)
    };
    let thread = std::thread::spawn(outlived);
    let ttl = thread.join().map_err(|_| anyhow::anyhow!("the drop panicked"))??;
    is_free_soon(&cx, &name, cx.bounds(ttl).takeover()).await
}

/// Polls a future this often, lets other tasks run in between, and drops it. Returns whether it was ready.
pub(super) async fn drop_after(steps: usize, work: impl Future) -> bool {
    let mut work = pin!(work);
    for _ in 0..steps {
        let polled = std::future::poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
        if polled.is_ready() {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

async fn an_acquire_dropped_at_any_await_leaves_nothing(cx: Cx) -> Result<()> {
    let (name, client, other) = (cx.name(), cx.client().await?, cx.lock(&cx.name()).await?);
    drop(other);
    let lock = client.lock(name.as_str())?;
    let taker = cx.lock(&name).await?;
    let bound = cleanup(&cx);
    for number in 0..cx.times(200, 40) {
        if cx.is_paused() {
            drop_after(number % 50, lock.acquire()).await;
        } else {
            // Polls say little about the progress at a server, so drop after a part of a round trip.
            let part = cx.part_of(Duration::from_millis(6));
            let _ = tokio::time::timeout(part, lock.acquire()).await;
        }
        let guard = taker.acquire_timeout(bound).await?.context("a dropped acquire is in the way")?;
        guard.release().await?;
    }
    Ok(())
}

async fn a_waiting_acquire_dropped_at_any_await_leaves_nothing(cx: Cx) -> Result<()> {
    let name = cx.name();
    let (holder, waiting, taker) = (cx.lock(&name).await?, cx.lock(&name).await?, cx.lock(&name).await?);
    let bound = cleanup(&cx);
    for number in 0..cx.times(200, 30) {
        let held = holder.acquire_timeout(bound).await?.context("a dropped waiter is in the way")?;
        if cx.is_paused() {
            drop_after(number % 50, waiting.acquire()).await;
        } else {
            let _ = tokio::time::timeout(cx.part_of(Duration::from_millis(8)), waiting.acquire()).await;
        }
        held.release().await?;
        let next = taker.acquire_timeout(bound).await?.context("a dropped waiter is in the way")?;
        next.release().await?;
    }
    Ok(())
}

async fn a_waiter_dropped_around_the_handoff_passes_the_lock_on(cx: Cx) -> Result<()> {
    let name = cx.name();
    let (holder, head, next) = (cx.lock(&name).await?, cx.lock(&name).await?, cx.lock(&name).await?);
    let bound = cleanup(&cx);
    for number in 0..cx.times(2_000, 40) {
        let held = holder.acquire_timeout(bound).await?.context("the lock is not free")?;
        let first = cx.enqueue(&head, 0).await?;
        let second = cx.enqueue(&next, 1).await?;
        if cx.is_paused() && number % 40 == 0 {
            // Before the handoff begins: a store in the process does all of it in one step.
            first.abort();
            tokio::task::yield_now().await;
        }
        let release = tokio::spawn(async move { held.release().await });
        if cx.is_paused() {
            for _ in 0..number % 40 {
                tokio::task::yield_now().await;
            }
        } else {
            // A random pause: the waiter is dropped at any point of the handoff.
            sleep(cx.part_of(Duration::from_millis(4))).await;
        }
        first.abort();
        // When it was granted before the abort, the guard is in the handle.
        drop(first);
        within(bound, "the next waiter is granted", second).await???.release().await?;
        release.await??;
    }
    Ok(())
}

async fn a_panic_while_a_lock_is_held_releases_it(cx: Cx) -> Result<()> {
    let name = cx.name();
    let lock = cx.lock(&name).await?;
    let panicked = tokio::spawn(async move {
        let _held = lock.acquire().await;
        // As a panic, but without a message on the screen.
        resume_unwind(Box::new("a bug of the user"))
    });
    let ended: Result<(), tokio::task::JoinError> = panicked.await;
    ensure!(ended.is_err_and(|error| error.is_panic()), "it should have panicked");
    is_free_soon(&cx, &name, cleanup(&cx)).await
}

async fn a_forgotten_guard_is_ended_by_max_hold(cx: Cx) -> Result<()> {
    let (name, longest) = (cx.name(), Duration::from_millis(500));
    let (forgetful, other) = (cx.lock(&name).await?.max_hold(longest), cx.lock(&name).await?);
    let start = Instant::now();
    std::mem::forget(forgetful.acquire().await?);
    let taken = other.try_acquire().await?;
    ensure!(taken.is_none() || start.elapsed() >= longest, "the lock was free before `max_hold` had passed");
    drop(taken);
    is_free_soon(&cx, &name, longest + cleanup(&cx)).await
}

async fn the_last_handle_dropped_inside_a_task_ends_the_client(cx: Cx) -> Result<()> {
    let (name, backend, ttl, clock) = (cx.name(), cx.backend()?, cx.long_ttl(), cx.clock());
    let lock_name = name.clone();
    let task = tokio::spawn(async move {
        let client = LockClient::builder(backend).ttl(ttl).clock(clock).build().await?;
        let guard = client.lock(lock_name.as_str())?.acquire().await?;
        let status = client.status();
        drop(client);
        drop(guard);
        anyhow::Ok(status)
    });
    let mut status = task.await??;
    let bound = cleanup(&cx);
    let closed = async { while status.changed().await != lockkit_core::Status::Closed {} };
    within(bound, "the client is closed", closed).await?;
    is_free_soon(&cx, &name, bound).await
}

async fn own_thread_client_ends_when_dropped_in_async_code(cx: Cx) -> Result<()> {
    let name = cx.name();
    let client = LockClient::builder(cx.backend()?).ttl(cx.long_ttl()).own_thread().build().await?;
    let mut status = client.status();
    let guard = client.lock(name.as_str())?.acquire().await?;
    drop(client);
    ensure!(guard.is_held(), "a guard keeps its client");
    drop(guard);
    let closed = async { while status.changed().await != lockkit_core::Status::Closed {} };
    within(cleanup(&cx), "the client is closed", closed).await?;
    is_free_soon(&cx, &name, cleanup(&cx)).await
}

async fn cancelled_acquires_leave_no_entries(cx: Cx) -> Result<()> {
    let name = cx.name();
    let held = cx.lock(&name).await?.acquire().await?;
    let before = cx.entries(&name).await?;
    let waiting = cx.lock(&name).await?;
    let mut tasks = Vec::new();
    for _ in 0..cx.times(100, 30) {
        let waiting = waiting.clone();
        tasks.push(tokio::spawn(async move { waiting.acquire().await }));
    }
    // Waiters without an order need no entries.
    let is_ordered = cx.promises().queue == QueueKind::Fifo;
    let under_way =
        async || Ok(cx.log().claiming(&name) > 0 && (!is_ordered || cx.entries(&name).await? != before));
    cx.eventually(cleanup(&cx), "some of them claim", under_way).await?;
    // A random pause: each acquire is aborted at a different point.
    sleep(cx.part_of(Duration::from_millis(10))).await;
    for task in tasks {
        task.abort();
    }
    let clean = async || Ok(cx.log().claiming(&name) == 0 && cx.entries(&name).await? == before);
    cx.eventually(cleanup(&cx), "only the holder's entry is left", clean).await?;
    Ok(held.release().await?)
}
