//! Breaking a hold from outside: it ends this hold and no other, and hands the lock over.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lockkit_core::{
    ErrorKind, LockClient, LockName,
    backend::{Contender, Inspection, QueueKind, Renewal},
};
use tokio::time::Instant;

use super::promptness;
use crate::{
    Case, Hook,
    case::{Need, case},
    context::{Cx, kind, within},
    direct::take,
};

pub(super) const CASES: &[Case] = &[
    case!(broken_holder_learns_of_its_loss_in_time: PreciseBreak BoundedLoss, needs Need::Break),
    case!(broken_lock_goes_to_the_next_waiter_at_once: PreciseBreak NoLostWakeUp TokenOrder, needs Need::Break),
    case!(stale_break_ends_no_other_hold: PreciseBreak NoForeignRelease, needs Need::Break),
    case!(break_leaves_no_entry_behind: PreciseBreak NoResidue, needs Need::Break),
    case!(other_locks_of_a_broken_holder_are_kept: PreciseBreak Isolation, needs Need::Break),
    case!(silent_holder_is_broken_and_revives_nothing: PreciseBreak BoundedTakeover NoLateRenewal,
        needs Need::Break),
];

/// Returns the holder of this lock, as an operator is shown it.
async fn holder(operator: &LockClient, name: &LockName) -> Result<Contender> {
    operator.inspect(name.as_str()).await?.holder.context("the holder is not shown")
}

/// Breaks the hold of whom an inspection shows.
async fn break_holder(operator: &LockClient, name: &LockName) -> Result<Contender> {
    let shown = holder(operator, name).await?;
    ensure!(operator.break_lock(name.as_str(), &shown).await?, "{shown:?} was not broken");
    Ok(shown)
}

async fn broken_holder_learns_of_its_loss_in_time(cx: Cx) -> Result<()> {
    let (name, client, operator) = (cx.name(), cx.steady_client().await?, cx.client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    break_holder(&operator, &name).await?;
    let bounds = cx.bounds_of(&client);
    let lost = within(bounds.notice(1)?, "the broken holder learns of its loss", guard.lost()).await?;
    ensure!(lost.kind() == ErrorKind::Lost && !guard.is_held(), "{lost}");
    ensure!(kind(guard.release().await)? == ErrorKind::Lost, "the release of a broken hold is confirmed");
    Ok(())
}

async fn broken_lock_goes_to_the_next_waiter_at_once(cx: Cx) -> Result<()> {
    let clients = [cx.client().await?, cx.client().await?, cx.client().await?];
    let handoff = async || handoff_by_a_break(&cx, &clients).await;
    promptness::are_prompt(&cx, "handoffs by a break", promptness::ROUNDS, handoff).await.map(drop)
}

/// Measures how long the first waiter waits for a lock whose hold was broken.
async fn handoff_by_a_break(cx: &Cx, [operator, first, second]: &[LockClient; 3]) -> Result<Duration> {
    let name = cx.name();
    let guard = first.lock(name.as_str())?.acquire().await?;
    let next = cx.enqueue(&second.lock(name.as_str())?, 0).await?;
    let last = match cx.promises().queue {
        QueueKind::Fifo => Some(cx.enqueue(&cx.lock(&name).await?, 1).await?),
        _ => None,
    };
    promptness::waiter_watches(cx).await?;
    break_holder(operator, &name).await?;
    let start = Instant::now();
    // Before a re-check could find it.
    let soon = cx.bounds_of(operator).recheck / 2;
    let next = within(soon, "the next waiter is granted the broken lock", next).await???;
    let waited = start.elapsed();
    ensure!(next.token() > guard.token(), "granted with {} after {}", next.token(), guard.token());
    let shown = holder(operator, &name).await?;
    ensure!(shown.token == Some(next.token()), "{shown:?} is shown, {} was granted", next.token());
    ensure!(last.as_ref().is_none_or(|last| !last.is_finished()), "two waiters are granted a broken lock");
    next.release().await?;
    if let Some(last) = last {
        last.await??.release().await?;
    }
    Ok(waited)
}

async fn stale_break_ends_no_other_hold(cx: Cx) -> Result<()> {
    let (name, other) = (cx.name(), cx.name());
    let (client, operator) = (cx.steady_client().await?, cx.client().await?);
    let _first = cx.lock(&name).await?.acquire().await?;
    let waiter = cx.enqueue(&client.lock(name.as_str())?, 0).await?;
    let stale = break_holder(&operator, &name).await?;
    let bounds = cx.bounds_of(&client);
    let next = within(bounds.takeover(), "the next waiter is granted the broken lock", waiter).await???;
    let refused = async |what: &str, contender: &Contender| {
        let broken = operator.break_lock(name.as_str(), contender).await?;
        ensure!(!broken, "{what} was broken: {contender:?}");
        anyhow::Ok(())
    };
    refused("a holder that was broken before", &stale).await?;
    let guards = [next];
    let waiter = cx.enqueue(&cx.lock(&name).await?, 0).await?;
    if let Some(waits) = operator.inspect(name.as_str()).await?.waiters.first() {
        refused("a waiter", waits).await?;
    }
    let elsewhere = client.lock(other.as_str())?.acquire().await?;
    refused("the holder of another lock", &holder(&operator, &other).await?).await?;
    cx.renewed(&guards, bounds).await.context("the next holder is renewed")?;
    ensure!(guards[0].is_held() && elsewhere.is_held(), "a refused break has ended a hold");
    ensure!(!waiter.is_finished(), "a refused break has handed the lock over");
    let [next] = guards;
    next.release().await?;
    waiter.await??.release().await?;
    refused("a holder that was broken before", &stale).await?;
    Ok(elsewhere.release().await?)
}

async fn break_leaves_no_entry_behind(cx: Cx) -> Result<()> {
    let (name, client, operator) = (cx.name(), cx.steady_client().await?, cx.client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    break_holder(&operator, &name).await?;
    let bounds = cx.bounds_of(&client);
    let has_entries = cx.harness().hooks().contains(&Hook::Entries);
    let nothing = async || {
        let found = operator.inspect(name.as_str()).await?;
        Ok(found == Inspection::default() && (!has_entries || cx.entries(&name).await?.is_empty()))
    };
    cx.eventually(bounds.slack, "no entry is left of a broken hold", nothing).await?;
    let next = cx.lock(&name).await?.try_acquire().await?.context("a broken lock is not free")?;
    next.release().await?;
    within(bounds.notice(1)?, "the broken holder learns of its loss", guard.lost()).await?;
    let again = client.lock(name.as_str())?.try_acquire().await?;
    Ok(again.context("the broken client is not granted the lock again")?.release().await?)
}

async fn other_locks_of_a_broken_holder_are_kept(cx: Cx) -> Result<()> {
    let (broken, waited) = (cx.name(), cx.name());
    let (client, operator) = (cx.steady_client().await?, cx.client().await?);
    let first = client.lock(broken.as_str())?.acquire().await?;
    let mut kept = Vec::new();
    for _ in 0..3 {
        kept.push(client.lock(cx.name().as_str())?.acquire().await?);
    }
    let held = cx.lock(&waited).await?.acquire().await?;
    let waiter = cx.enqueue(&client.lock(waited.as_str())?, 0).await?;
    break_holder(&operator, &broken).await?;
    let bounds = cx.bounds_of(&client);
    within(bounds.notice(1)?, "the broken holder learns of its loss", first.lost()).await?;
    for guard in &kept {
        guard.check().context("another lock of a broken holder is lost")?;
    }
    cx.renewed(&kept, bounds).await.context("the other locks of a broken holder are renewed")?;
    ensure!(!waiter.is_finished(), "the break has ended a claim of its holder");
    held.release().await?;
    let granted = within(bounds.takeover(), "the broken holder is granted another lock", waiter).await???;
    granted.release().await?;
    for guard in kept {
        guard.release().await?;
    }
    Ok(())
}

async fn silent_holder_is_broken_and_revives_nothing(cx: Cx) -> Result<()> {
    let (name, operator) = (cx.name(), cx.client().await?);
    // Nothing renews this session, whose ttl outlasts the case.
    let silent = cx.session(cx.long_ttl()).await?;
    let lost = take(&silent, &name).await?;
    break_holder(&operator, &name).await?;
    let bound = cx.bounds_of(&operator).cleanup();
    let lock = cx.lock(&name).await?;
    let next = within(bound, "the lock of a silent holder is free after the break", lock.acquire()).await??;
    // It wakes up, and does not know yet.
    let renewals = silent.renew(std::slice::from_ref(&lost)).await;
    let is_renewed = |(_, renewal): &(_, Renewal)| matches!(renewal, Renewal::Renewed { .. });
    ensure!(!renewals.holds.iter().any(is_renewed), "a broken hold was renewed: {renewals:?}");
    // What it is told does not matter, as long as it touches no other hold.
    let _ = silent.release(&lost).await;
    ensure!(cx.is_taken(&name).await?, "a broken holder has ended the hold of another one");
    next.release().await?;
    Ok(silent.close().await?)
}
