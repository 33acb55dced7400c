//! Losses that the store reports, what they affect, and what happens after the end of a hold.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use lockkit_core::{ErrorKind, LockGuard, RunError, Status};
use tokio::time::sleep;

use crate::{
    Case, Hook, StoreFault,
    case::{Need, case},
    context::{Cx, busy_or_unavailable, kind, rises, settle, within},
};

const END_SESSION: Need = Need::Hook(Hook::EndSessionOfHolder);
const DELETE: Need = Need::Hook(Hook::DeleteEntries);

pub(super) const CASES: &[Case] = &[
    case!(ended_session_is_reported_to_its_holder_at_once: BoundedLoss,
        needs END_SESSION, Need::SessionPushed; bugs 8 19 33 63),
    case!(ended_session_ends_all_its_holds_and_the_client_recovers: BoundedLoss Isolation,
        needs END_SESSION, Need::SessionLifetime; bugs 33 51 62),
    case!(deleted_entry_is_reported_to_its_holder_within_a_heartbeat: BoundedLoss, needs DELETE; bugs 63 64),
    case!(a_deleted_entry_ends_no_other_hold: Isolation, needs DELETE; bugs 66),
    case!(lost_lock_is_reported_by_check_and_release: BoundedLoss TruthfulErrors, needs DELETE; bugs 57),
    case!(waiter_whose_entry_was_deleted_queues_again: NoLostWakeUp NoOrphan, needs DELETE; bugs 1 3 14),
    case!(waiter_whose_session_ended_queues_again: TimedExclusion NoLostWakeUp,
        needs Need::Hook(Hook::EndSessionOfWaiter), Need::SessionLifetime; bugs 1 2 3 14),
    case!(work_under_a_lost_lock_is_stopped: BoundedLoss, needs DELETE; bugs 41 73),
    case!(releasing_one_of_many_locks_disturbs_no_other: Isolation; bugs 51),
    case!(nothing_renews_a_hold_after_its_release: NoLateRenewal; bugs 39 40 41 42),
    case!(a_client_survives_many_lost_sessions: NoResidue Isolation, needs END_SESSION; bugs 20 28 37 44),
];

async fn ended_session_is_reported_to_its_holder_at_once(cx: Cx) -> Result<()> {
    let name = cx.name();
    let client = cx.client().await?;
    let guard = client.lock(name.as_str())?.acquire().await?;
    cx.inflict(StoreFault::EndSessionOfHolder(name)).await?;
    // With a long ttl the next heartbeat is far later: only a notification can be this fast.
    let bounds = cx.bounds_of(&client);
    let error = within(bounds.slack.min(bounds.heartbeat / 2), "the loss is reported", guard.lost()).await?;
    ensure!(error.kind() == ErrorKind::Lost && !guard.is_held(), "{error}");
    Ok(())
}

async fn ended_session_ends_all_its_holds_and_the_client_recovers(cx: Cx) -> Result<()> {
    let client = cx.steady_client().await?;
    let mut guards = Vec::new();
    for _ in 0..5 {
        guards.push(client.lock(cx.name().as_str())?.acquire().await?);
    }
    cx.inflict(StoreFault::EndSessionOfHolder(guards[0].name().clone())).await?;
    let bounds = cx.bounds_of(&client);
    for guard in &guards {
        within(bounds.notice(1)?, "every hold of the client is lost", guard.lost()).await?;
    }
    for guard in guards {
        let again = client.lock(guard.name().as_str())?.acquire_timeout(bounds.takeover()).await?;
        let again = again.with_context(|| format!("{:?} is not free", guard.name()))?;
        rises(guard.token(), again.token())?;
        again.release().await?;
    }
    Ok(())
}

async fn deleted_entry_is_reported_to_its_holder_within_a_heartbeat(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.steady_client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    cx.inflict(StoreFault::DeleteEntries(name)).await?;
    let bounds = cx.bounds_of(&client);
    within(bounds.notice(1)?, "the loss is reported", guard.lost()).await?;
    ensure!(!guard.is_held(), "lost is final");
    Ok(())
}

async fn a_deleted_entry_ends_no_other_hold(cx: Cx) -> Result<()> {
    let client = cx.steady_client().await?;
    let mut guards: Vec<LockGuard> = Vec::new();
    for _ in 0..10 {
        guards.push(client.lock(cx.name().as_str())?.acquire().await?);
    }
    let deleted = guards.swap_remove(3);
    cx.inflict(StoreFault::DeleteEntries(deleted.name().clone())).await?;
    let bounds = cx.bounds_of(&client);
    within(bounds.notice(1)?, "the loss is reported", deleted.lost()).await?;
    cx.renewed(&guards, bounds).await?;
    ensure!(client.status().current() == Status::Connected, "{:?}", client.status().current());
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    ensure!(lost == 0, "{lost} other holds are lost");
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

async fn lost_lock_is_reported_by_check_and_release(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.steady_client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let token = guard.token();
    cx.inflict(StoreFault::DeleteEntries(name.clone())).await?;
    let bounds = cx.bounds_of(&client);
    within(bounds.notice(1)?, "the loss is reported", guard.lost()).await?;
    let next = cx.lock(&name).await?.acquire().await?;
    rises(token, next.token())?;
    ensure!(kind(guard.check())? == ErrorKind::Lost, "wrong error kind");
    ensure!(kind(guard.release().await)? == ErrorKind::Lost, "wrong error kind");
    // Nothing must happen in this time, whatever the late release has started in the background.
    sleep(bounds.heartbeat * 2).await;
    ensure!(next.is_held(), "the release of a lost hold disturbed the next holder");
    ensure!(cx.is_taken(&name).await?, "the release of a lost hold freed the next holder's lock");
    Ok(next.release().await?)
}

async fn waiter_whose_entry_was_deleted_queues_again(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.steady_client().await?);
    let held = cx.steady_client().await?.lock(name.as_str())?.acquire().await?;
    let waiter = cx.enqueue(&client.lock(name.as_str())?, 0).await?;
    cx.inflict(StoreFault::DeleteEntries(name.clone())).await?;
    let bounds = cx.bounds_of(&client);
    within(bounds.notice(1)?, "the loss is reported", held.lost()).await?;
    let guard = within(bounds.takeover(), "the waiter is granted", waiter).await???;
    rises(held.token(), guard.token())?;
    ensure!(guard.is_held() && cx.is_taken(&name).await?, "granted without an entry");
    Ok(guard.release().await?)
}

async fn waiter_whose_session_ended_queues_again(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.steady_client().await?);
    let held = cx.lock(&name).await?.acquire().await?;
    let waiter = cx.enqueue(&client.lock(name.as_str())?, 0).await?;
    let mut status = client.status();
    status.current();
    cx.inflict(StoreFault::EndSessionOfWaiter(name.clone())).await?;
    let bounds = cx.bounds_of(&client);
    // Short statuses may be skipped: `Lost` may have become `Connected` again.
    let changed = async { while matches!(status.changed().await, Status::Suspect { .. }) {} };
    within(bounds.notice(1)?, "the status changes", changed).await?;
    cx.waits_behind(&name, 0).await.context("the waiter is in the queue again")?;
    ensure!(held.is_held() && !waiter.is_finished(), "granted without an entry, while another holds");
    held.release().await?;
    Ok(within(bounds.takeover(), "the waiter is granted", waiter).await???.release().await?)
}

async fn work_under_a_lost_lock_is_stopped(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.steady_client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    cx.inflict(StoreFault::DeleteEntries(name)).await?;
    let bounds = cx.bounds_of(&client);
    let work = guard.run(std::future::pending::<()>());
    let outcome = within(bounds.notice(1)?, "the work is dropped", work).await?;
    match outcome {
        Err(RunError::Stopped(error)) if error.kind() == ErrorKind::Lost => Ok(()),
        other => bail!("not stopped by the loss: {other:?}"),
    }
}

async fn releasing_one_of_many_locks_disturbs_no_other(cx: Cx) -> Result<()> {
    let client = cx.steady_client().await?;
    let mut guards: Vec<LockGuard> = Vec::new();
    for _ in 0..10 {
        guards.push(client.lock(cx.name().as_str())?.acquire().await?);
    }
    let busy = client.lock(guards[0].name().as_str())?;
    guards.swap_remove(4).release().await?;
    drop(guards.swap_remove(5));
    busy_or_unavailable(busy.acquire_timeout(Duration::from_millis(50)).await)?;
    let cancelled = tokio::spawn(async move { busy.acquire().await });
    settle().await;
    cancelled.abort();
    let bounds = cx.bounds_of(&client);
    cx.renewed(&guards, bounds).await?;
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    ensure!(lost == 0, "{lost} neighbours are lost");
    let other = cx.client().await?;
    for guard in guards {
        ensure!(other.lock(guard.name().as_str())?.try_acquire().await?.is_none(), "a neighbour was freed");
        guard.release().await?;
    }
    Ok(())
}

async fn nothing_renews_a_hold_after_its_release(cx: Cx) -> Result<()> {
    let (clients, cycles) = (cx.times(20, 10), cx.times(500, 6));
    let mut tasks = Vec::new();
    for _ in 0..clients {
        let (name, client) = (cx.name(), cx.steady_client().await?);
        let (heartbeat, cx) = (cx.bounds_of(&client).heartbeat, cx.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..cycles {
                let guard = client.lock(name.as_str())?.acquire().await?;
                // A random pause: now and then the release overlaps a heartbeat.
                sleep(cx.part_of(heartbeat / 2)).await;
                guard.release().await?;
            }
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    ensure!(cx.log().renewals() > 0, "no heartbeat was sent while a lock was held");
    let late = cx.log().late_renewals();
    ensure!(late == 0, "{late} renewals of holds that had been released");
    Ok(())
}

async fn a_client_survives_many_lost_sessions(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.client().await?);
    let bounds = cx.bounds_of(&client);
    let mut last = None;
    for _ in 0..cx.times(50, 8) {
        let guard = client.lock(name.as_str())?.acquire_timeout(bounds.takeover()).await?;
        let guard = guard.context("the client can lock again")?;
        rises(last, guard.token())?;
        last = Some(guard.token());
        cx.inflict(StoreFault::EndSessionOfHolder(name.clone())).await?;
        within(bounds.notice(1)?, "the loss is reported", guard.lost()).await?;
    }
    Ok(())
}
