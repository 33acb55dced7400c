//! Servers that freeze, and servers that restart.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lockkit_core::{ErrorKind, Status, backend::QueueKind};
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    Case, Hook, StoreFault,
    case::{Need, case},
    context::{Cx, kind, rises, within},
};

const FREEZE: Need = Need::Hook(Hook::Freeze);
const RESTART: Need = Need::Hook(Hook::Restart);

pub(super) const CASES: &[Case] = &[
    case!(short_freeze_of_the_server_loses_nothing: BoundedLoss Isolation,
        needs FREEZE, Need::Ttl; bugs 7 66),
    case!(frozen_server_makes_its_clients_suspect: BoundedLoss, needs FREEZE, Need::Ttl; bugs 64),
    case!(a_hold_ends_at_its_deadline_when_the_server_is_frozen: TimedExclusion BoundedLoss,
        needs FREEZE, Need::Ttl; bugs 34 63 72),
    case!(one_holder_and_rising_tokens_after_a_long_freeze: TimedExclusion TokenOrder,
        needs FREEZE, Need::Ttl; bugs 7 10 24),
    case!(late_reply_revives_no_lost_hold: BoundedLoss, needs FREEZE, Need::Ttl; bugs 42 56 58),
    case!(release_at_a_frozen_server_returns_in_time_and_is_done_later: NoOrphan TruthfulErrors,
        needs FREEZE, Need::Ttl; bugs 25 51 62 63),
    case!(acquire_dropped_while_the_server_is_frozen_leaves_nothing: NoOrphan, needs FREEZE; bugs 21 26 71),
    case!(close_returns_in_time_while_the_server_is_frozen: TruthfulErrors, needs FREEZE, Need::Ttl; bugs 27),
    case!(hold_survives_a_quick_restart_or_is_reported_lost: TimedExclusion BoundedLoss,
        needs RESTART; bugs 18 20),
    case!(waiters_are_served_after_a_restart: NoLostWakeUp, needs RESTART; bugs 18 20 32),
    case!(tokens_rise_over_a_restart: TokenOrder, needs RESTART; bugs 47),
    case!(server_that_is_down_costs_its_clients_little_processor_time: NoLostWakeUp,
        needs Need::Hook(Hook::Processes), Need::Hook(Hook::Stop); bugs 20),
];

async fn short_freeze_of_the_server_loses_nothing(cx: Cx) -> Result<()> {
    // Long enough that the rest of it after the freeze covers the delays of a loaded machine.
    let (name, client) = (cx.name(), cx.client_with_ttl(cx.short_ttl() * 3).await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    cx.inflict(StoreFault::Freeze).await?;
    // The freeze itself.
    sleep(bounds.validity.mul_f64(0.55)).await;
    cx.inflict(StoreFault::Thaw).await?;
    cx.renewed(std::slice::from_ref(&guard), bounds).await?;
    ensure!(guard.is_held(), "lost: {:?}", guard.check().err());
    Ok(guard.release().await?)
}

async fn frozen_server_makes_its_clients_suspect(cx: Cx) -> Result<()> {
    // A machine that is busy for half of the ttl would hide this status: the next one is the loss.
    let (name, client) = (cx.name(), cx.steady_client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    let mut status = client.status();
    cx.inflict(StoreFault::Freeze).await?;
    // On a busy machine it may be suspect already.
    let is_suspect = |now| matches!(now, Status::Suspect { .. });
    let suspect = async { while !is_suspect(status.current()) && !is_suspect(status.changed().await) {} };
    within(bounds.validity, "the client is suspect", suspect).await?;
    cx.inflict(StoreFault::Thaw).await?;
    let end = async {
        loop {
            match status.current() {
                Status::Connected => break true,
                Status::Lost | Status::Closed => break false,
                _ => {
                    status.changed().await;
                }
            }
        }
    };
    let recovered = within(bounds.ttl + bounds.slack, "the client recovers or is lost", end).await?;
    ensure!(recovered || !guard.is_held(), "lost, but the guard does not know");
    ensure!(recovered || !cx.is_paused(), "half a ttl without an answer lost the session");
    drop(guard);
    Ok(())
}

async fn a_hold_ends_at_its_deadline_when_the_server_is_frozen(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.short_client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    cx.inflict(StoreFault::Freeze).await?;
    // Every answered request was sent before the freeze, and lifetimes count from the sending. Load can only make this
    // reading later.
    sleep_until(Instant::now() + bounds.validity).await;
    let held_in_silence = guard.is_held();
    let lost = within(bounds.slack, "the loss is reported", guard.lost()).await;
    cx.inflict(StoreFault::Thaw).await?;
    ensure!(!held_in_silence, "still held after {:?} of silence", bounds.validity);
    ensure!(lost?.kind() == ErrorKind::Lost && !guard.is_held(), "lost is final");
    Ok(())
}

async fn one_holder_and_rising_tokens_after_a_long_freeze(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.short_client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    // Long enough that the next hold lasts on a loaded machine, and shorter than the freeze.
    let other = cx.client_with_ttl(cx.short_ttl() * 2).await?;
    let waiter = cx.enqueue(&other.lock(name.as_str())?, 0).await?;
    let bounds = cx.bounds_of(&client);
    cx.inflict(StoreFault::Freeze).await?;
    // The freeze itself: everything expires in it.
    sleep(bounds.ttl * 3).await;
    let held_in_silence = guard.is_held();
    cx.inflict(StoreFault::Thaw).await?;
    ensure!(!held_in_silence, "three ttls without an answer, and still held");
    let next = within(bounds.takeover() * 2, "the waiter is granted", waiter).await???;
    ensure!(!guard.is_held(), "two holders");
    rises(guard.token(), next.token())?;
    drop(guard);
    // Nothing must happen in this time, whatever the drop of the old guard has started in the background.
    sleep(bounds.heartbeat).await;
    let third = cx.lock(&name).await?.try_acquire().await?;
    // Also when its session was opened during the freeze.
    ensure!(next.is_held(), "the next holder was lost: {:?}", next.check().err());
    ensure!(third.is_none(), "the old guard's drop freed the next holder's lock");
    Ok(next.release().await?)
}

async fn late_reply_revives_no_lost_hold(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.short_client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    cx.inflict(StoreFault::Freeze).await?;
    let lost = within(bounds.validity + bounds.slack, "the loss is reported", guard.lost()).await;
    cx.inflict(StoreFault::Thaw).await?;
    lost?;
    let again = client.lock(name.as_str())?.acquire_timeout(bounds.takeover() * 2).await?;
    let again = again.context("the client can lock again")?;
    ensure!(!guard.is_held(), "revived");
    rises(guard.token(), again.token())?;
    Ok(again.release().await?)
}

async fn release_at_a_frozen_server_returns_in_time_and_is_done_later(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.short_client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    cx.inflict(StoreFault::Freeze).await?;
    let longest = lockkit_core::limits::RELEASE_ANSWER_MAX + bounds.slack;
    let released = within(longest, "the release returns", guard.release()).await;
    cx.inflict(StoreFault::Thaw).await?;
    let unconfirmed = kind(released?)?;
    ensure!(
        matches!(unconfirmed, ErrorKind::Unavailable | ErrorKind::Lost),
        "an unconfirmed release failed with {unconfirmed:?}"
    );
    let again = client.lock(name.as_str())?.acquire_timeout(bounds.takeover() * 2).await?;
    Ok(again.context("the same client can lock it again")?.release().await?)
}

async fn acquire_dropped_while_the_server_is_frozen_leaves_nothing(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.client().await?);
    let lock = client.lock(name.as_str())?;
    cx.inflict(StoreFault::Freeze).await?;
    for _ in 0..5 {
        // Dropped while its request is unanswered.
        let _ = tokio::time::timeout(Duration::from_millis(20), lock.acquire()).await;
    }
    cx.inflict(StoreFault::Thaw).await?;
    let next = cx.client().await?;
    let bound = cx.bounds_of(&next).cleanup();
    let guard = next.lock(name.as_str())?.acquire_timeout(bound).await?;
    Ok(guard.context("a dropped acquire is in the way")?.release().await?)
}

async fn close_returns_in_time_while_the_server_is_frozen(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.short_client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    cx.inflict(StoreFault::Freeze).await?;
    let closed = within(bounds.ttl + bounds.slack, "the close returns", client.close()).await;
    cx.inflict(StoreFault::Thaw).await?;
    ensure!(kind(closed?)? == ErrorKind::Unavailable, "the close was not confirmed");
    ensure!(!guard.is_held(), "a closed client holds nothing");
    Ok(())
}

async fn hold_survives_a_quick_restart_or_is_reported_lost(cx: Cx) -> Result<()> {
    // Long enough that a restart on a busy machine takes a small part of it.
    let (name, client) = (cx.name(), cx.client_with_ttl(cx.short_ttl() * 4).await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let (bounds, start) = (cx.bounds_of(&client), Instant::now());
    cx.inflict(StoreFault::Restart).await?;
    let is_quick = start.elapsed() < bounds.validity / 3;
    let (before, other) = (cx.log().renewed(&name), cx.lock(&name).await?);
    // One heartbeat may have been answered just before the server went down.
    let settled = async || {
        let taken = other.try_acquire().await;
        ensure!(!matches!(taken, Ok(Some(_))) || !guard.is_held(), "two holders after a restart");
        Ok(!guard.is_held() || cx.log().renewed(&name) >= before + 2)
    };
    cx.eventually(bounds.ttl + bounds.slack, "the hold is renewed or lost", settled).await?;
    ensure!(guard.is_held() || !is_quick, "lost by a quick restart: {:?}", guard.check().err());
    drop(guard);
    Ok(())
}

async fn waiters_are_served_after_a_restart(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.client().await?);
    let held = client.lock(name.as_str())?.acquire().await?;
    let waiter = cx.enqueue(&cx.lock(&name).await?, 0).await?;
    cx.inflict(StoreFault::Restart).await?;
    drop(held);
    let bounds = cx.bounds_of(&client);
    Ok(within(bounds.takeover(), "the waiter is granted", waiter).await???.release().await?)
}

async fn tokens_rise_over_a_restart(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.client().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let before = guard.token();
    guard.release().await?;
    cx.inflict(StoreFault::Restart).await?;
    let guard = cx.lock(&name).await?.acquire().await?;
    rises(before, guard.token())?;
    Ok(guard.release().await?)
}

async fn server_that_is_down_costs_its_clients_little_processor_time(cx: Cx) -> Result<()> {
    const LOCKS: u64 = 10;
    const DOWN: Duration = Duration::from_secs(5);
    // Heartbeats fall into the time in which the server is down.
    let (client, worker) = (cx.client().await?, cx.worker(cx.short_ttl() * 4).await?);
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for slot in 0..LOCKS {
        let name = cx.name();
        worker.acquire(slot, &cx.name()).await?;
        held.push(client.lock(name.as_str())?.acquire().await?);
        waiting.push(worker.begin_acquire(LOCKS + slot, &name)?);
        if cx.promises().queue == QueueKind::Fifo {
            cx.waits_behind(&name, 0).await?;
        }
    }
    cx.inflict(StoreFault::Stop).await?;
    let before = worker.processor_time().await?;
    let start = Instant::now();
    // The outage itself.
    sleep(DOWN).await;
    let used = worker.processor_time().await? - before;
    let down = start.elapsed();
    cx.inflict(StoreFault::Start).await?;
    cx.publish("processor time while the server is down [ms]", used.as_secs_f64() * 1e3);
    ensure!(used <= down / 10, "{used:?} of processor time in {down:?} without a server");
    for (guard, waiting) in held.into_iter().zip(waiting) {
        // Its time limit may end before the client has connected again. Then it is repeated.
        if let Err(error) = guard.release().await {
            ensure!(error.kind() == ErrorKind::Unavailable, "the release ended with {error}");
        }
        within(cx.bounds_of(&client).takeover(), "the waiter is granted", waiting.granted()).await??;
    }
    Ok(())
}
