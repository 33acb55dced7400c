//! A store with a full disk: it reports that, and frees no lock.

use anyhow::{Context as _, Result, ensure};
use lockkit_core::{ErrorKind, LockGuard, backend::Lifetime};

use crate::{
    Case, Hook, StoreFault,
    case::{Need, case},
    context::{Cx, rises, within},
};

pub(super) const CASES: &[Case] =
    &[case!(full_disk_is_reported_and_frees_no_lock: TimedExclusion TruthfulErrors,
        needs Need::Hook(Hook::FullDisk))];

/// Checks the result for a free lock on a full disk: a grant, where that needs no write, or `Unavailable`.
fn grant_or_unavailable(answer: lockkit_core::Result<Option<LockGuard>>) -> Result<Option<LockGuard>> {
    match answer {
        Ok(guard) => Ok(Some(guard.context("a full disk was reported as busy")?)),
        Err(error) => {
            ensure!(
                error.kind() == ErrorKind::Unavailable,
                "a full disk was reported as {:?}: {error}",
                error.kind()
            );
            Ok(None)
        }
    }
}

async fn full_disk_is_reported_and_frees_no_lock(cx: Cx) -> Result<()> {
    let (held_name, known, fresh) = (cx.name(), cx.name(), cx.name());
    let (client, other) = (cx.short_client().await?, cx.client().await?);
    let bounds = cx.bounds_of(&client);
    let before = client.lock(known.as_str())?.acquire().await?;
    let last = before.token();
    before.release().await?;
    let held = client.lock(held_name.as_str())?.acquire().await?;

    cx.inflict(StoreFault::FillDisk).await?;
    let of_known = grant_or_unavailable(client.lock(known.as_str())?.try_acquire().await)?;
    ensure!(of_known.as_ref().is_none_or(|guard| guard.token() > last), "a token was given twice");
    let lock = client.lock(fresh.as_str())?;
    let of_fresh = grant_or_unavailable(
        within(bounds.slack, "the acquire returns", lock.acquire_timeout(bounds.slack / 2)).await?,
    )?;
    let tried = other.lock(held_name.as_str())?.try_acquire().await;
    ensure!(!matches!(tried, Ok(Some(_))) || !held.is_held(), "a full disk freed a lock: two holders");
    let token = held.token();
    // A release that needs room is repeated until there is room.
    let releasing = tokio::spawn(held.release());
    cx.inflict(StoreFault::EmptyDisk).await?;
    let released = within(bounds.takeover(), "the release returns", releasing).await??;
    // A store that stops on a full disk may have been down for longer than the hold lasts.
    let is_lost = released
        .as_ref()
        .is_err_and(|error| matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unavailable));
    let may_be_lost = cx.info().lifetime != Lifetime::Process;
    ensure!(released.is_ok() || may_be_lost && is_lost, "the release ended with {released:?}");

    drop((of_known, of_fresh));
    for (name, last) in [(held_name, Some(token)), (known, Some(last)), (fresh, None)] {
        let guard = other.lock(name.as_str())?.acquire_timeout(bounds.cleanup()).await?;
        let guard = guard.with_context(|| format!("{name:?} is not free although there is room"))?;
        rises(last, guard.token())?;
        guard.release().await?;
    }
    Ok(())
}
