//! Servers that lose counters, or everything.

use anyhow::{Result, ensure};
use lockkit_conformance::{Case, own_case};
use lockkit_testbed::Redis;
use tokio::{task::JoinSet, time::timeout};

use super::{
    super::{Servers, key, side},
    LONG, SLACK, client, exists, name, off, until,
};

pub(super) const CASES: [Case; 1] = [own_case!(names_used_once_leave_nothing: R6, P13; bugs 49)];

pub(super) fn anywhere<S: Servers>() -> Vec<Case> {
    vec![
        own_case!(tokens_rise_without_their_counters<S>: R6, P2 P3; bugs 47),
        own_case!(a_flush_ends_a_hold_and_no_renewal_brings_it_back<S>: R7, P7 P11),
    ]
}

async fn tokens_rise_without_their_counters<S: Servers>() -> Result<()> {
    let servers = off(S::start)?;
    let client = client(&servers.url_for_clients(), LONG).await?;
    let (lock, counter) = (client.lock("r6")?, side(&name("r6"), "fence"));
    let mut last = None;
    for round in 0..20 {
        let guard = lock.acquire().await?;
        ensure!(last < Some(guard.token()), "round {round}: {:?} after {last:?}", guard.token());
        last = Some(guard.token());
        guard.release().await?;
        if round < 10 {
            let deleted = off(|| servers.node_of(&counter)?.cli(&["DEL", &counter]))?;
            ensure!(deleted.number() == Some(1), "there is no counter");
        } else {
            off(|| servers.masters()?.iter().try_for_each(|node| node.cli(&["FLUSHALL"]).map(drop)))?;
        }
    }
    client.close().await?;
    Ok(())
}

async fn a_flush_ends_a_hold_and_no_renewal_brings_it_back<S: Servers>() -> Result<()> {
    // A beat is so much shorter that it tells the loss, and not the deadline.
    let ttl = 4 * SLACK;
    let servers = off(S::start)?;
    let (one, other) =
        (client(&servers.url_for_clients(), ttl).await?, client(&servers.url_for_clients(), ttl).await?);
    let (guard, key) = (one.lock("r7")?.acquire().await?, key(&name("r7")));
    off(|| servers.masters()?.iter().try_for_each(|node| node.cli(&["FLUSHALL"]).map(drop)))?;
    let lost = timeout(ttl / 3 + SLACK, guard.lost());
    let stays_away = async { until("it is there again", async || off(|| exists(&servers, &key))).await };
    tokio::select! {
        lost = lost => drop(lost?),
        there = stays_away => anyhow::bail!("a renewal brought it back after {:?}", there?),
    }
    let next = other.lock("r7")?.acquire().await?;
    ensure!(next.token() > guard.token(), "{} after {}", next.token(), guard.token());
    ensure!(guard.release().await.is_err(), "the loss was kept from the holder");
    ensure!(off(|| exists(&servers, &key))?, "the loser's release ended the next hold");
    next.release().await?;
    Ok(())
}

async fn names_used_once_leave_nothing() -> Result<()> {
    const NAMES: usize = 10_000;
    const TASKS: usize = 50;
    let server = off(<Redis as Servers>::start)?;
    let client = client(&format!("{}&counter_ttl=5s", server.url_for_clients()), LONG).await?;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let client = client.clone();
        tasks.spawn(async move {
            for number in (task..NAMES).step_by(TASKS) {
                client.lock(format!("r6-{number}"))?.acquire().await?.release().await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let left = async || anyhow::Ok(off(|| server.cli(&["DBSIZE"]))?.number());
    ensure!(left().await? > Some(0), "there are no counters");
    until("nothing is left", async || Ok(left().await? == Some(0))).await?;
    client.close().await?;
    Ok(())
}
