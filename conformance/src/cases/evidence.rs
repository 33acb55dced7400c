//! What proves a grant inside the store.

use anyhow::{Context as _, Result, ensure};
use lockkit_core::{LockGuard, backend::Evidence};

use crate::{
    Case, Hook,
    case::{Need, case},
    context::{Context, Cx, within},
    direct::take,
};

pub(super) const CASES: &[Case] = &[
    case!(evidence_holds_as_long_as_its_grant: FencedExclusion, needs Need::Hook(Hook::Evidence)),
    case!(evidence_of_a_silent_holder_fails_before_the_next_one_writes: FencedExclusion BoundedTakeover,
        needs Need::Hook(Hook::Evidence), Need::Ttl),
];

async fn evidence_holds_as_long_as_its_grant(cx: Cx) -> Result<()> {
    let (name, clients) = (cx.name(), [cx.client().await?, cx.client().await?]);
    let mut ended: Vec<Evidence> = Vec::new();
    for round in 0..cx.times(10, 3) {
        let lock = clients[round % 2].lock(name.as_str())?;
        let guard = match ended.last() {
            None => lock.acquire().await?,
            // By a handoff, which frees the lock at no moment.
            Some(last) => {
                let holder = clients[(round + 1) % 2].lock(name.as_str())?.acquire().await?;
                let before = of(&holder)?;
                let waiting = cx.enqueue(&lock, 0).await?;
                ensure!(
                    cx.store().proves(&before).await?,
                    "not held although nobody else was granted the lock"
                );
                ensure!(!cx.store().proves(last).await?, "held again by the next grant");
                holder.release().await?;
                let guard =
                    within(cx.bounds(cx.long_ttl()).cleanup(), "the waiter is granted", waiting).await???;
                ensure!(!cx.store().proves(&before).await?, "still held after the handoff");
                ended.push(before);
                guard
            }
        };
        let evidence = of(&guard)?;
        ensure!(!ended.contains(&evidence), "the evidence of an earlier grant: {evidence:?}");
        ensure!(cx.store().proves(&evidence).await?, "not held: {evidence:?}");
        guard.release().await?;
        ensure!(!cx.store().proves(&evidence).await?, "still held after its release: {evidence:?}");
        ended.push(evidence);
    }
    none_is_proved(&cx, &ended).await
}

async fn evidence_of_a_silent_holder_fails_before_the_next_one_writes(cx: Cx) -> Result<()> {
    let name = cx.name();
    // Long enough that its grant is proved before it ends, also on a loaded machine.
    let silent = cx.session(cx.short_ttl() * 2).await?;
    let lost = take(&silent, &name).await?;
    let lost = lost.evidence().context("every grant has evidence")?.clone();
    ensure!(cx.store().proves(&lost).await?, "not held: {lost:?}");
    // Nothing renews the silent session, and nothing tells it that another one was granted the lock.
    let other = cx.session(cx.long_ttl()).await?;
    let bound = cx.bounds(silent.ttl()).takeover();
    let next = within(bound, "the lock of a silent session is granted", take(&other, &name)).await??;
    ensure!(!cx.store().proves(&lost).await?, "a stale writer would not be refused");
    let evidence = next.evidence().context("every grant has evidence")?.clone();
    ensure!(cx.store().proves(&evidence).await?, "not held: {evidence:?}");
    other.release(&next).await?;
    none_is_proved(&cx, &[lost, evidence]).await
}

fn of(guard: &LockGuard) -> Result<Evidence> {
    Ok(guard.evidence().context("every grant has evidence")?.clone())
}

async fn none_is_proved(cx: &Context, ended: &[Evidence]) -> Result<()> {
    for evidence in ended {
        ensure!(!cx.store().proves(evidence).await?, "held after the last release: {evidence:?}");
    }
    Ok(())
}
