//! Elections: who leads, what it proposes, and what observers are told.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lockkit_core::{
    ErrorKind, FencingToken, Leader, LockName, Observer, Proposal,
    backend::{Claim, Elections, Grant, Session},
};
use tokio::time::{Instant, sleep};

use super::promptness;
use crate::{
    Bounds, Case,
    case::{Need, case},
    context::{Cx, rises, within},
    direct::{claim_of, earliest_recheck, granted_or_err, metadata, take},
};

pub(super) const CASES: &[Case] = &[
    case!(candidates_lead_one_after_another: SeenLeader FencedExclusion, needs Need::Elections),
    case!(observers_see_leaders_and_their_values: SeenLeader, needs Need::Elections),
    case!(observers_are_notified_before_the_recheck: SeenLeader, needs Need::LeaderWatch),
    case!(observers_never_see_an_older_leader_after_a_newer_one: SeenLeader TokenOrder, needs Need::Elections),
    case!(successor_of_a_dead_leader_is_seen: SeenLeader BoundedTakeover, needs Need::Elections, Need::Ttl),
    case!(former_leader_proclaims_nothing: SeenLeader FencedExclusion, needs Need::Elections),
    case!(older_value_does_not_undo_a_newer_one: SeenLeader, needs Need::Elections),
    case!(holder_of_a_plain_lock_leads_without_a_value: SeenLeader, needs Need::Elections),
];

/// Waits until an observer is shown this, the leader's token and value or nobody, and returns how long that took.
async fn sees(
    observer: &mut Observer,
    bound: Duration,
    expected: Option<(FencingToken, &str)>,
) -> Result<Duration> {
    let start = Instant::now();
    let is_expected = |leader: &Option<Leader>| match (leader, expected) {
        (None, None) => true,
        (Some(leader), Some((token, value))) => leader.token == token && leader.value == value,
        _ => false,
    };
    let seen = async {
        loop {
            let leader = observer.next().await.context("the observation goes on")??;
            if is_expected(&leader) {
                return Ok(start.elapsed());
            }
        }
    };
    within(bound, &format!("an observer is shown {expected:?}"), seen).await?
}

/// How long a change takes at most to reach an observer whom no notification reaches.
fn sight(bounds: Bounds) -> Duration {
    bounds.recheck + bounds.slack
}

async fn candidates_lead_one_after_another(cx: Cx) -> Result<()> {
    let (name, mut last) = (cx.name(), None);
    let clients = [cx.client().await?, cx.client().await?];
    for round in 0..cx.times(20, 4) {
        let election = clients[round % 2].election(name.as_str())?;
        let value = format!("candidate {round}");
        let leadership = election.campaign(&*value).await?;
        rises(last, leadership.token())?;
        last = Some(leadership.token());
        let others = clients[(round + 1) % 2].election(name.as_str())?;
        ensure!(others.campaign_timeout("too early", Duration::ZERO).await?.is_none(), "two candidates lead");
        // This one queues. A busy store may not have answered it in time.
        let early = others.campaign_timeout("too early", Duration::from_millis(50)).await;
        ensure!(
            early.as_ref().map_or_else(lockkit_core::Error::is_temporary, Option::is_none),
            "two candidates lead: {early:?}"
        );
        let seen = others.leader().await?.context("somebody leads")?;
        ensure!(seen.value == value && Some(seen.token) == last, "{seen:?} instead of {value}, {last:?}");
        leadership.resign().await?;
    }
    // An early candidate that the store did not answer in time may lead until its withdrawal arrives.
    let bound = sight(cx.bounds_of(&clients[0]));
    sees(&mut clients[0].election(name.as_str())?.observe(), bound, None).await.map(drop)
}

async fn observers_see_leaders_and_their_values(cx: Cx) -> Result<()> {
    let (name, client, watching) = (cx.name(), cx.short_client().await?, cx.short_client().await?);
    let bound = sight(cx.bounds_of(&watching));
    let mut observers =
        [watching.election(name.as_str())?.observe(), client.election(name.as_str())?.observe()];
    for observer in &mut observers {
        sees(observer, bound, None).await?;
    }
    let leadership = client.election(name.as_str())?.campaign("one").await?;
    for observer in &mut observers {
        sees(observer, bound, Some((leadership.token(), "one"))).await?;
    }
    leadership.proclaim("two").await?;
    for observer in &mut observers {
        sees(observer, bound, Some((leadership.token(), "two"))).await?;
    }
    ensure!(leadership.is_leader(), "a new value ends nothing");
    leadership.resign().await?;
    for observer in &mut observers {
        sees(observer, bound, None).await?;
    }
    Ok(())
}

async fn observers_are_notified_before_the_recheck(cx: Cx) -> Result<()> {
    let (name, client, watching) = (cx.name(), cx.client().await?, cx.client().await?);
    // Before the first re-check that could find the change.
    let bound = earliest_recheck(watching.ttl()) / 2;
    let mut observer = watching.election(name.as_str())?.observe();
    sees(&mut observer, bound, None).await?;
    let leadership = client.election(name.as_str())?.campaign("one").await?;
    sees(&mut observer, bound, Some((leadership.token(), "one"))).await?;
    leadership.proclaim("two").await?;
    sees(&mut observer, bound, Some((leadership.token(), "two"))).await?;
    leadership.resign().await?;
    sees(&mut observer, bound, None).await?;
    let again = client.election(name.as_str())?.campaign("three").await?;
    sees(&mut observer, bound, Some((again.token(), "three"))).await?;
    let next = tokio::spawn({
        let election = watching.election(name.as_str())?;
        async move { election.campaign("four").await }
    });
    cx.waits_behind(&name, 0).await?;
    again.resign().await?;
    let next = next.await??;
    sees(&mut observer, bound, Some((next.token(), "four"))).await?;
    next.resign().await?;
    let slowest = async || {
        let leadership = client.election(name.as_str())?.campaign("five").await?;
        let campaign = sees(&mut observer, bound, Some((leadership.token(), "five"))).await?;
        leadership.proclaim("six").await?;
        let proposal = sees(&mut observer, bound, Some((leadership.token(), "six"))).await?;
        leadership.resign().await?;
        Ok(campaign.max(proposal).max(sees(&mut observer, bound, None).await?))
    };
    promptness::are_prompt(&cx, "changes of the leader", promptness::ROUNDS, slowest).await.map(drop)
}

async fn observers_never_see_an_older_leader_after_a_newer_one(cx: Cx) -> Result<()> {
    let (name, watching) = (cx.name(), cx.short_client().await?);
    let bound = sight(cx.bounds_of(&watching));
    let mut observer = watching.election(name.as_str())?.observe();
    let mut candidates = Vec::new();
    for number in 0..3 {
        let (election, rounds) = (cx.client().await?.election(name.as_str())?, cx.times(30, 5));
        candidates.push(tokio::spawn(async move {
            for round in 0..rounds {
                let leadership = election.campaign(format!("{number} {round}")).await?;
                leadership.proclaim(format!("{number} {round} again")).await?;
                leadership.resign().await?;
            }
            anyhow::Ok(())
        }));
    }
    // The observer leaves older answers out, `leader` shows them.
    let (reading, mut newest) = (watching.election(name.as_str())?, None);
    while candidates.iter().any(|candidate| !candidate.is_finished()) {
        match reading.leader().await {
            Ok(leader) => {
                let read = leader.map(|leader| leader.token);
                ensure!(read.is_none() || read >= newest, "{read:?} is read after {newest:?}");
                newest = newest.max(read);
            }
            // Redlock: while the nodes follow each other.
            Err(error) => ensure!(error.kind() == ErrorKind::Unavailable, "{error}"),
        }
        sleep(Duration::from_millis(1)).await;
    }
    for candidate in candidates {
        candidate.await??;
    }
    let last = cx.client().await?.election(name.as_str())?.campaign("last").await?;
    let (mut newest, start) = (None, Instant::now());
    loop {
        let change = within(bound, "the last leader is seen", observer.next()).await?;
        let Some(leader) = change.context("the observation goes on")?? else { continue };
        ensure!(Some(leader.token) >= newest, "{leader:?} after {newest:?}");
        newest = Some(leader.token);
        if leader.token == last.token() {
            break;
        }
        ensure!(start.elapsed() <= bound * 2, "the last leader is not seen, but {leader:?}");
    }
    Ok(last.resign().await?)
}

async fn successor_of_a_dead_leader_is_seen(cx: Cx) -> Result<()> {
    let (name, watching) = (cx.name(), cx.short_client().await?);
    let mut observer = watching.election(name.as_str())?.observe();
    // Nothing renews this session. It must not end before its leader is seen.
    let dying = cx.session(cx.short_ttl() * 2).await?;
    let bounds = cx.bounds(dying.ttl());
    let first = lead(&dying, &name, "dying").await?;
    sees(&mut observer, sight(bounds), Some((first.token(), "dying"))).await?;
    let next = tokio::spawn({
        let election = watching.election(name.as_str())?;
        async move { election.campaign("next").await }
    });
    let next = within(bounds.takeover(), "the next candidate leads", next).await???;
    sees(&mut observer, sight(cx.bounds_of(&watching)), Some((next.token(), "next"))).await?;
    Ok(next.resign().await?)
}

async fn former_leader_proclaims_nothing(cx: Cx) -> Result<()> {
    let (name, [one, other]) = (cx.name(), cx.two_sessions().await?);
    let former = lead(&one, &name, "former").await?;
    one.release(&former).await?;
    ensure!(!proclaim(&one, &former, "nobody leads", 2).await?, "confirmed although nobody leads");
    let current = lead(&other, &name, "current").await?;
    ensure!(!proclaim(&one, &former, "too late", 3).await?, "confirmed although another one leads");
    let seen = elections(&one)?.leader(&name).await?.context("somebody leads")?;
    ensure!(
        seen.token == current.token() && seen.proposal.value == "current",
        "the former leader has changed what is seen: {seen:?}"
    );
    // In the same session, by the same client.
    other.release(&current).await?;
    let again = lead(&other, &name, "again").await?;
    ensure!(
        !proclaim(&other, &current, "of the last grant", 9).await?,
        "confirmed for a grant that has ended"
    );
    let seen = elections(&other)?.leader(&name).await?.context("somebody leads")?;
    ensure!(seen.proposal.value == "again", "an ended grant has changed what is seen: {seen:?}");
    Ok(other.release(&again).await?)
}

async fn older_value_does_not_undo_a_newer_one(cx: Cx) -> Result<()> {
    let (name, [one, other]) = (cx.name(), cx.two_sessions().await?);
    let grant = lead(&one, &name, "first").await?;
    ensure!(proclaim(&one, &grant, "third", 3).await?, "the leader was refused");
    // A copy of an earlier request that arrives late. What it is told does not matter: nobody listens any more.
    let _ = proclaim(&one, &grant, "second", 2).await?;
    for session in [&one, &other] {
        let seen = elections(session)?.leader(&name).await?.context("somebody leads")?;
        ensure!(seen.proposal.value == "third", "undone: {seen:?}");
    }
    // A repeated request is confirmed.
    ensure!(proclaim(&one, &grant, "third", 3).await?, "a repeated request was refused");
    Ok(one.release(&grant).await?)
}

async fn holder_of_a_plain_lock_leads_without_a_value(cx: Cx) -> Result<()> {
    let (name, [one, other]) = (cx.name(), cx.two_sessions().await?);
    ensure!(elections(&other)?.leader(&name).await?.is_none(), "nobody holds the lock");
    let grant = take(&one, &name).await?;
    let seen = elections(&other)?.leader(&name).await?.context("somebody holds the lock")?;
    ensure!(seen.token == grant.token(), "{seen:?} instead of {}", grant.token());
    ensure!(seen.proposal == Proposal::default(), "a value that nobody proposed: {seen:?}");
    Ok(one.release(&grant).await?)
}

/// Acquires a free lock with a value.
async fn lead(session: &Arc<dyn Session>, name: &LockName, value: &str) -> Result<Grant> {
    let (claim, _control): (Claim, _) =
        claim_of(name, true, metadata().with_proposal(Proposal::new(value, 1)));
    granted_or_err(session.acquire(claim).await?)
}

async fn proclaim(session: &Arc<dyn Session>, grant: &Grant, value: &str, number: u64) -> Result<bool> {
    let metadata = grant.metadata().clone().with_proposal(Proposal::new(value, number));
    Ok(elections(session)?.proclaim(grant, &metadata).await?)
}

fn elections(session: &Arc<dyn Session>) -> Result<&dyn Elections> {
    session.elections().context("the backend claims elections")
}
