//! What the store says that it will wait, against what the holder believes: the holder ends first, always.
//!
//! The store is asked, and the clock is read after its answer: whenever the store looked, it frees the lock no later than
//! its answer after that reading. What is believed was read before the question. So no pause of the machine makes a
//! right client fail here; a long one only hides what is wrong.

use std::{pin::pin, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use lockkit_core::{
    BootInstant, Clock, LockGuard, LockName,
    backend::{Grant, Renewal, Session},
};
use tokio::time::sleep;

use crate::{
    Case, Hook,
    case::{Need, case},
    context::{Cx, within},
    driven::{claim, granted, take},
};

pub(super) const CASES: &[Case] = &[
    case!(a_guard_ends_before_its_lock_ends_at_the_store: C6, P1 P11,
        needs Need::Ttl, Need::Hook(Hook::Lifetimes); bugs 52 58),
    case!(a_hand_over_that_is_noticed_late_ends_before_its_lock_at_the_store: F14, P1 P11,
        needs Need::Ttl, Need::Hook(Hook::Lifetimes); bugs 56 58),
    case!(each_renewal_ends_before_its_lock_at_the_store: F14, P1 P11,
        needs Need::Ttl, Need::Hook(Hook::Lifetimes); bugs 53 58),
];

/// Time that a lifetime must have been started anew after: longer than the share of [`TTL`] that no holder relies on,
/// together with the second that etcd rounds to.
const PAUSE: Duration = Duration::from_millis(1_300);

/// A hundredth of it, which no holder relies on, is well below [`PAUSE`].
const TTL: Duration = Duration::from_secs(30);

/// Renewals in turn.
const RENEWALS: usize = 3;

/// Tries for that: on a busy machine some are not answered in time.
const TRIES_MAX: usize = 20;

async fn a_guard_ends_before_its_lock_ends_at_the_store(cx: Cx) -> Result<()> {
    let (name, clock) = (cx.name(), cx.clock());
    let [client, other] = [cx.short_client().await?, cx.short_client().await?];
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
    ensure_guard_ends_first(&cx, &clock, &next, "handed over").await?;
    cx.renewed(std::slice::from_ref(&next), cx.bounds_of(&other)).await?;
    ensure_guard_ends_first(&cx, &clock, &next, "renewed").await?;
    Ok(next.release().await?)
}

/// The waiter stands still while it is handed the lock, as a process that is stopped.
async fn a_hand_over_that_is_noticed_late_ends_before_its_lock_at_the_store(cx: Cx) -> Result<()> {
    let (name, clock) = (cx.name(), cx.clock());
    let holder = cx.session_with_clock(TTL, clock.clone()).await?;
    let next = cx.session_with_clock(TTL, clock.clone()).await?;
    let held = take(&holder, &name).await?;
    ensure_grant_ends_first(&cx, &clock, &*holder, &held, held.armed_at(), "granted").await?;

    let bound = cx.bounds(TTL).takeover();
    let (claim, control) = claim(&name, true);
    let mut waiting = pin!(next.acquire(claim));
    let noted = async || Ok(control.was_contended());
    tokio::select! {
        end = &mut waiting => bail!("a claim for a lock that is held has ended: {end:?}"),
        noted = cx.eventually(bound, "it is noted that the lock is held", noted) => drop(noted?),
    }
    // Nothing polls the waiter from here on.
    holder.release(&held).await?;
    sleep(PAUSE).await;
    let grant = granted(within(bound, "the waiter is granted", waiting).await??)?;
    ensure_grant_ends_first(&cx, &clock, &*next, &grant, grant.armed_at(), "handed over").await?;
    next.release(&grant).await?;
    holder.close().await?;
    Ok(next.close().await?)
}

async fn each_renewal_ends_before_its_lock_at_the_store(cx: Cx) -> Result<()> {
    let (name, clock) = (cx.name(), cx.clock());
    let session = cx.session_with_clock(TTL, clock.clone()).await?;
    let grant = take(&session, &name).await?;
    let mut renewals = 0;
    for _ in 0..TRIES_MAX {
        sleep(PAUSE).await;
        let beat = session.renew(std::slice::from_ref(&grant)).await;
        match &beat.holds[..] {
            [(_, Renewal::Renewed { armed_at })] => {
                renewals += 1;
                let when = format!("renewed {renewals} times");
                ensure_grant_ends_first(&cx, &clock, &*session, &grant, *armed_at, &when).await?;
            }
            [(_, Renewal::Unknown(_))] if !cx.is_paused() => {}
            _ => bail!("not renewed: {beat:?}"),
        }
        if renewals == RENEWALS {
            session.release(&grant).await?;
            return Ok(session.close().await?);
        }
    }
    bail!("{renewals} of {TRIES_MAX} renewals were answered in time")
}

async fn ensure_guard_ends_first(cx: &Cx, clock: &Clock, guard: &LockGuard, when: &str) -> Result<()> {
    let believed_until = clock.now().after(guard.remaining());
    ensure_ends_first(cx, clock, guard.name(), believed_until, when).await
}

/// `armed_at`: since when a lifetime of the session's ttl runs, by its own word.
async fn ensure_grant_ends_first(
    cx: &Cx,
    clock: &Clock,
    session: &dyn Session,
    grant: &Grant,
    armed_at: BootInstant,
    when: &str,
) -> Result<()> {
    let believed_until = armed_at.after(cx.bounds(session.ttl()).validity);
    ensure_ends_first(cx, clock, grant.name(), believed_until, when).await
}

async fn ensure_ends_first(
    cx: &Cx,
    clock: &Clock,
    name: &LockName,
    believed_until: BootInstant,
    when: &str,
) -> Result<()> {
    let left = cx.frees_within(name).await.context("the store does not say when it frees the lock")?;
    let answered_at = clock.now();
    // A lock that nobody holds is free now.
    let frees_at = answered_at.after(left.unwrap_or_default());
    ensure!(
        believed_until < frees_at || believed_until <= answered_at,
        "{when}: its holder believes in it for another {:?}, and the store frees it within {left:?}",
        believed_until.since(answered_at),
    );
    Ok(())
}
