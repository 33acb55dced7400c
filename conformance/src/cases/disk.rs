//! A store without room: it says so, and gives nothing away.

use anyhow::{Context as _, Result, ensure};
use lockkit_core::{ErrorKind, LockGuard};

use crate::{
    Case, Fault, Hook,
    case::{Need, case},
    context::{Cx, within},
};

pub(super) const CASES: &[Case] =
    &[case!(a_full_disk_is_told_and_frees_no_lock: E11, P1 P12, needs Need::Hook(Hook::FullDisk))];

/// What asking for a free lock may end with while nothing can be written: a grant, where none needs to be, or the truth.
fn answered(answer: lockkit_core::Result<Option<LockGuard>>) -> Result<Option<LockGuard>> {
    match answer {
        Ok(guard) => Ok(Some(guard.context("no room was told as busy")?)),
        Err(error) => {
            ensure!(
                error.kind() == ErrorKind::Unavailable,
                "no room was told as {:?}: {error}",
                error.kind()
            );
            Ok(None)
        }
    }
}

async fn a_full_disk_is_told_and_frees_no_lock(cx: Cx) -> Result<()> {
    let (held_name, known, fresh) = (cx.name(), cx.name(), cx.name());
    let (client, other) = (cx.short_client().await?, cx.client().await?);
    let bounds = cx.bounds_of(&client);
    let before = client.lock(known.as_str())?.acquire().await?;
    let last = before.token();
    before.release().await?;
    let held = client.lock(held_name.as_str())?.acquire().await?;

    cx.inflict(Fault::FillDisk).await?;
    let of_known = answered(client.lock(known.as_str())?.try_acquire().await)?;
    ensure!(of_known.as_ref().is_none_or(|guard| guard.token() > last), "a token was given twice");
    let lock = client.lock(fresh.as_str())?;
    let of_fresh =
        answered(within(bounds.slack, "an answer", lock.acquire_timeout(bounds.slack / 2)).await?)?;
    let tried = other.lock(held_name.as_str())?.try_acquire().await;
    ensure!(!matches!(tried, Ok(Some(_))) || !held.is_held(), "a full disk freed a lock: two holders");
    let token = held.token();
    // A release that needs room is repeated until there is some.
    let releasing = tokio::spawn(held.release());
    cx.inflict(Fault::EmptyDisk).await?;
    within(bounds.takeover(), "the release is answered", releasing).await???;

    drop((of_known, of_fresh));
    for (name, last) in [(held_name, Some(token)), (known, Some(last)), (fresh, None)] {
        let guard = other.lock(name.as_str())?.acquire_timeout(bounds.cleanup()).await?;
        let guard = guard.with_context(|| format!("{name:?} is not free although there is room"))?;
        ensure!(Some(guard.token()) > last, "{} after {last:?}", guard.token());
        guard.release().await?;
    }
    Ok(())
}
