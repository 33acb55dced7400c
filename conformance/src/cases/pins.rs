//! Pins: minimum hold times.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lockkit_core::backend::{Pins, Session};
use tokio::time::{Instant, sleep};

use crate::{
    Case,
    case::{Need, case},
    context::{Cx, rises, within},
    direct::take,
};

pub(super) const CASES: &[Case] = &[
    case!(pinned_entry_outlives_its_release: MinimumHold BoundedTakeover, needs Need::Pins),
    case!(pinned_entry_outlives_its_client: MinimumHold, needs Need::Pins),
    case!(pinned_entry_outlives_a_silent_session: MinimumHold BoundedTakeover, needs Need::Pins, Need::Ttl),
    case!(hold_that_lasts_longer_than_its_pin_is_kept: MinimumHold TimedExclusion, needs Need::Pins, Need::Ttl),
    case!(pinned_grant_that_nobody_wanted_is_removed: MinimumHold NoOrphan, needs Need::Pins),
    case!(former_holder_pins_nothing: MinimumHold NoForeignRelease, needs Need::Pins),
];

/// How early the entry may end by the clock of the case, which measures a moment longer than the store does.
const EARLY: Duration = Duration::from_millis(5);

async fn pinned_entry_outlives_its_release(cx: Cx) -> Result<()> {
    let (name, at_least) = (cx.name(), Duration::from_secs(2));
    let (holder, waiter) = (cx.short_client().await?, cx.short_client().await?);
    let (lock, third) = (holder.lock(name.as_str())?.hold_at_least(at_least), cx.lock(&name).await?);
    // A pin may last as long as a lease that is not renewed.
    let bound = at_least + cx.bounds_of(&waiter).takeover();
    for waits_before in [true, false] {
        let before = Instant::now();
        let guard = lock.acquire().await?;
        let token = guard.token();
        let next = waiter.lock(name.as_str())?;
        let next = tokio::spawn(async move { next.acquire().await });
        if waits_before {
            cx.waits_behind(&name, 0).await?;
        }
        guard.release().await?;
        // A loaded machine may answer only after the pin.
        let early = third.try_acquire().await?;
        ensure!(early.is_none() || before.elapsed() + EARLY >= at_least, "free right after the release");
        drop(early);
        let next = within(bound, "the waiter is granted after the pin", next).await???;
        let waited = before.elapsed();
        ensure!(waited + EARLY >= at_least, "granted after {waited:?} already");
        rises(token, next.token())?;
        next.release().await?;
    }
    Ok(())
}

async fn pinned_entry_outlives_its_client(cx: Cx) -> Result<()> {
    let (name, at_least) = (cx.name(), Duration::from_secs(2));
    let client = cx.short_client().await?;
    let before = Instant::now();
    let guard = client.lock(name.as_str())?.hold_at_least(at_least).acquire().await?;
    drop(guard);
    client.close().await?;
    let waiter = cx.short_client().await?;
    let waiting = waiter.lock(name.as_str())?;
    let bound = at_least + cx.bounds_of(&waiter).takeover();
    let next = within(bound, "granted after the pin", waiting.acquire()).await??;
    let waited = before.elapsed();
    ensure!(waited + EARLY >= at_least, "granted after {waited:?} already");
    Ok(next.release().await?)
}

async fn pinned_entry_outlives_a_silent_session(cx: Cx) -> Result<()> {
    let name = cx.name();
    // Nothing renews this session.
    let silent = cx.session(cx.short_ttl()).await?;
    let grant = take(&silent, &name).await?;
    let (before, at_least) = (Instant::now(), silent.ttl() + Duration::from_secs(2));
    ensure!(pins(&silent)?.pin(&grant, at_least).await?, "the holder was refused");
    let waiter = cx.short_client().await?;
    let waiting = waiter.lock(name.as_str())?;
    let bounds = cx.bounds_of(&waiter);
    let next = within(at_least + bounds.takeover(), "granted after the pin", waiting.acquire()).await??;
    let waited = before.elapsed();
    ensure!(waited + EARLY >= at_least, "granted after {waited:?} already");
    Ok(next.release().await?)
}

async fn hold_that_lasts_longer_than_its_pin_is_kept(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.client_with_ttl(cx.short_ttl() * 2).await?);
    let at_least = client.ttl() / 2;
    let guard = client.lock(name.as_str())?.hold_at_least(at_least).acquire().await?;
    let end = Instant::now() + client.ttl() * 2;
    let other = cx.lock(&name).await?;
    while Instant::now() < end {
        ensure!(other.try_acquire().await?.is_none(), "granted to two");
        guard.check().context("the holder's renewals are confirmed")?;
        sleep(client.ttl() / 8).await;
    }
    guard.release().await?;
    let next = within(cx.bounds_of(&client).cleanup(), "free after the release", other.acquire()).await??;
    Ok(next.release().await?)
}

async fn pinned_grant_that_nobody_wanted_is_removed(cx: Cx) -> Result<()> {
    let (name, [one, other]) = (cx.name(), cx.two_sessions().await?);
    let grant = take(&one, &name).await?;
    ensure!(pins(&one)?.pin(&grant, Duration::from_secs(120)).await?, "the holder was refused");
    one.release(&grant).await?;
    let bound = cx.bounds(other.ttl()).cleanup();
    let next = within(bound, "a released grant is gone, pinned or not", take(&other, &name)).await??;
    Ok(other.release(&next).await?)
}

async fn former_holder_pins_nothing(cx: Cx) -> Result<()> {
    let (name, [one, other]) = (cx.name(), cx.two_sessions().await?);
    let (former, long) = (take(&one, &name).await?, Duration::from_secs(120));
    one.release(&former).await?;
    ensure!(!pins(&one)?.pin(&former, long).await?, "confirmed although nobody holds");
    let current = take(&other, &name).await?;
    ensure!(!pins(&one)?.pin(&former, long).await?, "confirmed although another one holds");
    // Leaving an ended grant does nothing to the next one.
    pins(&one)?.leave(&former).await?;
    ensure!(cx.is_taken(&name).await?, "a former holder has ended the hold of another one");
    other.release(&current).await?;
    let bound = cx.bounds(one.ttl()).cleanup();
    let next = within(bound, "free after the release", take(&one, &name)).await??;
    Ok(one.release(&next).await?)
}

fn pins(session: &Arc<dyn Session>) -> Result<&dyn Pins> {
    session.pins().context("the backend claims pins")
}
