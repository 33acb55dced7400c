//! Re-entry: by owner and counted, never by thread or task.

use anyhow::{Context as _, Result, ensure};
use lockkit_core::Owner;

use crate::{
    Case,
    case::case,
    context::{Cx, rises},
};

pub(super) const CASES: &[Case] = &[
    case!(three_entries_of_one_owner_need_three_releases: Reentry TokenOrder; bugs 49),
    case!(two_owners_on_one_thread_exclude_each_other: Reentry TimedExclusion; bugs 48),
    case!(one_owner_re_enters_from_another_task: Reentry; bugs 48),
];

async fn three_entries_of_one_owner_need_three_releases(cx: Cx) -> Result<()> {
    let (name, owner) = (cx.name(), Owner::new());
    let lock = cx.lock(&name).await?.reentrant(&owner);
    let other = cx.lock(&name).await?;
    let guards = [lock.acquire().await?, lock.acquire().await?, lock.acquire().await?];
    let token = guards[0].token();
    ensure!(guards.iter().all(|guard| guard.token() == token), "a re-entry changed the token: {guards:?}");
    for (number, guard) in guards.into_iter().enumerate() {
        ensure!(other.try_acquire().await?.is_none(), "free after {number} of 3 releases");
        guard.release().await?;
    }
    let next = other.try_acquire().await?.context("free after 3 of 3 releases")?;
    rises(token, next.token())?;
    Ok(next.release().await?)
}

async fn two_owners_on_one_thread_exclude_each_other(cx: Cx) -> Result<()> {
    let (name, client) = (cx.name(), cx.client().await?);
    let one = client.lock(name.as_str())?.reentrant(&Owner::new());
    let other = client.lock(name.as_str())?.reentrant(&Owner::new());
    let held = one.acquire().await?;
    ensure!(other.try_acquire().await?.is_none(), "another owner entered");
    held.release().await?;
    let next = other.try_acquire().await?.context("free after its release")?;
    Ok(next.release().await?)
}

async fn one_owner_re_enters_from_another_task(cx: Cx) -> Result<()> {
    let (name, owner) = (cx.name(), Owner::new());
    let lock = cx.lock(&name).await?.reentrant(&owner);
    let outer = lock.acquire().await?;
    let entering = lock.clone();
    let inner = tokio::spawn(async move { entering.try_acquire().await }).await??;
    let inner = inner.context("the owner holds it already")?;
    ensure!(inner.token() == outer.token(), "a re-entry changed the token");
    outer.release().await?;
    ensure!(inner.is_held(), "the inner guard keeps the hold");
    Ok(inner.release().await?)
}
