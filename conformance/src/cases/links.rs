//! What a bad way between client and store does: replies that get lost, requests that come late, words not passed on.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lockkit_core::{
    ErrorKind, LockClient,
    backend::Backend,
    limits::{RETRY_PAUSE_MIN, TRY_ANSWER_MAX},
};
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    Case, Hook, Link, LinkFault,
    case::{Need, case},
    context::{Cx, busy_or_silent, kind, within},
    driven::take,
};

const SWALLOW: Need = Need::Hook(Hook::SwallowReplies);
const HOLD: Need = Need::Hook(Hook::HoldRequests);
const MUTE: Need = Need::Hook(Hook::DropNotifications);
const DEAF: Need = Need::Hook(Hook::DropReplies);
const RESET: Need = Need::Hook(Hook::Reset);

pub(super) const CASES: &[Case] = &[
    case!(an_acquire_whose_reply_is_lost_is_granted_once: F12, P6 P12, needs SWALLOW; bugs 13 22 26 55),
    case!(a_try_whose_reply_is_lost_leaves_nothing: F12, P6 P12, needs SWALLOW; bugs 55),
    case!(a_release_whose_reply_is_lost_spares_the_next_grant: F13, P7, needs SWALLOW; bugs 4 25),
    case!(a_few_lost_renewal_replies_do_no_harm: F14, P11, needs SWALLOW, Need::Ttl; bugs 64 66),
    case!(a_hold_ends_at_its_deadline_when_no_reply_arrives: F14 F16, P11, needs SWALLOW, Need::Ttl; bugs 18 34 67 72),
    case!(a_hold_ends_at_its_deadline_when_no_request_arrives: F15, P11, needs HOLD, Need::Ttl; bugs 34 63),
    case!(an_acquire_that_reaches_nobody_is_unavailable_in_time: F15, P12, needs HOLD; bugs 63),
    case!(a_request_that_arrives_after_its_cancel_leaves_nothing: E7, P6, needs HOLD; bugs 21 39 71),
    case!(a_renewal_that_arrives_after_the_release_changes_nothing: F20, P8, needs HOLD, Need::Ttl; bugs 40 42),
    case!(a_grant_that_arrives_late_counts_from_its_sending: F17, P1 P11, needs HOLD, Need::Ttl; bugs 56 58),
    case!(no_wake_up_is_lost_without_notifications: F25 E3, P5, needs MUTE; bugs 9 15 45 69),
    case!(a_loss_is_found_without_notifications: F25, P11, needs MUTE, Need::SessionLifetime,
        Need::Hook(Hook::EndSessionOfHolder); bugs 33 34),
    case!(a_client_that_hears_nothing_ends_its_holds_and_waits_in_time: F16, P11 P12,
        needs DEAF, Need::Ttl; bugs 34 63 67),
    case!(a_delayed_reply_leaves_less_of_the_lifetime: F17, P1 P11,
        needs Need::Hook(Hook::Delay), Need::Ttl; bugs 56 58),
    case!(a_trickle_of_bytes_neither_hangs_nor_doubles_a_lock: F18, P1 P12,
        needs Need::Hook(Hook::Trickle), Need::Hook(Hook::Requests), Need::Ttl; bugs 34 63),
    case!(a_notification_that_comes_late_grants_nothing: F26, P1 P5,
        needs Need::Hook(Hook::HoldNotifications); bugs 8 9 15),
    case!(holds_and_waiters_survive_resets: F11, P5 P11, needs RESET; bugs 18 32 37 44),
    case!(all_are_granted_in_the_end_over_a_flapping_way: F27, P5 P13, needs RESET; bugs 18 32 37 44),
];

/// A client whose way to the store can be disturbed.
async fn linked(cx: &Cx, ttl: Duration) -> Result<(std::sync::Arc<dyn Link>, LockClient)> {
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
        let guard = within(bounds.takeover(), "the acquire is answered", acquiring).await???;
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
    busy_or_silent(client.lock(name.as_str())?.try_acquire().await)?;
    link.heal().await?;
    held.release().await?;
    let other = cx.client().await?;
    let bound = cx.bounds_of(&other).cleanup();
    let next = other.lock(name.as_str())?.acquire_timeout(bound).await?;
    Ok(next.context("the try left an entry")?.release().await?)
}

async fn a_release_whose_reply_is_lost_spares_the_next_grant(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.long_ttl()).await?;
    let name = cx.name();
    let first = client.lock(name.as_str())?.acquire().await?;
    link.inflict(LinkFault::SwallowReplies(1)).await?;
    let released = tokio::spawn(first.release());
    let bounds = cx.bounds_of(&client);
    // The release is tried again, behind the next grant of the same client or before it.
    let again = client.lock(name.as_str())?.acquire_timeout(bounds.takeover()).await?;
    let again = again.context("the lock was released")?;
    link.heal().await?;
    let _ = within(bounds.takeover(), "the release is answered", released).await??;
    let beaten = sleep(bounds.recheck);
    beaten.await;
    ensure!(again.is_held(), "the second try of the release ended the next hold");
    ensure!(cx.lock(&name).await?.try_acquire().await?.is_none(), "the store lost the next hold");
    Ok(again.release().await?)
}

async fn a_few_lost_renewal_replies_do_no_harm(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.short_ttl()).await?;
    let guard = client.lock(cx.name().as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    for _ in 0..3 {
        link.inflict(LinkFault::SwallowReplies(1)).await?;
        sleep(bounds.beat * 2).await;
        link.heal().await?;
        sleep(bounds.beat).await;
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
    // Whatever was answered was sent before, and lifetimes count from the sending. Load makes the look later only.
    sleep_until(Instant::now() + bounds.validity).await;
    let held_in_silence = guard.is_held();
    let told = within(bounds.slack, "the loss is told", guard.lost()).await;
    link.heal().await?;
    ensure!(!held_in_silence, "still held after {:?} of silence", bounds.validity);
    ensure!(told?.kind() == ErrorKind::Lost && !guard.is_held(), "lost is final");
    let next = cx.lock(&name).await?.acquire_timeout(bounds.takeover()).await?;
    Ok(next.context("the dead hold is in the way")?.release().await?)
}

async fn an_acquire_that_reaches_nobody_is_unavailable_in_time(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.long_ttl()).await?;
    let (name, patience) = (cx.name(), Duration::from_millis(500));
    let lock = client.lock(name.as_str())?;
    link.inflict(LinkFault::HoldRequests).await?;
    let start = Instant::now();
    let answer = lock.acquire_timeout(patience).await;
    let took = start.elapsed();
    link.heal().await?;
    ensure!(kind(answer)? == ErrorKind::Unavailable, "nobody was asked");
    ensure!(took <= patience + cx.bounds_of(&client).slack, "answered after {took:?}");
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
    cx.eventually(bounds.validity, "a beat begins", begun).await?;
    // The beat is on its way; the release follows it.
    let releasing = tokio::spawn(guard.release());
    sleep(bounds.beat / 20).await;
    link.heal().await?;
    within(bounds.takeover(), "the release is answered", releasing).await???;
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

async fn a_grant_that_arrives_late_counts_from_its_sending(cx: Cx) -> Result<()> {
    let (link, name, clock) = (cx.link().await?, cx.name(), cx.clock());
    let session = cx.observe(link.backend()?).open_session(cx.long_ttl(), clock.clone()).await?;
    link.inflict(LinkFault::HoldRequests).await?;
    let taking = tokio::spawn({
        let (session, name) = (session.clone(), name.clone());
        async move { take(&session, &name).await }
    });
    // Time is what it is about: the request is on its way for so long.
    sleep(cx.short_ttl() / 4).await;
    let arrives = clock.now();
    link.heal().await?;
    let bound = cx.bounds(session.ttl()).cleanup();
    let grant = within(bound, "the claim is answered", taking).await???;
    ensure!(
        grant.armed_at() < arrives,
        "the lifetime counts from {:?} after the request's arrival",
        grant.armed_at().since(arrives)
    );
    ensure!(cx.is_taken(&name).await?, "granted, and free");
    session.release(&grant).await?;
    Ok(session.close().await?)
}

async fn no_wake_up_is_lost_without_notifications(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.long_ttl()).await?;
    let name = cx.name();
    let held = cx.lock(&name).await?.acquire().await?;
    link.inflict(LinkFault::DropNotifications).await?;
    let waiter = cx.enqueue(&client.lock(name.as_str())?, 0).await?;
    held.release().await?;
    let bounds = cx.bounds_of(&client);
    let granted = within(bounds.recheck + bounds.slack, "the waiter looks again", waiter).await;
    link.heal().await?;
    Ok(granted???.release().await?)
}

async fn a_loss_is_found_without_notifications(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.short_ttl()).await?;
    let name = cx.name();
    let guard = client.lock(name.as_str())?.acquire().await?;
    link.inflict(LinkFault::DropNotifications).await?;
    cx.inflict(crate::Fault::EndSessionOfHolder(name)).await?;
    let bounds = cx.bounds_of(&client);
    let told = within(bounds.beat * 2 + bounds.slack, "the loss is found", guard.lost()).await;
    link.heal().await?;
    told.map(drop)
}

async fn a_client_that_hears_nothing_ends_its_holds_and_waits_in_time(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.short_ttl()).await?;
    let (name, busy) = (cx.name(), cx.name());
    let other = cx.lock(&busy).await?.acquire().await?;
    let guard = client.lock(name.as_str())?.acquire().await?;
    let bounds = cx.bounds_of(&client);
    let waiting = client.lock(busy.as_str())?;
    let waiter = tokio::spawn(async move { waiting.acquire_timeout(bounds.ttl).await });
    cx.waits_behind(&busy, 0).await?;
    link.inflict(LinkFault::DropReplies).await?;
    let told = within(bounds.validity + bounds.slack, "the loss is told", guard.lost()).await;
    let waited = within(bounds.ttl + bounds.slack, "the wait ends", waiter).await;
    let asked = Instant::now();
    let tried = client.lock(busy.as_str())?.try_acquire().await;
    let took = asked.elapsed();
    link.heal().await?;
    ensure!(told?.kind() == ErrorKind::Lost && !guard.is_held(), "lost is final");
    busy_or_silent(waited??)?;
    ensure!(kind(tried)? == ErrorKind::Unavailable, "nobody has answered the try");
    ensure!(took <= TRY_ANSWER_MAX + bounds.slack, "the try took {took:?}");
    ensure!(other.is_held(), "lost: {:?}", other.check().err());
    other.release().await?;
    let next = client.lock(busy.as_str())?.acquire_timeout(bounds.takeover() * 2).await?;
    Ok(next.context("the client can lock again")?.release().await?)
}

async fn a_delayed_reply_leaves_less_of_the_lifetime(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.short_ttl()).await?;
    let bounds = cx.bounds_of(&client);
    let delay = bounds.ttl / 30;
    link.inflict(LinkFault::Delay(delay)).await?;
    let guard = client.lock(cx.name().as_str())?.acquire().await?;
    let (start, mut most) = (Instant::now(), Duration::ZERO);
    while start.elapsed() < bounds.ttl * 2 {
        // Most is left just after an answer.
        most = most.max(guard.remaining());
        sleep(Duration::from_millis(5)).await;
    }
    ensure!(
        most <= bounds.validity - delay,
        "{most:?} left of {:?}, after {delay:?} on the way",
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
    let tried = within(TRY_ANSWER_MAX + bounds.slack, "the try is answered", try_busy.try_acquire()).await?;
    busy_or_silent(tried)?;
    // Few bytes are enough for some stores' renewals.
    let next = other.acquire_timeout(bounds.takeover()).await?;
    ensure!(next.is_none() || !guard.is_held(), "two holders");
    ensure!(next.is_some() || guard.is_held(), "nobody holds it");
    let (sent, retries) =
        (cx.requests().await? - before, start.elapsed().as_millis() / RETRY_PAUSE_MIN.as_millis());
    // The beat, the wait, the try and the way to hear of others may each be on its way again.
    ensure!(u128::from(sent) <= 4 * retries, "{sent} requests in {:?}", start.elapsed());
    link.heal().await?;
    drop((guard, next));
    Ok(held.release().await?)
}

async fn a_notification_that_comes_late_grants_nothing(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.short_ttl()).await?;
    let name = cx.name();
    let (first, bounds) = (cx.lock(&name).await?.acquire().await?, cx.bounds_of(&client));
    let waiter = cx.enqueue(&client.lock(name.as_str())?, 0).await?;
    link.inflict(LinkFault::HoldNotifications).await?;
    first.release().await?;
    let looked = within(bounds.recheck + bounds.slack, "the waiter looks again", waiter).await???;
    looked.release().await?;
    let second = cx.lock(&name).await?.acquire().await?;
    let waiter = cx.enqueue(&client.lock(name.as_str())?, 0).await?;
    // Now comes the word of the first release.
    link.heal().await?;
    sleep(bounds.beat).await;
    ensure!(!waiter.is_finished(), "granted beside a holder: {:?}", waiter.await?);
    ensure!(second.is_held(), "lost: {:?}", second.check().err());
    second.release().await?;
    let next = within(bounds.takeover(), "the waiter is granted", waiter).await???;
    Ok(next.release().await?)
}

async fn all_are_granted_in_the_end_over_a_flapping_way(cx: Cx) -> Result<()> {
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
    Ok(())
}

async fn holds_and_waiters_survive_resets(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.short_ttl()).await?;
    let (name, busy) = (cx.name(), cx.name());
    let guard = client.lock(name.as_str())?.acquire().await?;
    let other = cx.lock(&busy).await?.acquire().await?;
    let waiter = cx.enqueue(&client.lock(busy.as_str())?, 0).await?;
    let bounds = cx.bounds_of(&client);
    for _ in 0..15 {
        link.inflict(LinkFault::Reset).await?;
        sleep(bounds.ttl / 5).await;
    }
    ensure!(guard.is_held(), "lost: {:?}", guard.check().err());
    other.release().await?;
    let next = within(bounds.takeover(), "the waiter is granted", waiter).await???;
    next.release().await?;
    Ok(guard.release().await?)
}
