//! The contract of a session, tested without a keeper.

use anyhow::{Context as _, Result, bail, ensure};
use lockkit_core::backend::{Acquired, Grant, Renewal};
use tokio::time::{sleep, timeout};

use crate::{
    Case, Hook, StoreFault,
    case::{Need, case},
    context::{Cx, rises, within},
    direct::{claim, take},
};

pub(super) const CASES: &[Case] = &[
    case!(second_release_has_no_effect: NoForeignRelease; bugs 4 57),
    case!(a_late_release_does_not_touch_the_next_holder: NoForeignRelease, needs Need::Ttl; bugs 4 50 57),
    case!(release_by_another_session_has_no_effect: NoForeignRelease; bugs 4 50),
    case!(a_busy_try_never_queues: NoOrphan; bugs 30),
    case!(claim_that_gives_up_ends_and_leaves_nothing: NoOrphan; bugs 6 31 69),
    case!(waiting_claim_is_marked_contended: TruthfulErrors),
    case!(heartbeat_reports_every_hold: BoundedLoss Isolation; bugs 64 66),
    case!(closing_a_session_ends_its_pending_claims: NoOrphan; bugs 16 27),
    case!(a_closed_session_holds_nothing: NoResidue; bugs 17),
    case!(second_close_succeeds: TruthfulErrors),
    case!(an_expired_session_cannot_be_renewed: NoLateRenewal BoundedLoss,
        needs Need::SessionLifetime; bugs 8 19 42 53),
    case!(renewed_lifetime_counts_from_its_request: TimedExclusion BoundedLoss,
        needs Need::Ttl, Need::Hook(Hook::Freeze); bugs 56 58),
];

async fn second_release_has_no_effect(cx: Cx) -> Result<()> {
    let name = cx.name();
    let [one, other] = cx.two_sessions().await?;
    let first = take(&one, &name).await?;
    one.release(&first).await?;
    one.release(&first).await.context("a release is idempotent")?;
    let second = take(&other, &name).await?;
    one.release(&first).await.context("a release is idempotent")?;
    ensure!(cx.is_taken(&name).await?, "the old release freed the next holder's lock");
    other.release(&second).await?;
    // The same session acquires again: a late release must name its claim, not only its session.
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
    // The release may succeed or fail; it must not affect the next holder.
    let _ = silent.release(&lost).await;
    ensure!(cx.is_taken(&name).await?, "the late release freed the next holder's lock");
    other.release(&next).await?;
    let _ = silent.close().await;
    Ok(other.close().await?)
}

async fn release_by_another_session_has_no_effect(cx: Cx) -> Result<()> {
    let name = cx.name();
    let [holder, forger] = cx.two_sessions().await?;
    let grant = take(&holder, &name).await?;
    // The lock and the token are right, but the claim is not.
    let forged = Grant::new(&claim(&name, true).0, grant.token(), grant.armed_at());
    forger.release(&forged).await.context("a release without a matching entry is `Ok`")?;
    ensure!(cx.is_taken(&name).await?, "a forged release freed the lock");
    let heartbeat = holder.renew(std::slice::from_ref(&grant)).await;
    ensure!(
        matches!(heartbeat.holds[..], [(id, Renewal::Renewed { .. })] if id == grant.claim()),
        "the holder was disturbed: {heartbeat:?}"
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
        ensure!(control.was_contended(), "the claim was not marked contended");
    }
    holder.release(&grant).await?;
    ensure!(!cx.is_taken(&name).await?, "a try was granted after it had returned");
    holder.close().await?;
    Ok(other.close().await?)
}

async fn claim_that_gives_up_ends_and_leaves_nothing(cx: Cx) -> Result<()> {
    let name = cx.name();
    let [holder, other] = cx.two_sessions().await?;
    let grant = take(&holder, &name).await?;
    let waiting = cx.wait_in(&other, &name).await?;
    waiting.control.give_up();
    let end = waiting.ends_within(cx.bounds(cx.long_ttl()).cleanup()).await??;
    ensure!(matches!(end, Acquired::GaveUp), "the claim ended with {end:?}");
    holder.release(&grant).await?;
    ensure!(!cx.is_taken(&name).await?, "the claim that gave up was granted");
    holder.close().await?;
    Ok(other.close().await?)
}

async fn waiting_claim_is_marked_contended(cx: Cx) -> Result<()> {
    let name = cx.name();
    let [holder, other] = cx.two_sessions().await?;
    let grant = take(&holder, &name).await?;
    let waiting = cx.wait_in(&other, &name).await?;
    holder.release(&grant).await?;
    let next = waiting.granted_within(cx.bounds(cx.long_ttl()).cleanup()).await?;
    rises(grant.token(), next.token())?;
    other.release(&next).await?;
    holder.close().await?;
    Ok(other.close().await?)
}

async fn heartbeat_reports_every_hold(cx: Cx) -> Result<()> {
    let session = cx.session(cx.long_ttl()).await?;
    let heartbeat = session.renew(&[]).await;
    ensure!(matches!(heartbeat.session, Renewal::Renewed { .. }), "with nothing held: {heartbeat:?}");
    let mut grants = Vec::new();
    for _ in 0..10 {
        grants.push(take(&session, &cx.name()).await?);
    }
    let sent_at = cx.clock().now();
    let heartbeat = session.renew(&grants).await;
    ensure!(
        heartbeat.holds.len() == grants.len(),
        "{} answers for {} holds",
        heartbeat.holds.len(),
        grants.len()
    );
    for grant in &grants {
        let answers = heartbeat.holds.iter().filter(|(id, _)| *id == grant.claim());
        let renewed = answers.filter(|(_, renewal)| matches!(renewal, Renewal::Renewed { .. })).count();
        ensure!(renewed == 1, "{renewed} renewals of {:?}; sent at {sent_at:?}", grant.name());
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
    ensure!(!cx.is_taken(&name).await?, "the claim of a closed session was granted");
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

async fn second_close_succeeds(cx: Cx) -> Result<()> {
    let session = cx.session(cx.long_ttl()).await?;
    session.close().await?;
    Ok(session.close().await?)
}

async fn an_expired_session_cannot_be_renewed(cx: Cx) -> Result<()> {
    let name = cx.name();
    let [(silent, lost), (other, next)] = cx.silent_and_next(&name).await?;
    let heartbeat = silent.renew(std::slice::from_ref(&lost)).await;
    ensure!(
        !matches!(heartbeat.session, Renewal::Renewed { .. })
            && heartbeat.holds.iter().all(|(_, renewal)| !matches!(renewal, Renewal::Renewed { .. })),
        "what has expired was renewed: {heartbeat:?}"
    );
    ensure!(cx.is_taken(&name).await?, "the renewal disturbed the next holder");
    other.release(&next).await?;
    let _ = silent.close().await;
    Ok(other.close().await?)
}

async fn renewed_lifetime_counts_from_its_request(cx: Cx) -> Result<()> {
    /// On a loaded machine a heartbeat may not be answered in time; then another one is tried.
    const TRIES: usize = 10;
    for _ in 0..TRIES {
        if renewed_late(&cx).await? {
            return Ok(());
        }
    }
    bail!("none of {TRIES} delayed heartbeats was answered")
}

/// Checks one heartbeat that waits at a frozen server; returns whether everything was renewed.
async fn renewed_late(cx: &Cx) -> Result<bool> {
    let (name, clock) = (cx.name(), cx.clock());
    let session = cx.session_with_clock(cx.short_ttl(), clock.clone()).await?;
    let grant = take(&session, &name).await?;
    ensure!(grant.armed_at() <= clock.now(), "a lifetime that starts in the future");
    let bounds = cx.bounds(session.ttl());
    cx.inflict(StoreFault::Freeze).await?;
    let sent_before = clock.now();
    // Polled here and not in a task, which a loaded machine may run only after the thaw.
    let mut renewing = session.renew(std::slice::from_ref(&grant));
    // The pause itself: the request waits at the server for longer than any rounding of the clock. It passes also if
    // there is an answer already.
    let pause = bounds.heartbeat / 4;
    let (unanswered, ()) = tokio::join!(timeout(pause, &mut renewing), sleep(pause));
    let thawed_at = clock.now();
    cx.inflict(StoreFault::Thaw).await?;
    let heartbeat = match unanswered {
        Ok(heartbeat) => heartbeat,
        Err(_) => within(bounds.heartbeat * 2 + bounds.slack, "the heartbeat ends", renewing).await?,
    };
    let renewals =
        heartbeat.holds.iter().map(|(_, renewal)| ("hold", renewal)).chain([("session", &heartbeat.session)]);
    let (mut expected, mut renewed) = (0, 0);
    for (what, renewal) in renewals {
        expected += 1;
        if let Renewal::Renewed { armed_at } = renewal {
            renewed += 1;
            ensure!(
                *armed_at < thawed_at,
                "the {what}'s lifetime counts from {:?} after the request was sent",
                armed_at.since(sent_before)
            );
        } else {
            ensure!(!cx.is_paused(), "not renewed: {renewal:?}");
        }
    }
    ensure!(heartbeat.holds.len() == 1, "{} answers for one hold", heartbeat.holds.len());
    // The hold and the session may have ended meanwhile.
    let _ = session.release(&grant).await;
    let _ = session.close().await;
    Ok(renewed == expected)
}
