//! Clients whose clocks differ: only how far a clock has run may matter, never what it reads.

use std::time::Duration;

use anyhow::{Result, ensure};
use lockkit_core::{
    Clock, LockName, Metadata,
    backend::{Acquired, QueueKind, Renewal},
};

use super::exclusion::counts_exactly;
use crate::{
    Case,
    case::case,
    context::{Cx, rises},
    direct::{claim_of, metadata, take},
};

const HOUR: Duration = Duration::from_secs(60 * 60);

pub(super) const CASES: &[Case] = &[
    case!(a_step_of_the_wall_clock_changes_nothing: TimedExclusion Fifo; bugs 65),
    case!(clients_whose_clocks_are_days_apart_lose_no_increment: TimedExclusion; bugs 65),
];

/// Returns the metadata of a client whose wall clock was stepped. Metadata is how that clock reaches a store.
fn stepped(forward: bool, by: Duration) -> Result<Metadata> {
    let (mut metadata, by_ms) = (metadata(), u64::try_from(by.as_millis())?);
    if forward {
        metadata.since_ms += by_ms
    } else {
        metadata.since_ms -= by_ms
    };
    Ok(metadata)
}

async fn a_step_of_the_wall_clock_changes_nothing(cx: Cx) -> Result<()> {
    for forward in [true, false] {
        let name = cx.name();
        step_while_held(&cx, &name, forward).await?;
    }
    Ok(())
}

async fn step_while_held(cx: &Cx, name: &LockName, forward: bool) -> Result<()> {
    let [holder, other] = cx.two_sessions().await?;
    let third = cx.session(cx.long_ttl()).await?;
    let held = take(&holder, name).await?;
    let queued = cx.wait_in(&other, name).await?;
    // From here on every new claim comes from a client whose wall clock was stepped.
    let after_step = |wait| anyhow::Ok(claim_of(name, wait, stepped(forward, HOUR)?));
    let tried = third.acquire(after_step(false)?.0).await?;
    ensure!(matches!(tried, Acquired::GaveUp), "a step by an hour freed the lock: {tried:?}");
    let behind = cx.wait_as(&third, after_step(true)?).await?;
    let heartbeat = holder.renew(std::slice::from_ref(&held)).await;
    ensure!(
        matches!(heartbeat.holds[..], [(id, Renewal::Renewed { .. })] if id == held.claim()),
        "a step by an hour ended the hold: {heartbeat:?}"
    );
    ensure!(queued.is_waiting() && behind.is_waiting(), "two holders after a step by an hour");
    holder.release(&held).await?;
    let bound = cx.bounds(cx.long_ttl()).cleanup();
    if cx.promises().queue == QueueKind::Fifo {
        let next = queued.granted_within(bound).await?;
        ensure!(
            behind.is_waiting(),
            "a step by an hour changed the order of the queue, or there are two holders"
        );
        other.release(&next).await?;
    } else {
        queued.control.give_up();
        if let Acquired::Granted(next) = queued.ends_within(bound).await?? {
            other.release(&next).await?;
        }
    }
    let next = behind.granted_within(bound).await?;
    rises(held.token(), next.token())?;
    third.release(&next).await?;
    for session in [holder, other, third] {
        session.close().await?;
    }
    Ok(())
}

async fn clients_whose_clocks_are_days_apart_lose_no_increment(cx: Cx) -> Result<()> {
    let (name, mut locks) = (cx.name(), Vec::new());
    // From a day behind the middle one to a day ahead of it.
    for half_days in 0..5 {
        let (clock, ahead) = (cx.clock(), HOUR * 12 * half_days);
        let clock = Clock::new(move || clock.now().after(ahead));
        let client = cx.client_with_clock(cx.backend()?, cx.long_ttl(), clock).await?;
        locks.push(client.lock(name.as_str())?);
    }
    counts_exactly(locks, cx.times(200, 12)).await
}
