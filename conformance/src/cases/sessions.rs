//! The contract of a session, without a keeper in between.

use anyhow::{Context as _, Result, bail, ensure};
use lockkit_core::backend::{Acquired, Grant, Renewal};
use tokio::time::sleep;

use crate::{
    Case, Fault, Hook,
    case::{Need, case},
    context::{Cx, within},
    driven::{claim, take},
};

pub(super) const CASES: &[Case] = &[
    case!(a_second_release_is_without_effect: C9, P7; bugs 4 57),
    case!(a_late_release_does_not_touch_the_next_holder: C9, P7, needs Need::Ttl; bugs 4 50 57),
    case!(a_release_of_anothers_lock_is_without_effect: C10, P7; bugs 4 50),
    case!(a_busy_try_never_queues: C4, P6; bugs 30),
    case!(a_claim_that_gives_up_is_answered_and_leaves_nothing: C13, P6; bugs 6 31 69),
    case!(a_waiting_claim_is_noted_as_contended: C1, P12),
    case!(a_beat_answers_for_every_hold: F28, P11 P14; bugs 64 66),
    case!(closing_a_session_ends_its_pending_claims: A8, P6; bugs 16 27),
    case!(a_closed_session_holds_nothing: C3, P13; bugs 17),
    case!(closing_twice_is_fine: C9, P12),
    case!(an_expired_session_cannot_be_renewed: E6, P8 P11, needs Need::SessionLifetime; bugs 8 19 42 53),
    case!(a_lifetime_counts_from_the_sending_of_its_renewal: F14, P1 P11,
        needs Need::Ttl, Need::Hook(Hook::Freeze); bugs 56 58),
];

async fn a_second_release_is_without_effect(cx: Cx) -> Result<()> {
    let name = cx.name();
    let [one, other] = cx.two_sessions().await?;
    let first = take(&one, &name).await?;
    one.release(&first).await?;
    one.release(&first).await.context("a release is idempotent")?;
    let second = take(&other, &name).await?;
    one.release(&first).await.context("a release is idempotent")?;
    ensure!(cx.is_taken(&name).await?, "the old release freed the next holder's lock");
    other.release(&second).await?;
    // The same session takes it again: an old release must not find the new claim by its session.
    let third = take(&one, &name).await?;
    one.release(&first).await?;
    ensure!(cx.is_taken(&name).await?, "the old release freed a later claim of its own session");
    one.release(&third).await?;
    one.close().await?;
    Ok(other.close().await?)
}

async fn a_late_release_does_not_touch_the_next_holder(cx: Cx) -> Result<()> {
    let name = cx.name();
    let [(silent, lost), (other, next)] = cx.silent_and_next(&name).await?;
    // Whether it is answered `Ok` or with an error, the next holder is not touched.
    let _ = silent.release(&lost).await;
    ensure!(cx.is_taken(&name).await?, "the late release freed the next holder's lock");
    other.release(&next).await?;
    let _ = silent.close().await;
    Ok(other.close().await?)
}

async fn a_release_of_anothers_lock_is_without_effect(cx: Cx) -> Result<()> {
    let name = cx.name();
    let [holder, forger] = cx.two_sessions().await?;
    let grant = take(&holder, &name).await?;
    // The lock and the token are right, the claim is not.
    let forged = Grant::new(&claim(&name, true).0, grant.token(), grant.armed_at());
    forger.release(&forged).await.context("nothing of the grant is left, which is `Ok`")?;
    ensure!(cx.is_taken(&name).await?, "a forged release freed the lock");
    let beat = holder.renew(std::slice::from_ref(&grant)).await;
    ensure!(
        matches!(beat.holds[..], [(id, Renewal::Renewed { .. })] if id == grant.claim()),
        "the holder was disturbed: {beat:?}"
    );
    holder.release(&grant).await?;
    holder.close().await?;
    Ok(forger.close().await?)
}

async fn a_busy_try_never_queues(cx: Cx) -> Result<()> {
    let name = cx.name();
    let [holder, other] = cx.two_sessions().await?;
    let grant = take(&holder, &name).await?;
    for _ in 0..5 {
        let (claim, control) = claim(&name, false);
        ensure!(matches!(other.acquire(claim).await?, Acquired::GaveUp), "a held lock was granted");
        ensure!(control.was_contended(), "that the lock is busy was not noted");
    }
    holder.release(&grant).await?;
    ensure!(!cx.is_taken(&name).await?, "a try was served after it had been answered");
    holder.close().await?;
    Ok(other.close().await?)
}

async fn a_claim_that_gives_up_is_answered_and_leaves_nothing(cx: Cx) -> Result<()> {
    let name = cx.name();
    let [holder, other] = cx.two_sessions().await?;
    let grant = take(&holder, &name).await?;
    let waiting = cx.wait_in(&other, &name).await?;
    waiting.control.give_up();
    let end = waiting.ends_within(cx.bounds(cx.long_ttl()).cleanup()).await??;
    ensure!(matches!(end, Acquired::GaveUp), "it ended with {end:?}");
    holder.release(&grant).await?;
    ensure!(!cx.is_taken(&name).await?, "the claim that gave up was served");
    holder.close().await?;
    Ok(other.close().await?)
}

async fn a_waiting_claim_is_noted_as_contended(cx: Cx) -> Result<()> {
    let name = cx.name();
    let [holder, other] = cx.two_sessions().await?;
    let grant = take(&holder, &name).await?;
    let waiting = cx.wait_in(&other, &name).await?;
    holder.release(&grant).await?;
    let next = waiting.granted_within(cx.bounds(cx.long_ttl()).cleanup()).await?;
    ensure!(next.token() > grant.token(), "{} after {}", next.token(), grant.token());
    other.release(&next).await?;
    holder.close().await?;
    Ok(other.close().await?)
}

async fn a_beat_answers_for_every_hold(cx: Cx) -> Result<()> {
    let session = cx.session(cx.long_ttl()).await?;
    let beat = session.renew(&[]).await;
    ensure!(matches!(beat.session, Renewal::Renewed { .. }), "with nothing held: {beat:?}");
    let mut grants = Vec::new();
    for _ in 0..10 {
        grants.push(take(&session, &cx.name()).await?);
    }
    let asked_at = cx.clock().now();
    let beat = session.renew(&grants).await;
    ensure!(beat.holds.len() == grants.len(), "{} answers for {} holds", beat.holds.len(), grants.len());
    for grant in &grants {
        let answers = beat.holds.iter().filter(|(id, _)| *id == grant.claim());
        let renewed = answers.filter(|(_, renewal)| matches!(renewal, Renewal::Renewed { .. })).count();
        ensure!(renewed == 1, "{renewed} renewals of {:?}; asked at {asked_at:?}", grant.name());
    }
    for grant in grants {
        session.release(&grant).await?;
    }
    Ok(session.close().await?)
}

async fn closing_a_session_ends_its_pending_claims(cx: Cx) -> Result<()> {
    let name = cx.name();
    let [holder, other] = cx.two_sessions().await?;
    let grant = take(&holder, &name).await?;
    let waiting = cx.wait_in(&other, &name).await?;
    other.close().await?;
    let end = waiting.ends_within(cx.bounds(cx.long_ttl()).cleanup()).await?;
    ensure!(!matches!(end, Ok(Acquired::Granted(_))), "a closed session was granted a lock");
    holder.release(&grant).await?;
    ensure!(!cx.is_taken(&name).await?, "the claim of a closed session was served");
    Ok(holder.close().await?)
}

async fn a_closed_session_holds_nothing(cx: Cx) -> Result<()> {
    let name = cx.name();
    let session = cx.session(cx.long_ttl()).await?;
    take(&session, &name).await?;
    session.close().await?;
    let free = async || Ok(!cx.is_taken(&name).await?);
    cx.eventually(cx.bounds(cx.long_ttl()).cleanup(), "the lock is free", free).await.map(drop)
}

async fn closing_twice_is_fine(cx: Cx) -> Result<()> {
    let session = cx.session(cx.long_ttl()).await?;
    session.close().await?;
    Ok(session.close().await?)
}

async fn an_expired_session_cannot_be_renewed(cx: Cx) -> Result<()> {
    let name = cx.name();
    let [(silent, lost), (other, next)] = cx.silent_and_next(&name).await?;
    let beat = silent.renew(std::slice::from_ref(&lost)).await;
    ensure!(
        !matches!(beat.session, Renewal::Renewed { .. })
            && beat.holds.iter().all(|(_, renewal)| !matches!(renewal, Renewal::Renewed { .. })),
        "what has expired was renewed: {beat:?}"
    );
    ensure!(cx.is_taken(&name).await?, "the renewal disturbed the next holder");
    other.release(&next).await?;
    let _ = silent.close().await;
    Ok(other.close().await?)
}

async fn a_lifetime_counts_from_the_sending_of_its_renewal(cx: Cx) -> Result<()> {
    /// On a loaded machine a beat may come too late, or not be answered in time: another one is tried then.
    const TRIES: usize = 10;
    for _ in 0..TRIES {
        if renewed_late(&cx).await? {
            return Ok(());
        }
    }
    bail!("none of {TRIES} beats that the server held up for a part of a beat was answered")
}

/// Looks at one beat that the server holds up; whether it was answered.
async fn renewed_late(cx: &Cx) -> Result<bool> {
    let (name, clock) = (cx.name(), cx.clock());
    let session = cx.session_with_clock(cx.short_ttl(), clock.clone()).await?;
    let grant = take(&session, &name).await?;
    ensure!(grant.armed_at() <= clock.now(), "a lifetime that starts in the future");
    let bounds = cx.bounds(session.ttl());
    cx.inflict(Fault::Freeze).await?;
    let sent_before = clock.now();
    let renewing = tokio::spawn({
        let (session, grant) = (session.clone(), grant.clone());
        async move { session.renew(&[grant]).await }
    });
    // Time is what it is about: the request waits at the server for longer than any rounding of the clock.
    let way = bounds.beat / 4;
    sleep(way).await;
    let passed_on = clock.now();
    cx.inflict(Fault::Thaw).await?;
    let beat = within(bounds.beat * 2 + bounds.slack, "the beat ends", renewing).await??;
    let renewals =
        beat.holds.iter().map(|(_, renewal)| ("hold", renewal)).chain([("session", &beat.session)]);
    let (mut asked, mut renewed) = (0, 0);
    for (what, renewal) in renewals {
        asked += 1;
        if let Renewal::Renewed { armed_at } = renewal {
            renewed += 1;
            ensure!(
                *armed_at < passed_on,
                "the {what}'s lifetime counts from {:?} after its sending",
                armed_at.since(sent_before)
            );
        } else {
            ensure!(!cx.is_paused(), "not renewed: {renewal:?}");
        }
    }
    ensure!(beat.holds.len() == 1, "{} answers for one hold", beat.holds.len());
    // What has ended meanwhile is nobody's.
    let _ = session.release(&grant).await;
    let _ = session.close().await;
    Ok(renewed == asked)
}
