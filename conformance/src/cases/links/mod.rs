//! Faults of the connection between client and store: lost replies, late requests, dropped notifications.

mod notifications;

use std::{pin::pin, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lockkit_core::{
    ErrorKind, LockClient,
    backend::Backend,
    limits::{RETRY_PAUSE_MIN, TRY_ANSWER_MAX},
};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::notifications::{
    a_loss_is_found_without_notifications, late_notification_grants_nothing,
    no_wake_up_is_lost_without_notifications,
};
use super::stores::is_notified;
use crate::{
    Case, ClientLink, Hook, LinkFault,
    case::{Need, case},
    context::{Cx, busy_or_unavailable, kind, within},
    direct::take,
};

const SWALLOW: Need = Need::Hook(Hook::SwallowReplies);
const HOLD: Need = Need::Hook(Hook::HoldRequests);
const NO_NOTIFICATIONS: Need = Need::Hook(Hook::DropNotifications);
const NO_REPLIES: Need = Need::Hook(Hook::DropReplies);
const RESET: Need = Need::Hook(Hook::Reset);

pub(super) const CASES: &[Case] = &[
    case!(an_acquire_whose_reply_is_lost_is_granted_once: NoOrphan TruthfulErrors,
        needs SWALLOW; bugs 13 22 26 55),
    case!(a_try_whose_reply_is_lost_leaves_nothing: NoOrphan TruthfulErrors, needs SWALLOW; bugs 55),
    case!(release_whose_reply_is_lost_spares_the_next_grant: NoForeignRelease, needs SWALLOW; bugs 4 25),
    case!(lost_renewal_replies_end_no_hold: BoundedLoss, needs SWALLOW, Need::Ttl; bugs 64 66),
    case!(a_hold_ends_at_its_deadline_when_no_reply_arrives: BoundedLoss,
        needs SWALLOW, Need::Ttl; bugs 18 34 67 72),
    case!(a_hold_ends_at_its_deadline_when_no_request_arrives: BoundedLoss,
        needs HOLD, Need::Ttl; bugs 34 63),
    case!(acquire_that_reaches_no_server_is_unavailable_in_time: TruthfulErrors, needs HOLD; bugs 63),
    case!(a_request_that_arrives_after_its_cancel_leaves_nothing: NoOrphan, needs HOLD; bugs 21 39 71),
    case!(a_renewal_that_arrives_after_the_release_changes_nothing: NoLateRenewal,
        needs HOLD, Need::Ttl; bugs 40 42),
    case!(late_grant_counts_from_its_request: TimedExclusion BoundedLoss, needs HOLD, Need::Ttl; bugs 56 58),
    case!(no_wake_up_is_lost_without_notifications: NoLostWakeUp, needs NO_NOTIFICATIONS; bugs 9 15 45 69),
    case!(a_loss_is_found_without_notifications: BoundedLoss, needs NO_NOTIFICATIONS, Need::SessionLifetime,
        Need::Hook(Hook::EndSessionOfHolder); bugs 33 34),
    case!(holds_and_waits_end_in_time_when_no_reply_arrives: BoundedLoss TruthfulErrors,
        needs NO_REPLIES, Need::Ttl; bugs 34 63 67),
    case!(delayed_reply_shortens_the_lifetime: TimedExclusion BoundedLoss,
        needs Need::Hook(Hook::Delay), Need::Ttl; bugs 56 58),
    case!(a_trickle_of_bytes_neither_hangs_nor_doubles_a_lock: TimedExclusion TruthfulErrors,
        needs Need::Hook(Hook::Trickle), Need::Hook(Hook::Requests), Need::Ttl; bugs 34 63),
    case!(late_notification_grants_nothing: TimedExclusion NoLostWakeUp,
        needs Need::Hook(Hook::HoldNotifications); bugs 8 9 15),
    case!(holds_and_waiters_survive_resets: NoLostWakeUp BoundedLoss, needs RESET; bugs 18 32 37 44),
    case!(all_waiters_are_granted_over_flapping_connections: NoLostWakeUp NoResidue,
        needs RESET; bugs 18 32 37 44),
];

/// Returns a client whose connection to the store can be disturbed.
async fn linked(cx: &Cx, ttl: Duration) -> Result<(std::sync::Arc<dyn ClientLink>, LockClient)> {
    let link = cx.link().await?;
    let client = cx.client_of(cx.observe(link.backend()?), ttl).await?;
    Ok((link, client))
}

async fn an_acquire_whose_reply_is_lost_is_granted_once(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.long_ttl()).await?;
    for lost in 1..=3 {
        let name = cx.name();
        link.inflict(LinkFault::SwallowReplies(lost)).await?;
        let acquiring = client.lock(name.as_str())?;
        let acquiring = tokio::spawn(async move { acquiring.acquire().await });
        let bounds = cx.bounds_of(&client);
        let guard = within(bounds.takeover(), "the acquire returns", acquiring).await???;
        link.heal().await?;
        let other = cx.lock(&name).await?;
        ensure!(other.try_acquire().await?.is_none(), "{lost} lost replies: two holders");
        guard.release().await?;
        // A second entry of the same attempt would hold it now.
        let next = other.try_acquire().await?.context("free after its release")?;
        next.release().await?;
    }
    Ok(())
}

async fn a_try_whose_reply_is_lost_leaves_nothing(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.long_ttl()).await?;
    let name = cx.name();
    let held = cx.lock(&name).await?.acquire().await?;
    link.inflict(LinkFault::SwallowReplies(1)).await?;
    busy_or_unavailable(client.lock(name.as_str())?.try_acquire().await)?;
    link.heal().await?;
    held.release().await?;
    let other = cx.client().await?;
    let bound = cx.bounds_of(&other).cleanup();
    let next = other.lock(name.as_str())?.acquire_timeout(bound).await?;
    Ok(next.context("the try left an entry")?.release().await?)
}

async fn release_whose_reply_is_lost_spares_the_next_grant(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.long_ttl()).await?;
    let name = cx.name();
    let first = client.lock(name.as_str())?.acquire().await?;
    link.inflict(LinkFault::SwallowReplies(1)).await?;
    let released = tokio::spawn(first.release());
    let bounds = cx.bounds_of(&client);
    if cx.harness().hooks().contains(&Hook::Entries) {
        // Otherwise the lost reply may be that of the next acquire.
        let is_released = async || Ok(cx.entries(&name).await?.is_empty());
        cx.eventually(bounds.takeover(), "the lock was released", is_released).await?;
    }
    // The release is repeated, before or after the next grant of the same client.
    let again = client.lock(name.as_str())?.acquire_timeout(bounds.takeover()).await?;
    let again = again.context("the lock was released")?;
    link.heal().await?;
    let _ = within(bounds.takeover(), "the release returns", released).await??;
    sleep(bounds.recheck).await;
    ensure!(again.is_held(), "the repeated release ended the next hold");
    ensure!(cx.lock(&name).await?.try_acquire().await?.is_none(), "the store lost the next hold");
    Ok(again.release().await?)
}

async fn lost_renewal_replies_end_no_hold(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.short_ttl() * 2).await?;
    let guard = client.lock(cx.name().as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    for _ in 0..3 {
        link.inflict(LinkFault::SwallowReplies(1)).await?;
        sleep(bounds.heartbeat * 2).await;
        link.heal().await?;
        sleep(bounds.heartbeat).await;
        ensure!(guard.is_held(), "one lost reply ended the hold");
    }
    Ok(guard.release().await?)
}

async fn a_hold_ends_at_its_deadline_when_no_reply_arrives(cx: Cx) -> Result<()> {
    ends_at_its_deadline(&cx, LinkFault::SwallowReplies(usize::MAX)).await
}

async fn a_hold_ends_at_its_deadline_when_no_request_arrives(cx: Cx) -> Result<()> {
    ends_at_its_deadline(&cx, LinkFault::HoldRequests).await
}

async fn ends_at_its_deadline(cx: &Cx, fault: LinkFault) -> Result<()> {
    let (link, client) = linked(cx, cx.short_ttl()).await?;
    let name = cx.name();
    let guard = client.lock(name.as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    link.inflict(fault).await?;
    // Every answered request was sent before the fault, and lifetimes count from the sending. Load can only make this
    // reading later.
    sleep_until(Instant::now() + bounds.validity).await;
    let held_in_silence = guard.is_held();
    let lost = within(bounds.slack, "the loss is reported", guard.lost()).await;
    link.heal().await?;
    ensure!(!held_in_silence, "still held after {:?} of silence", bounds.validity);
    ensure!(lost?.kind() == ErrorKind::Lost && !guard.is_held(), "lost is final");
    let next = cx.lock(&name).await?.acquire_timeout(bounds.takeover()).await?;
    Ok(next.context("the dead hold is in the way")?.release().await?)
}

async fn acquire_that_reaches_no_server_is_unavailable_in_time(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.long_ttl()).await?;
    let (name, limit) = (cx.name(), Duration::from_millis(500));
    let lock = client.lock(name.as_str())?;
    link.inflict(LinkFault::HoldRequests).await?;
    let start = Instant::now();
    let result = lock.acquire_timeout(limit).await;
    let took = start.elapsed();
    link.heal().await?;
    ensure!(kind(result)? == ErrorKind::Unavailable, "wrong error kind");
    ensure!(took <= limit + cx.bounds_of(&client).slack, "returned after {took:?}");
    Ok(())
}

async fn a_request_that_arrives_after_its_cancel_leaves_nothing(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.long_ttl()).await?;
    let other = cx.client().await?;
    let bound = cx.bounds_of(&other).cleanup();
    for _ in 0..cx.times(1_000, 10) {
        let name = cx.name();
        let lock = client.lock(name.as_str())?;
        link.inflict(LinkFault::HoldRequests).await?;
        let acquiring = tokio::spawn(async move { lock.acquire().await });
        sleep(cx.part_of(Duration::from_millis(40))).await;
        acquiring.abort();
        sleep(cx.part_of(Duration::from_millis(40))).await;
        link.heal().await?;
        let guard = other.lock(name.as_str())?.acquire_timeout(bound).await?;
        guard.context("a cancelled acquire is in the way")?.release().await?;
    }
    Ok(())
}

async fn a_renewal_that_arrives_after_the_release_changes_nothing(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.short_ttl() * 2).await?;
    let name = cx.name();
    let bounds = cx.bounds_of(&client);
    let guard = client.lock(name.as_str())?.acquire().await?;
    cx.renewed(std::slice::from_ref(&guard), bounds).await?;
    link.inflict(LinkFault::HoldRequests).await?;
    let before = cx.log().renewals();
    let begun = async || Ok(cx.log().renewals() > before);
    cx.eventually(bounds.validity, "a heartbeat begins", begun).await?;
    // The heartbeat is held back; the release follows it.
    let releasing = tokio::spawn(guard.release());
    let follows = async || Ok(cx.log().releasing(&name) > 0);
    cx.eventually(bounds.validity, "the release begins", follows).await?;
    link.heal().await?;
    within(bounds.takeover(), "the release returns", releasing).await???;
    ensure!(!cx.is_taken(&name).await?, "the late renewal brought the old hold back");
    let next = cx.lock(&name).await?.acquire_timeout(bounds.cleanup()).await?;
    let next = next.context("the late renewal brought the old hold back")?;
    sleep(bounds.ttl).await;
    ensure!(next.is_held(), "disturbed: {:?}", next.check().err());
    ensure!(cx.is_taken(&name).await?, "the late renewal freed the next holder's lock");
    next.release().await?;
    ensure!(!cx.is_taken(&name).await?, "the late renewal outlives the next hold");
    Ok(())
}

async fn late_grant_counts_from_its_request(cx: Cx) -> Result<()> {
    let (link, name, clock) = (cx.link().await?, cx.name(), cx.clock());
    let session = cx.observe(link.backend()?).open_session(cx.long_ttl(), clock.clone()).await?;
    link.inflict(LinkFault::HoldRequests).await?;
    // Polled here and not in a task, which a loaded machine may run only after the request's arrival.
    let mut taking = pin!(take(&session, &name));
    // The pause itself: the request is held back for this time. It passes also if there is an answer already.
    let pause = cx.short_ttl() / 4;
    let (unanswered, ()) = tokio::join!(timeout(pause, taking.as_mut()), sleep(pause));
    let arrives = clock.now();
    link.heal().await?;
    let bound = cx.bounds(session.ttl()).cleanup();
    let grant = match unanswered {
        Ok(ended) => ended?,
        Err(_) => within(bound, "the claim ends", taking).await??,
    };
    ensure!(
        grant.armed_at() < arrives,
        "the lifetime counts from {:?} after the request's arrival",
        grant.armed_at().since(arrives)
    );
    ensure!(cx.is_taken(&name).await?, "the lock was granted, but is free");
    session.release(&grant).await?;
    Ok(session.close().await?)
}

async fn holds_and_waits_end_in_time_when_no_reply_arrives(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.short_ttl()).await?;
    let (name, busy) = (cx.name(), cx.name());
    let other = cx.lock(&busy).await?.acquire().await?;
    let guard = client.lock(name.as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    let waiting = client.lock(busy.as_str())?;
    let waiter = tokio::spawn(async move { waiting.acquire_timeout(bounds.ttl).await });
    cx.waits_behind(&busy, 0).await?;
    link.inflict(LinkFault::DropReplies).await?;
    let lost = within(bounds.validity + bounds.slack, "the loss is reported", guard.lost()).await;
    let waited = within(bounds.ttl + bounds.slack, "the wait ends", waiter).await;
    let start = Instant::now();
    let tried = client.lock(busy.as_str())?.try_acquire().await;
    let took = start.elapsed();
    link.heal().await?;
    ensure!(lost?.kind() == ErrorKind::Lost && !guard.is_held(), "lost is final");
    busy_or_unavailable(waited??)?;
    ensure!(kind(tried)? == ErrorKind::Unavailable, "wrong error kind for the try");
    ensure!(took <= TRY_ANSWER_MAX + bounds.slack, "the try took {took:?}");
    ensure!(other.is_held(), "lost: {:?}", other.check().err());
    other.release().await?;
    let next = client.lock(busy.as_str())?.acquire_timeout(bounds.takeover() * 2).await?;
    Ok(next.context("the client can lock again")?.release().await?)
}

async fn delayed_reply_shortens_the_lifetime(cx: Cx) -> Result<()> {
    // Not the least ttl: on a busy machine a client may lose its connection, and late replies leave little time to renew
    // the hold over the next one.
    let (link, client) = linked(&cx, cx.short_ttl() * 3).await?;
    let bounds = cx.bounds_of(&client);
    let delay = bounds.ttl / 90;
    link.inflict(LinkFault::Delay(delay)).await?;
    let guard = client.lock(cx.name().as_str())?.acquire().await?;
    let (start, mut most) = (Instant::now(), Duration::ZERO);
    while start.elapsed() < bounds.ttl * 2 {
        // The most is left just after a reply.
        most = most.max(guard.remaining());
        sleep(Duration::from_millis(5)).await;
    }
    ensure!(
        most <= bounds.validity - delay,
        "{most:?} left of {:?}, with replies that take {delay:?}",
        bounds.validity
    );
    ensure!(guard.is_held(), "lost: {:?}", guard.check().err());
    link.heal().await?;
    Ok(guard.release().await?)
}

async fn a_trickle_of_bytes_neither_hangs_nor_doubles_a_lock(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.short_ttl()).await?;
    let (name, busy) = (cx.name(), cx.name());
    let (other, held) = (cx.lock(&name).await?, cx.lock(&busy).await?.acquire().await?);
    let guard = client.lock(name.as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    let (start, before) = (Instant::now(), cx.requests().await?);
    link.inflict(LinkFault::Trickle(Duration::from_millis(200))).await?;
    let try_busy = client.lock(busy.as_str())?;
    let tried = within(TRY_ANSWER_MAX + bounds.slack, "the try returns", try_busy.try_acquire()).await?;
    busy_or_unavailable(tried)?;
    // The renewals of some stores need only a few bytes.
    let mut next = other.acquire_timeout(bounds.takeover()).await?;
    if next.is_none() && !guard.is_held() {
        // Lost just now: the store frees it a moment later.
        next = other.acquire_timeout(bounds.takeover()).await?;
    }
    ensure!(next.is_none() || !guard.is_held(), "two holders");
    ensure!(next.is_some() || guard.is_held(), "the lock has no holder");
    let (sent, retries) =
        (cx.requests().await? - before, start.elapsed().as_millis() / RETRY_PAUSE_MIN.as_millis());
    // The heartbeat, the wait, the try and the notifications may each be repeated.
    ensure!(u128::from(sent) <= 4 * retries, "{sent} requests in {:?}", start.elapsed());
    link.heal().await?;
    drop((guard, next));
    Ok(held.release().await?)
}

async fn all_waiters_are_granted_over_flapping_connections(cx: Cx) -> Result<()> {
    const LOCKS: usize = 20;
    let (link, client) = linked(&cx, cx.long_ttl()).await?;
    let waiting = cx.client_of(cx.observe(link.backend()?), cx.long_ttl()).await?;
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    for _ in 0..LOCKS {
        let name = cx.name();
        holders.push(client.lock(name.as_str())?.acquire().await?);
        waiters.push(cx.enqueue(&waiting.lock(name.as_str())?, 0).await?);
    }
    for _ in 0..50 {
        link.inflict(LinkFault::Reset).await?;
        sleep(cx.part_of(Duration::from_millis(400))).await;
    }
    let bounds = cx.bounds_of(&client);
    for (holder, waiter) in holders.into_iter().zip(waiters) {
        ensure!(holder.is_held(), "lost: {:?}", holder.check().err());
        ensure!(!waiter.is_finished(), "two holders");
        holder.release().await?;
        within(bounds.takeover(), "the waiter is granted", waiter).await???.release().await?;
    }
    is_notified(&cx, &waiting).await
}

async fn holds_and_waiters_survive_resets(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.short_ttl() * 2).await?;
    let (name, busy) = (cx.name(), cx.name());
    let guard = client.lock(name.as_str())?.acquire().await?;
    let other = cx.lock(&busy).await?.acquire().await?;
    let waiter = cx.enqueue(&client.lock(busy.as_str())?, 0).await?;
    let bounds = cx.bounds_of(&client);
    for _ in 0..15 {
        link.inflict(LinkFault::Reset).await?;
        sleep(bounds.ttl / 5).await;
        // On a slow machine no heartbeat fits between resets of a fixed pace, and the hold is rightly lost.
        while guard.is_held() && guard.remaining() < bounds.ttl / 2 {
            sleep(bounds.ttl / 50).await;
        }
    }
    ensure!(guard.is_held(), "lost: {:?}", guard.check().err());
    other.release().await?;
    let next = within(bounds.takeover(), "the waiter is granted", waiter).await???;
    next.release().await?;
    guard.release().await?;
    is_notified(&cx, &client).await
}
