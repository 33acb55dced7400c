//! Stores that lose their data, their history, a member, their room or their logins.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use lockkit_core::{ErrorKind, LockClient, LockGuard, Status, limits::TTL_DEFAULT};
use tokio::time::{Instant, sleep, timeout};

use super::promptness;
use crate::{
    Case, ClientLink, Hook, LinkFault, StoreFault,
    case::{Need, case},
    context::{Cx, kind, rises, within},
    direct::earliest_recheck,
};

const FORGET: Need = Need::Hook(Hook::ForgetHistory);
const FILL: Need = Need::Hook(Hook::FillStore);

pub(super) const CASES: &[Case] = &[
    case!(lost_data_is_reported_as_a_loss: BoundedLoss TruthfulErrors,
        needs Need::Hook(Hook::Wipe), Need::Ttl; bugs 20 47),
    case!(reset_waiter_is_granted_after_history_is_lost: NoLostWakeUp NoResidue,
        needs FORGET, Need::Hook(Hook::Reset); bugs 18 32),
    case!(disconnected_waiter_is_granted_after_history_is_lost: NoLostWakeUp NoResidue,
        needs FORGET, Need::Hook(Hook::Refuse); bugs 18 32),
    case!(no_lock_is_lost_when_the_leader_dies: TimedExclusion NoLostWakeUp Isolation,
        needs Need::Hook(Hook::LoseLeader); bugs 18 32 63),
    case!(a_client_of_an_isolated_member_loses_its_lock_in_time: TimedExclusion BoundedLoss TruthfulErrors,
        needs Need::Hook(Hook::IsolateMember), Need::Ttl; bugs 34 63),
    case!(a_full_store_grants_nothing_and_ends_no_hold: NoOrphan TruthfulErrors,
        needs FILL, Need::Ttl; bugs 51),
    case!(a_full_store_passes_a_released_lock_on: NoLostWakeUp, needs FILL; bugs 51),
    case!(expired_login_costs_no_lock: NoLostWakeUp Isolation,
        needs Need::Hook(Hook::ExpireLogins), Need::Ttl; bugs 37),
];

async fn lost_data_is_reported_as_a_loss(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.client_with_ttl(cx.steady_ttl() * 2).await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let (bounds, start) = (cx.bounds_of(&client), Instant::now());
    cx.inflict(StoreFault::Wipe).await?;
    // Before the hold's own deadline, which needs no answer of the store. The fault itself may take a while.
    let left = bounds.validity.mul_f64(0.85).saturating_sub(start.elapsed());
    let lost = match timeout(left, guard.lost()).await {
        Ok(lost) => lost,
        Err(_) => {
            // ZooKeeper answers no client that has seen more than it has now: only the deadline ends the hold.
            let is_answered = client.status().current() == Status::Connected;
            ensure!(!is_answered, "the loss is reported while heartbeats are answered");
            within(bounds.validity, "the loss is reported", guard.lost()).await?
        }
    };
    ensure!(lost.kind() == ErrorKind::Lost && !guard.is_held(), "lost is final");
    let again = client.lock(name.as_str())?.acquire_timeout(bounds.takeover() * 2).await?;
    let again = again.context("the client can lock again")?;
    ensure!(cx.lock(&name).await?.try_acquire().await?.is_none(), "two holders");
    if cx.promises().token == lockkit_core::backend::TokenStrength::ClockFloor {
        rises(guard.token(), again.token())?;
    }
    Ok(again.release().await?)
}

/// Checks that waiters of this client are granted by notifications.
pub(super) async fn is_notified(cx: &Cx, client: &LockClient) -> Result<()> {
    let holding = cx.client().await?;
    let handoff = async || promptness::handoff(cx, [&holding, client], &cx.name()).await;
    promptness::are_prompt(cx, "handoffs", promptness::ROUNDS, handoff).await.map(drop)
}

/// Adds some history to the store, and makes the store drop it.
async fn forget_history(cx: &Cx) -> Result<()> {
    let lock = cx.lock(&cx.name()).await?;
    for _ in 0..3 {
        lock.acquire().await?.release().await?;
    }
    cx.inflict(StoreFault::ForgetHistory).await
}

async fn reset_waiter_is_granted_after_history_is_lost(cx: Cx) -> Result<()> {
    misses_history(&cx, async |link, held| {
        forget_history(&cx).await?;
        link.inflict(LinkFault::Reset).await?;
        Ok(held.release().await?)
    })
    .await
}

async fn disconnected_waiter_is_granted_after_history_is_lost(cx: Cx) -> Result<()> {
    misses_history(&cx, async |link, held| {
        link.inflict(LinkFault::Refuse).await?;
        held.release().await?;
        forget_history(&cx).await?;
        link.heal().await
    })
    .await
}

/// Checks three times that a waiter is granted although `miss` releases the lock and makes its client miss that. At
/// least once, on a busy machine, it is granted before a re-check could find the release.
async fn misses_history(cx: &Cx, miss: impl AsyncFn(&dyn ClientLink, LockGuard) -> Result<()>) -> Result<()> {
    let link = cx.link().await?;
    let client = cx.client_of(cx.observe(link.backend()?), cx.long_ttl()).await?;
    let (name, bounds) = (cx.name(), cx.bounds_of(&client));
    let mut waited = Vec::new();
    for _ in 0..3 {
        let held = cx.lock(&name).await?.acquire().await?;
        let start = Instant::now();
        let waiter = cx.enqueue(&client.lock(name.as_str())?, 0).await?;
        miss(&*link, held).await?;
        let granted = within(bounds.takeover(), "the waiter is granted", waiter).await???;
        waited.push(start.elapsed());
        granted.release().await?;
    }
    let soon = earliest_recheck(client.ttl());
    ensure!(waited.iter().any(|waited| *waited < soon), "granted by re-checks only: {waited:?}");
    is_notified(cx, &client).await
}

/// A ttl that outlasts an election on a loaded machine, and the pauses of clients that look for the new leader.
fn ttl_of_elections(cx: &Cx) -> Duration {
    (TTL_DEFAULT * 2).max(cx.info().ttl_min)
}

async fn no_lock_is_lost_when_the_leader_dies(cx: Cx) -> Result<()> {
    const LOCKS: usize = 20;
    let ttl = ttl_of_elections(&cx);
    let (holding, waiting) = (cx.client_with_ttl(ttl).await?, cx.client_with_ttl(ttl).await?);
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    for _ in 0..LOCKS {
        let name = cx.name();
        holders.push(holding.lock(name.as_str())?.acquire().await?);
        waiters.push(cx.enqueue(&waiting.lock(name.as_str())?, 0).await?);
    }
    let bounds = cx.bounds_of(&holding);
    for _ in 0..cx.times(10, 3) {
        cx.inflict(StoreFault::LoseLeader).await?;
        for holder in &holders {
            ensure!(holder.is_held(), "lost: {:?}", holder.check().err());
        }
        ensure!(!waiters.iter().any(tokio::task::JoinHandle::is_finished), "two holders");
        // A client that came back late has used up most of its ttl: it is renewed before the next leader dies.
        let is_fresh = |holder: &LockGuard| holder.remaining() > bounds.ttl * 3 / 5;
        cx.eventually(bounds.ttl, "the holds are renewed", async || Ok(holders.iter().all(is_fresh))).await?;
        let (Some(holder), Some(waiter)) = (holders.pop(), waiters.pop()) else { continue };
        let token = holder.token();
        holder.release().await?;
        let next = within(bounds.takeover(), "the waiter is granted", waiter).await???;
        rises(token, next.token())?;
    }
    for (holder, waiter) in holders.into_iter().zip(waiters) {
        holder.release().await?;
        within(bounds.takeover(), "the waiter is granted", waiter).await???.release().await?;
    }
    Ok(())
}

async fn a_client_of_an_isolated_member_loses_its_lock_in_time(cx: Cx) -> Result<()> {
    let link = cx.link().await?;
    let alone = cx.client_of(cx.observe(link.backend()?), cx.short_ttl()).await?;
    let (name, bounds) = (cx.name(), cx.bounds_of(&alone));
    let other = cx.client_with_ttl(ttl_of_elections(&cx)).await?;
    let (kept, kept_since) = (other.lock(cx.name().as_str())?.acquire().await?, Instant::now());
    let believed = alone.lock(name.as_str())?.acquire().await?;
    let mut waiter = cx.enqueue(&other.lock(name.as_str())?, 0).await?;
    cx.inflict(StoreFault::IsolateMember).await?;
    let loss = async {
        tokio::select! {
            biased;
            lost = believed.lost() => Ok(lost),
            granted = &mut waiter => bail!("granted while the isolated client relies on its hold: {granted:?}"),
        }
    };
    let lost = within(bounds.validity + bounds.slack, "the loss is reported", loss).await??;
    ensure!(lost.kind() == ErrorKind::Lost, "{lost}");
    ensure!(
        kind(alone.lock(name.as_str())?.try_acquire().await)? == ErrorKind::Unavailable,
        "an isolated member answered"
    );
    // The other members may have had to elect a leader, which restarts the time of every session.
    let next = within(bounds.takeover() * 2, "the other members grant the lock", waiter).await???;
    rises(believed.token(), next.token())?;
    ensure!(kept.is_held(), "lost after {:?}: {:?}", kept_since.elapsed(), kept.check().err());
    cx.inflict(StoreFault::RejoinMember).await?;
    // The member that rejoins may make the others elect a leader again: nothing is confirmed meanwhile.
    drop((kept, next));
    let again = alone.lock(name.as_str())?.acquire_timeout(bounds.takeover() * 2).await?;
    drop(again.context("the client is back")?);
    Ok(())
}

async fn a_full_store_grants_nothing_and_ends_no_hold(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.client_with_ttl(cx.short_ttl() * 2).await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    cx.inflict(StoreFault::FillStore).await?;
    let refused = kind(client.lock(cx.name().as_str())?.try_acquire().await)?;
    let waited = kind(client.lock(cx.name().as_str())?.acquire_timeout(bounds.heartbeat).await)?;
    sleep(bounds.ttl * 2).await;
    ensure!(guard.is_held(), "lost: {:?}", guard.check().err());
    guard.release().await?;
    cx.inflict(StoreFault::MakeRoom).await?;
    ensure!([refused, waited] == [ErrorKind::Unavailable; 2], "reported as {refused:?} and {waited:?}");
    let again = client.lock(name.as_str())?.acquire_timeout(bounds.takeover()).await?;
    Ok(again.context("there is room again")?.release().await?)
}

async fn a_full_store_passes_a_released_lock_on(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.client().await?);
    let held = client.lock(name.as_str())?.acquire().await?;
    let waiter = cx.enqueue(&cx.lock(&name).await?, 0).await?;
    cx.inflict(StoreFault::FillStore).await?;
    held.release().await?;
    let bounds = cx.bounds_of(&client);
    let next = within(bounds.cleanup(), "the waiter is granted", waiter).await;
    cx.inflict(StoreFault::MakeRoom).await?;
    Ok(next???.release().await?)
}

async fn expired_login_costs_no_lock(cx: Cx) -> Result<()> {
    // A login takes the server a tenth of a second of computing, and seconds on a loaded machine.
    let (name, client) = (cx.name(), cx.client_with_ttl(cx.short_ttl() * 4).await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let waiter = cx.enqueue(&cx.lock(&name).await?, 0).await?;
    let bounds = cx.bounds_of(&client);
    for _ in 0..3 {
        cx.inflict(StoreFault::ExpireLogins).await?;
        sleep(bounds.heartbeat + Duration::from_millis(100)).await;
        ensure!(guard.is_held(), "lost: {:?}", guard.check().err());
    }
    cx.inflict(StoreFault::ExpireLogins).await?;
    guard.release().await?;
    Ok(within(bounds.takeover(), "the waiter is granted", waiter).await???.release().await?)
}
