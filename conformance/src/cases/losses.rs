//! Losses that the store tells, their reach, and what happens after the end of a hold.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use lockkit_core::{ErrorKind, LockGuard, RunError, Status};
use tokio::time::sleep;

use crate::{
    Case, Fault, Hook,
    case::{Need, case},
    context::{Cx, busy_or_silent, kind, settle, within},
};

const END_SESSION: Need = Need::Hook(Hook::EndSessionOfHolder);
const DELETE: Need = Need::Hook(Hook::DeleteEntries);

pub(super) const CASES: &[Case] = &[
    case!(an_ended_session_is_told_to_its_holder_at_once: C20 E6, P11,
        needs END_SESSION, Need::SessionPushed; bugs 8 19 33 63),
    case!(an_ended_session_ends_all_its_holds_and_the_client_goes_on: C20, P11 P14,
        needs END_SESSION, Need::SessionLifetime; bugs 33 51 62),
    case!(a_deleted_entry_is_told_to_its_holder_within_a_beat: C20, P11, needs DELETE; bugs 63 64),
    case!(a_deleted_entry_ends_no_other_hold: F28, P14, needs DELETE; bugs 66),
    case!(a_lost_lock_is_answered_as_lost: C9, P11 P12, needs DELETE; bugs 57),
    case!(a_waiter_whose_entry_was_deleted_comes_again: E10, P5 P6, needs DELETE; bugs 1 3 14),
    case!(a_waiter_whose_session_ended_comes_again: E10, P1 P5,
        needs Need::Hook(Hook::EndSessionOfWaiter), Need::SessionLifetime; bugs 1 2 3 14),
    case!(work_under_a_lost_lock_is_stopped: C20, P11, needs DELETE; bugs 41 73),
    case!(releasing_one_of_many_locks_disturbs_no_other: F28, P14; bugs 51),
    case!(nothing_renews_a_hold_after_its_release: F20, P8; bugs 39 40 41 42),
    case!(a_client_survives_many_lost_sessions: F27, P13 P14, needs END_SESSION; bugs 20 28 37 44),
];

async fn an_ended_session_is_told_to_its_holder_at_once(cx: Cx) -> Result<()> {
    let name = cx.name();
    let client = cx.client().await?;
    let guard = client.lock(name.as_str())?.acquire().await?;
    cx.inflict(Fault::EndSessionOfHolder(name)).await?;
    // The long ttl's beat comes far later: only being told explains this.
    let bounds = cx.bounds_of(&client);
    let error = within(bounds.slack.min(bounds.beat / 2), "the loss is told", guard.lost()).await?;
    ensure!(error.kind() == ErrorKind::Lost && !guard.is_held(), "{error}");
    Ok(())
}

async fn an_ended_session_ends_all_its_holds_and_the_client_goes_on(cx: Cx) -> Result<()> {
    let client = cx.short_client().await?;
    let mut guards = Vec::new();
    for _ in 0..5 {
        guards.push(client.lock(cx.name().as_str())?.acquire().await?);
    }
    cx.inflict(Fault::EndSessionOfHolder(guards[0].name().clone())).await?;
    let bounds = cx.bounds_of(&client);
    for guard in &guards {
        within(bounds.beat + bounds.slack, "every hold of it is lost", guard.lost()).await?;
    }
    for guard in guards {
        let again = client.lock(guard.name().as_str())?.acquire_timeout(bounds.takeover()).await?;
        let again = again.with_context(|| format!("{:?} is not free", guard.name()))?;
        ensure!(again.token() > guard.token(), "{} after {}", again.token(), guard.token());
        again.release().await?;
    }
    Ok(())
}

async fn a_deleted_entry_is_told_to_its_holder_within_a_beat(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.short_client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    cx.inflict(Fault::DeleteEntries(name)).await?;
    let bounds = cx.bounds_of(&client);
    within(bounds.beat + bounds.slack, "the loss is told", guard.lost()).await?;
    ensure!(!guard.is_held(), "lost is final");
    Ok(())
}

async fn a_deleted_entry_ends_no_other_hold(cx: Cx) -> Result<()> {
    let client = cx.short_client().await?;
    let mut guards: Vec<LockGuard> = Vec::new();
    for _ in 0..10 {
        guards.push(client.lock(cx.name().as_str())?.acquire().await?);
    }
    let deleted = guards.swap_remove(3);
    cx.inflict(Fault::DeleteEntries(deleted.name().clone())).await?;
    let bounds = cx.bounds_of(&client);
    within(bounds.beat + bounds.slack, "the loss is told", deleted.lost()).await?;
    cx.renewed(&guards, bounds).await?;
    ensure!(client.status().current() == Status::Connected, "{:?}", client.status().current());
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    ensure!(lost == 0, "{lost} others are lost with it");
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

async fn a_lost_lock_is_answered_as_lost(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.short_client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let token = guard.token();
    cx.inflict(Fault::DeleteEntries(name.clone())).await?;
    let bounds = cx.bounds_of(&client);
    within(bounds.beat + bounds.slack, "the loss is told", guard.lost()).await?;
    let next = cx.lock(&name).await?.acquire().await?;
    ensure!(next.token() > token, "{} after {token}", next.token());
    ensure!(kind(guard.check())? == ErrorKind::Lost, "another kind");
    ensure!(kind(guard.release().await)? == ErrorKind::Lost, "another kind");
    // That nothing happens: whatever the late release may have set off in the background.
    sleep(bounds.beat * 2).await;
    ensure!(next.is_held(), "the release of a lost hold disturbed the next holder");
    ensure!(cx.is_taken(&name).await?, "the release of a lost hold freed the next holder's lock");
    Ok(next.release().await?)
}

async fn a_waiter_whose_entry_was_deleted_comes_again(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.short_client().await?);
    let held = cx.short_client().await?.lock(name.as_str())?.acquire().await?;
    let waiter = cx.enqueue(&client.lock(name.as_str())?, 0).await?;
    cx.inflict(Fault::DeleteEntries(name.clone())).await?;
    let bounds = cx.bounds_of(&client);
    within(bounds.beat + bounds.slack, "the holder is told", held.lost()).await?;
    let guard = within(bounds.takeover(), "the waiter is granted", waiter).await???;
    ensure!(guard.token() > held.token(), "{} after {}", guard.token(), held.token());
    Ok(guard.release().await?)
}

async fn a_waiter_whose_session_ended_comes_again(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.short_client().await?);
    let held = cx.lock(&name).await?.acquire().await?;
    let waiter = cx.enqueue(&client.lock(name.as_str())?, 0).await?;
    let mut status = client.status();
    status.current();
    cx.inflict(Fault::EndSessionOfWaiter(name.clone())).await?;
    let bounds = cx.bounds_of(&client);
    // A status that is over before anybody looks is not told: `Lost` may have become `Connected` again.
    let told = async { while matches!(status.changed().await, Status::Suspect { .. }) {} };
    within(bounds.beat + bounds.slack, "the waiter's client is told", told).await?;
    cx.waits_behind(&name, 0).await.context("the waiter is in the queue again")?;
    ensure!(held.is_held() && !waiter.is_finished(), "granted on a dead entry, beside a holder");
    held.release().await?;
    Ok(within(bounds.takeover(), "the waiter is granted", waiter).await???.release().await?)
}

async fn work_under_a_lost_lock_is_stopped(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.short_client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    cx.inflict(Fault::DeleteEntries(name)).await?;
    let bounds = cx.bounds_of(&client);
    let work = guard.run(std::future::pending::<()>());
    let outcome = within(bounds.beat + bounds.slack, "the work is dropped", work).await?;
    match outcome {
        Err(RunError::Stopped(error)) if error.kind() == ErrorKind::Lost => Ok(()),
        other => bail!("not stopped by the loss: {other:?}"),
    }
}

async fn releasing_one_of_many_locks_disturbs_no_other(cx: Cx) -> Result<()> {
    let client = cx.short_client().await?;
    let mut guards: Vec<LockGuard> = Vec::new();
    for _ in 0..10 {
        guards.push(client.lock(cx.name().as_str())?.acquire().await?);
    }
    let busy = client.lock(guards[0].name().as_str())?;
    guards.swap_remove(4).release().await?;
    drop(guards.swap_remove(5));
    busy_or_silent(busy.acquire_timeout(Duration::from_millis(50)).await)?;
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
        let (name, client) = (cx.name(), cx.short_client().await?);
        let (beat, cx) = (cx.bounds_of(&client).beat, cx.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..cycles {
                let guard = client.lock(name.as_str())?.acquire().await?;
                // Chance decides where the release falls: now and then a beat is on its way.
                sleep(cx.part_of(beat.mul_f64(1.5))).await;
                guard.release().await?;
            }
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    ensure!(cx.log().renewals() > 0, "no cycle was long enough for a beat");
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
        ensure!(Some(guard.token()) > last, "{} after {last:?}", guard.token());
        last = Some(guard.token());
        cx.inflict(Fault::EndSessionOfHolder(name.clone())).await?;
        within(bounds.beat + bounds.slack, "the loss is told", guard.lost()).await?;
    }
    Ok(())
}
