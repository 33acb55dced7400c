//! The holder's deadline against the lifetime at the store: the holder must always end first.
//!
//! The order of the readings makes the comparison safe. The holder's deadline is read first, then the store is asked
//! how long it still keeps the lock, then the clock is read. Counted from that last reading, the store's answer is an
//! upper bound. So a pause of the machine cannot make a correct client fail; a long pause only hides an error.

use std::{pin::pin, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use lockkit_core::{
    BootInstant, Clock, LockGuard, LockName,
    backend::{Acquired, Grant, Renewal, Session},
};
use tokio::time::sleep;

use crate::{
    Case, Hook,
    case::{Need, case},
    context::{Cx, within},
    direct::{claim, granted_or_err, take},
};

pub(super) const CASES: &[Case] = &[
    case!(a_guard_ends_before_its_lock_ends_at_the_store: TimedExclusion BoundedLoss,
        needs Need::Ttl, Need::Hook(Hook::Lifetimes); bugs 52 58),
    case!(late_handoff_ends_before_its_lock_ends_at_the_store: TimedExclusion BoundedLoss,
        needs Need::Ttl, Need::Hook(Hook::Lifetimes); bugs 56 58),
    case!(renewed_hold_ends_before_its_lock_ends_at_the_store: TimedExclusion BoundedLoss,
        needs Need::Ttl, Need::Hook(Hook::Lifetimes); bugs 53 58),
];

/// The pause before each renewal: longer than the margin of [`TTL`] that no holder relies on, together with the second
/// that etcd rounds to.
const PAUSE: Duration = Duration::from_millis(1_300);

/// A hundredth of it, the margin, is well below [`PAUSE`].
const TTL: Duration = Duration::from_secs(30);

/// Renewals that are checked.
const RENEWALS: usize = 3;

/// Heartbeats for that: on a loaded machine some are not answered in time.
const TRIES_MAX: usize = 20;

async fn a_guard_ends_before_its_lock_ends_at_the_store(cx: Cx) -> Result<()> {
    let (name, clock) = (cx.name(), cx.clock());
    let [client, other] = [cx.steady_client().await?, cx.steady_client().await?];
    let lock = client.lock(name.as_str())?;
    for when in ["granted", "granted again"] {
        let guard = lock.acquire().await?;
        ensure_guard_ends_first(&cx, &clock, &guard, when).await?;
        guard.release().await?;
    }
    let guard = lock.acquire().await?;
    let waiting = cx.enqueue(&other.lock(name.as_str())?, 0).await?;
    guard.release().await?;
    let next = waiting.await??;
    ensure_guard_ends_first(&cx, &clock, &next, "granted by a handoff").await?;
    cx.renewed(std::slice::from_ref(&next), cx.bounds_of(&other)).await?;
    ensure_guard_ends_first(&cx, &clock, &next, "renewed").await?;
    Ok(next.release().await?)
}

async fn late_handoff_ends_before_its_lock_ends_at_the_store(cx: Cx) -> Result<()> {
    once_more(async || is_handed_off_late(&cx).await).await
}

/// Compares a grant by a handoff during which the waiter is not polled, like a stopped process. Returns false if the waiter
/// may have had no answer for a ttl.
async fn is_handed_off_late(cx: &Cx) -> Result<bool> {
    let (name, clock) = (cx.name(), cx.clock());
    let began = clock.now();
    let holder = cx.session_with_clock(TTL, clock.clone()).await?;
    let next = cx.session_with_clock(TTL, clock.clone()).await?;
    let held = take(&holder, &name).await?;
    ensure_grant_ends_first(cx, &clock, &*holder, &held, held.armed_at(), "granted").await?;

    // On a loaded machine most of the ttl may have passed. No answer is needed: then as much is left as before.
    let renew = async || drop((holder.renew(std::slice::from_ref(&held)).await, next.renew(&[]).await));
    renew().await;
    let bound = cx.bounds(TTL).takeover();
    let (claim, control) = claim(&name, true);
    let mut waiting = pin!(next.acquire(claim));
    let noted = async || Ok(control.was_contended());
    tokio::select! {
        end = &mut waiting => {
            let may_be_starved = matches!(end, Ok(Acquired::EntryGone)) && clock.now() > began.after(TTL);
            ensure!(may_be_starved, "a claim for a lock that is held has ended: {end:?}");
            return Ok(false);
        }
        noted = cx.eventually(bound, "the session notes that the lock is held", noted) => drop(noted?),
    }
    renew().await;
    // Nothing polls the waiter from here on.
    holder.release(&held).await?;
    sleep(PAUSE).await;
    let grant = granted_or_err(within(bound, "the waiter is granted", waiting).await??)?;
    ensure_grant_ends_first(cx, &clock, &*next, &grant, grant.armed_at(), "granted by a handoff").await?;
    next.release(&grant).await?;
    holder.close().await?;
    next.close().await?;
    Ok(true)
}

async fn renewed_hold_ends_before_its_lock_ends_at_the_store(cx: Cx) -> Result<()> {
    once_more(async || is_renewed_as_compared(&cx).await).await
}

/// Repeats a check that had no answer for a ttl. A machine may be so busy, and then the store ends the session rightly.
async fn once_more(check: impl AsyncFn() -> Result<bool>) -> Result<()> {
    ensure!(check().await? || check().await?, "twice, nothing was answered for {TTL:?}");
    Ok(())
}

/// Renews a hold, and compares it with the store each time. Returns false if the ttl passed without a renewal.
async fn is_renewed_as_compared(cx: &Cx) -> Result<bool> {
    let (name, clock) = (cx.name(), cx.clock());
    let session = cx.session_with_clock(TTL, clock.clone()).await?;
    let grant = take(&session, &name).await?;
    let (mut renewals, mut last) = (0, grant.armed_at());
    for _ in 0..TRIES_MAX {
        sleep(PAUSE).await;
        let heartbeat = session.renew(std::slice::from_ref(&grant)).await;
        match &heartbeat.holds[..] {
            [(_, Renewal::Renewed { armed_at })] => {
                (renewals, last) = (renewals + 1, *armed_at);
                let when = format!("renewed {renewals} times");
                ensure_grant_ends_first(cx, &clock, &*session, &grant, last, &when).await?;
            }
            [(_, Renewal::Unknown(_))] if !cx.is_paused() => {}
            [(_, Renewal::Gone)] if clock.now() > last.after(TTL) => return Ok(false),
            _ => bail!("not renewed: {heartbeat:?}"),
        }
        if renewals == RENEWALS {
            session.release(&grant).await?;
            session.close().await?;
            return Ok(true);
        }
    }
    bail!("{renewals} of {TRIES_MAX} renewals were answered in time")
}

async fn ensure_guard_ends_first(cx: &Cx, clock: &Clock, guard: &LockGuard, when: &str) -> Result<()> {
    let deadline = clock.now().after(guard.remaining());
    ensure_ends_first(cx, clock, guard.name(), deadline, when).await
}

/// `armed_at` is the start of the lifetime, as the session reports it.
async fn ensure_grant_ends_first(
    cx: &Cx,
    clock: &Clock,
    session: &dyn Session,
    grant: &Grant,
    armed_at: BootInstant,
    when: &str,
) -> Result<()> {
    let deadline = armed_at.after(cx.bounds(session.ttl()).validity);
    ensure_ends_first(cx, clock, grant.name(), deadline, when).await
}

async fn ensure_ends_first(
    cx: &Cx,
    clock: &Clock,
    name: &LockName,
    deadline: BootInstant,
    when: &str,
) -> Result<()> {
    let left = cx.frees_within(name).await.context("the store does not report when it frees the lock")?;
    let answered_at = clock.now();
    // A lock without a holder is free now.
    let frees_at = answered_at.after(left.unwrap_or_default());
    ensure!(
        deadline < frees_at || deadline <= answered_at,
        "{when}: the holder relies on the lock for another {:?}, and the store frees it within {left:?}",
        deadline.since(answered_at),
    );
    Ok(())
}
