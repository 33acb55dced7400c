//! Servers that stand still, and servers that start again.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lockkit_core::{ErrorKind, Status};
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    Case, Fault, Hook,
    case::{Need, case},
    context::{Cx, kind, within},
};

const FREEZE: Need = Need::Hook(Hook::Freeze);
const RESTART: Need = Need::Hook(Hook::Restart);

pub(super) const CASES: &[Case] = &[
    case!(a_short_standstill_of_the_server_loses_nothing: F7, P11 P14, needs FREEZE, Need::Ttl; bugs 7 66),
    case!(a_standing_server_makes_its_clients_suspect: F7, P11, needs FREEZE, Need::SessionLifetime; bugs 64),
    case!(a_hold_ends_at_its_deadline_when_the_server_stands_still: F8, P1 P11,
        needs FREEZE, Need::Ttl; bugs 34 63 72),
    case!(after_a_long_standstill_there_is_one_holder_and_tokens_rise: F8, P1 P3,
        needs FREEZE, Need::Ttl; bugs 7 10 24),
    case!(a_late_answer_revives_no_lost_hold: F8, P11, needs FREEZE, Need::Ttl; bugs 42 56 58),
    case!(a_release_at_a_standing_server_is_answered_and_done_later: F19, P6 P12,
        needs FREEZE, Need::Ttl; bugs 25 51 62 63),
    case!(a_dropped_acquire_at_a_standing_server_leaves_nothing: A4 E7, P6, needs FREEZE; bugs 21 26 71),
    case!(a_closing_client_is_answered_while_the_server_stands_still: A8, P12, needs FREEZE, Need::Ttl; bugs 27),
    case!(a_hold_survives_a_quick_restart_or_is_lost_truthfully: F9, P1 P11, needs RESTART; bugs 18 20),
    case!(waiters_are_served_after_a_restart: F9, P5, needs RESTART; bugs 18 20 32),
    case!(tokens_rise_over_a_restart: F9 C11, P3, needs RESTART; bugs 47),
];

async fn a_short_standstill_of_the_server_loses_nothing(cx: Cx) -> Result<()> {
    // Long enough that what is left of it behind the standstill holds a busy machine's own delays.
    let (name, client) = (cx.name(), cx.client_with_ttl(cx.short_ttl() * 3).await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    cx.inflict(Fault::Freeze).await?;
    // The standstill itself.
    sleep(bounds.validity.mul_f64(0.55)).await;
    cx.inflict(Fault::Thaw).await?;
    cx.renewed(std::slice::from_ref(&guard), bounds).await?;
    ensure!(guard.is_held(), "lost: {:?}", guard.check().err());
    Ok(guard.release().await?)
}

async fn a_standing_server_makes_its_clients_suspect(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.short_client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    let mut status = client.status();
    cx.inflict(Fault::Freeze).await?;
    let suspect = async { while !matches!(status.changed().await, Status::Suspect { .. }) {} };
    within(bounds.validity, "the client is suspect", suspect).await?;
    cx.inflict(Fault::Thaw).await?;
    let end = async {
        loop {
            match status.changed().await {
                Status::Connected => break true,
                Status::Lost | Status::Closed => break false,
                _ => {}
            }
        }
    };
    let recovered = within(bounds.ttl + bounds.slack, "the client recovers or is lost", end).await?;
    ensure!(recovered || !guard.is_held(), "lost, but the guard does not know");
    ensure!(recovered || !cx.is_paused(), "half a ttl without an answer lost the session");
    drop(guard);
    Ok(())
}

async fn a_hold_ends_at_its_deadline_when_the_server_stands_still(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.short_client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    cx.inflict(Fault::Freeze).await?;
    // Whatever was answered was sent before, and lifetimes count from the sending. Load makes the look later only.
    sleep_until(Instant::now() + bounds.validity).await;
    let held_in_silence = guard.is_held();
    let told = within(bounds.slack, "the loss is told", guard.lost()).await;
    cx.inflict(Fault::Thaw).await?;
    ensure!(!held_in_silence, "still held after {:?} of silence", bounds.validity);
    ensure!(told?.kind() == ErrorKind::Lost && !guard.is_held(), "lost is final");
    Ok(())
}

async fn after_a_long_standstill_there_is_one_holder_and_tokens_rise(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.short_client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let other = cx.short_client().await?;
    let waiter = cx.enqueue(&other.lock(name.as_str())?, 0).await?;
    let bounds = cx.bounds_of(&client);
    cx.inflict(Fault::Freeze).await?;
    // The standstill itself: everything expires in it.
    sleep(bounds.ttl * 3).await;
    let held_in_silence = guard.is_held();
    cx.inflict(Fault::Thaw).await?;
    ensure!(!held_in_silence, "three ttls without an answer, and still held");
    let next = within(bounds.takeover() * 2, "the waiter is granted", waiter).await???;
    ensure!(!guard.is_held(), "two holders");
    ensure!(next.token() > guard.token(), "{} after {}", next.token(), guard.token());
    drop(guard);
    // That nothing happens: whatever the end of the old guard may have set off in the background.
    sleep(bounds.beat).await;
    let third = cx.lock(&name).await?.try_acquire().await?;
    // Also when its session was being opened while the server stood still.
    ensure!(next.is_held(), "the next holder was lost: {:?}", next.check().err());
    ensure!(third.is_none(), "the old guard's drop freed the next holder's lock");
    Ok(next.release().await?)
}

async fn a_late_answer_revives_no_lost_hold(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.short_client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    cx.inflict(Fault::Freeze).await?;
    let told = within(bounds.validity + bounds.slack, "the loss is told", guard.lost()).await;
    cx.inflict(Fault::Thaw).await?;
    told?;
    let again = client.lock(name.as_str())?.acquire_timeout(bounds.takeover() * 2).await?;
    let again = again.context("the client can lock again")?;
    ensure!(!guard.is_held(), "revived");
    ensure!(again.token() > guard.token(), "{} after {}", again.token(), guard.token());
    Ok(again.release().await?)
}

async fn a_release_at_a_standing_server_is_answered_and_done_later(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.short_client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    cx.inflict(Fault::Freeze).await?;
    let longest = lockkit_core::limits::RELEASE_ANSWER_MAX + bounds.slack;
    let released = within(longest, "the release is answered", guard.release()).await;
    cx.inflict(Fault::Thaw).await?;
    let unconfirmed = kind(released?)?;
    ensure!(
        matches!(unconfirmed, ErrorKind::Unavailable | ErrorKind::Lost),
        "not confirmed, but {unconfirmed:?}"
    );
    let again = client.lock(name.as_str())?.acquire_timeout(bounds.takeover() * 2).await?;
    Ok(again.context("the same client can lock it again")?.release().await?)
}

async fn a_dropped_acquire_at_a_standing_server_leaves_nothing(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.client().await?);
    let lock = client.lock(name.as_str())?;
    cx.inflict(Fault::Freeze).await?;
    for _ in 0..5 {
        // Dropped while its request is on its way.
        let _ = tokio::time::timeout(Duration::from_millis(20), lock.acquire()).await;
    }
    cx.inflict(Fault::Thaw).await?;
    let next = cx.client().await?;
    let bound = cx.bounds_of(&next).cleanup();
    let guard = next.lock(name.as_str())?.acquire_timeout(bound).await?;
    Ok(guard.context("a dropped acquire is in the way")?.release().await?)
}

async fn a_closing_client_is_answered_while_the_server_stands_still(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.short_client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    cx.inflict(Fault::Freeze).await?;
    let closed = within(bounds.ttl + bounds.slack, "the close is answered", client.close()).await;
    cx.inflict(Fault::Thaw).await?;
    ensure!(kind(closed?)? == ErrorKind::Unavailable, "nobody has confirmed it");
    ensure!(!guard.is_held(), "a closed client holds nothing");
    Ok(())
}

async fn a_hold_survives_a_quick_restart_or_is_lost_truthfully(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    cx.inflict(Fault::Restart).await?;
    let other = cx.lock(&name).await?;
    for _ in 0..5 {
        let taken = other.try_acquire().await?;
        ensure!(taken.is_none() || !guard.is_held(), "two holders after a restart");
        drop(taken);
        // That nothing happens for a while: a lease that the server found again may run out late.
        sleep(Duration::from_millis(200)).await;
    }
    drop(guard);
    Ok(())
}

async fn waiters_are_served_after_a_restart(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.client().await?);
    let held = client.lock(name.as_str())?.acquire().await?;
    let waiter = cx.enqueue(&cx.lock(&name).await?, 0).await?;
    cx.inflict(Fault::Restart).await?;
    drop(held);
    let bounds = cx.bounds_of(&client);
    Ok(within(bounds.takeover(), "the waiter is granted", waiter).await???.release().await?)
}

async fn tokens_rise_over_a_restart(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let before = guard.token();
    guard.release().await?;
    cx.inflict(Fault::Restart).await?;
    let guard = cx.lock(&name).await?.acquire().await?;
    ensure!(guard.token() > before, "{} after {before}", guard.token());
    Ok(guard.release().await?)
}
