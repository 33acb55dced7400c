//! Clients that fall silent: their locks are granted to others in bounded time, and they notice the loss themselves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lockkit_core::{Clock, ErrorKind, LockClient};
use tokio::time::{Instant, sleep};

use super::takeover::{self, Takeover};
use crate::{
    Case,
    case::{Need, case},
    context::{Cx, kind, rises, within},
    direct::{HANG, take},
};

pub(super) const CASES: &[Case] = &[
    case!(the_lock_of_a_silent_client_goes_to_the_next_in_time: BoundedTakeover,
        needs Need::Ttl; bugs 52 54 65),
    case!(the_lock_of_a_silent_client_is_not_granted_before_its_deadline: TimedExclusion,
        needs Need::Ttl; bugs 2 24),
    case!(a_silent_waiter_delays_its_successors_no_longer_than_its_ttl: BoundedTakeover Fifo,
        needs Need::SessionLifetime; bugs 14 46),
    case!(a_silent_waiter_is_not_granted_on_a_dead_entry: TimedExclusion,
        needs Need::SessionLifetime; bugs 1 2 3 14),
    case!(blocked_executor_loses_its_lock_and_sees_the_loss: TimedExclusion BoundedLoss,
        needs Need::Ttl; bugs 38 65),
    case!(own_thread_client_keeps_its_lock_while_the_executor_is_blocked: BoundedLoss,
        needs Need::Ttl, Need::RealTime; bugs 38),
    case!(suspended_time_counts: TimedExclusion BoundedLoss, needs Need::Ttl; bugs 65),
];

async fn the_lock_of_a_silent_client_goes_to_the_next_in_time(cx: Cx) -> Result<()> {
    takeover::is_in_time(&cx, async || after_a_silent_holder(&cx).await).await
}

async fn after_a_silent_holder(cx: &Cx) -> Result<Takeover> {
    let (name, waiting) = (cx.name(), cx.client().await?);
    let silent = cx.session(cx.short_ttl()).await?;
    let dead = take(&silent, &name).await?;
    let (bounds, start) = (cx.bounds(silent.ttl()), Instant::now());
    let guard = waiting.lock(name.as_str())?.acquire_timeout(bounds.takeover()).await?;
    let took = start.elapsed();
    let guard = guard.with_context(|| format!("still locked {took:?} after its holder's death"))?;
    rises(dead.token(), guard.token())?;
    guard.release().await?;
    let _ = silent.close().await;
    Ok(Takeover { bounds, took })
}

async fn the_lock_of_a_silent_client_is_not_granted_before_its_deadline(cx: Cx) -> Result<()> {
    let (name, clock) = (cx.name(), cx.clock());
    let silent = {
        use lockkit_core::backend::Backend;
        cx.backend()?.open_session(cx.short_ttl(), clock.clone()).await?
    };
    // One acknowledged heartbeat: the lifetime started no earlier than that heartbeat was sent.
    let dead = take(&silent, &name).await?;
    let armed_at = match silent.renew(std::slice::from_ref(&dead)).await.session {
        lockkit_core::backend::Renewal::Renewed { armed_at } => armed_at,
        other => anyhow::bail!("not renewed: {other:?}"),
    };
    let next = cx.lock(&name).await?.acquire().await?;
    let (granted_after, relied_on) = (clock.now().since(armed_at), cx.bounds(silent.ttl()).validity);
    ensure!(granted_after >= relied_on, "granted after {granted_after:?}, relied on for {relied_on:?}");
    next.release().await?;
    let _ = silent.close().await;
    Ok(())
}

async fn a_silent_waiter_delays_its_successors_no_longer_than_its_ttl(cx: Cx) -> Result<()> {
    takeover::is_in_time(&cx, async || after_a_silent_waiter(&cx).await).await
}

async fn after_a_silent_waiter(cx: &Cx) -> Result<Takeover> {
    let name = cx.name();
    let (held, behind) = (cx.lock(&name).await?.acquire().await?, cx.lock(&name).await?);
    // Its entry must last until the other waiter is seen behind it.
    let silent = cx.session(cx.short_ttl() * 2).await?;
    let dead = cx.wait_in(&silent, &name).await?;
    cx.waits_behind(&name, 0).await?;
    let last = cx.enqueue(&behind, 1).await?;
    let (bounds, start) = (cx.bounds(silent.ttl()), Instant::now());
    held.release().await?;
    let next = within(bounds.takeover(), "the waiter behind the silent one is granted", last).await???;
    let took = start.elapsed();
    next.release().await?;
    dead.control.give_up();
    let _ = dead.ends_within(bounds.takeover()).await?;
    let _ = silent.close().await;
    Ok(Takeover { bounds, took })
}

async fn a_silent_waiter_is_not_granted_on_a_dead_entry(cx: Cx) -> Result<()> {
    let name = cx.name();
    let held = cx.lock(&name).await?.acquire().await?;
    // Its entry must last until it is seen to wait.
    let silent = cx.session(cx.short_ttl() * 2).await?;
    let dead = cx.wait_in(&silent, &name).await?;
    cx.waits_behind(&name, 0).await?;
    let bounds = cx.bounds(silent.ttl());
    // The entry of the silent waiter expires while the first holder still holds.
    let end = dead.ends_within(bounds.takeover()).await?;
    ensure!(
        !matches!(end, Ok(lockkit_core::backend::Acquired::Granted(_))),
        "granted without an entry, while another holds: {end:?}"
    );
    ensure!(held.is_held(), "the holder was not disturbed");
    held.release().await?;
    let _ = silent.close().await;
    Ok(())
}

async fn blocked_executor_loses_its_lock_and_sees_the_loss(cx: Cx) -> Result<()> {
    let (name, other) = (cx.name(), cx.client().await?);
    if cx.is_paused() {
        let client = cx.short_client().await?;
        let guard = client.lock(name.as_str())?.acquire().await?;
        cx.stand_still(client.ttl() * 3).await;
        ensure!(!guard.is_held(), "no renewal was sent, and the deadline has passed");
        ensure!(kind(guard.release().await)? == ErrorKind::Lost, "the release reports the loss");
        return Ok(());
    }
    let (backend, ttl, lock_name) = (cx.backend()?, cx.short_ttl(), name.clone());
    let (holds, held) = tokio::sync::oneshot::channel();
    let blocked = move || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let client = LockClient::builder(backend).ttl(ttl).connect_timeout(HANG).build().await?;
            let guard = client.lock(lock_name.as_str())?.acquire().await?;
            let token = guard.token();
            // The receiver is gone when the case has failed.
            let _ = holds.send(token);
            std::thread::sleep(client.ttl() * 3);
            ensure!(!guard.is_held(), "no renewal was sent, and the deadline has passed");
            ensure!(kind(guard.release().await)? == ErrorKind::Lost, "the release reports the loss");
            Ok(())
        })
    };
    let blocked = tokio::task::spawn_blocking(blocked);
    let token = held.await?;
    let next = other.lock(name.as_str())?.acquire().await?;
    rises(token, next.token())?;
    blocked.await??;
    ensure!(next.is_held(), "the late release disturbed the next holder");
    ensure!(cx.is_taken(&name).await?, "the late release freed the next holder's lock");
    Ok(next.release().await?)
}

async fn own_thread_client_keeps_its_lock_while_the_executor_is_blocked(cx: Cx) -> Result<()> {
    // Long enough for a thread that must wait for a processor.
    let (name, backend, ttl) = (cx.name(), cx.backend()?, cx.short_ttl() * 2);
    let blocked = move || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let client = LockClient::builder(backend).ttl(ttl).own_thread().build().await?;
            let guard = client.lock(name.as_str())?.acquire().await?;
            std::thread::sleep(client.ttl() * 2);
            ensure!(guard.is_held(), "the client's own thread renews it");
            guard.release().await?;
            Ok(client.close().await?)
        })
    };
    tokio::task::spawn_blocking(blocked).await?
}

/// The clock jumps ahead, as the boot clock does when the machine was suspended.
async fn suspended_time_counts(cx: Cx) -> Result<()> {
    let (name, clock, slept_ms) = (cx.name(), cx.clock(), Arc::new(AtomicU64::new(0)));
    let slept = Arc::clone(&slept_ms);
    let clock = Clock::new(move || clock.now().after(Duration::from_millis(slept.load(Ordering::SeqCst))));
    let client = cx.client_with_clock(cx.backend()?, cx.short_ttl(), clock).await?;
    let guard = client.lock(name.as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    slept_ms.store(u64::try_from((bounds.ttl * 3).as_millis())?, Ordering::SeqCst);
    ensure!(!guard.is_held(), "the boot clock has passed the deadline");
    let start = Instant::now();
    within(bounds.heartbeat + bounds.slack, "the loss is reported", guard.lost()).await?;
    ensure!(start.elapsed() <= bounds.heartbeat + bounds.slack, "reported after {:?}", start.elapsed());
    // The client continues with a new session.
    sleep(Duration::from_millis(1)).await;
    let lock = client.lock(name.as_str())?;
    let again = within(HANG, "the client can lock again", lock.acquire()).await??;
    Ok(again.release().await?)
}
