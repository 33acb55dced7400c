//! Scripts and messages that are lost, forgotten or too early.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockkit_conformance::{Case, Rounds, own_case};
use lockkit_testbed::{Direction, Flow, Proxy, Redis};
use tokio::time::{Instant, timeout};

use super::{
    super::{Servers, key, servers::url_at, side},
    HANG, LONG, Pest, TOLD_MAX, client, exists, has_waiter, name, off, until,
};

/// How long connections are killed.
const KILLING: Duration = Duration::from_secs(4);

pub(super) const CASES: [Case; 2] = [
    own_case!(a_lost_reply_to_an_acquire_holds_or_frees: R1, P6 P12; bugs 52 55),
    own_case!(a_release_between_the_try_and_the_wait_is_not_missed: R3, P5 P13; bugs 44 45 54),
];

pub(super) fn anywhere<S: Servers>() -> Vec<Case> {
    vec![
        own_case!(waiters_are_told_though_their_connections_are_killed<S>: R2, P5; bugs 45),
        own_case!(scripts_that_the_server_forgets_are_sent_again<S>: R4, P12),
    ]
}

async fn a_lost_reply_to_an_acquire_holds_or_frees() -> Result<()> {
    let rounds = Rounds::asked_for()?.unwrap_or(Rounds::Few).times(500, 200);
    let server = off(<Redis as Servers>::start)?;
    let proxy = Proxy::start_redis(server.endpoint())?;
    let client = client(&url_at(&proxy.endpoint()), LONG).await?;
    let (lock, key) = (client.lock("r1")?, key(&name("r1")));
    for round in 0..rounds {
        proxy.swallow_reply(1);
        let lost = async || Ok(proxy.counts().dropped > round);
        if round % 4 == 3 {
            let acquiring = tokio::spawn({
                let lock = lock.clone();
                async move { lock.acquire().await.map(drop) }
            });
            until("the reply is lost", lost).await?;
            acquiring.abort();
        } else {
            let guard = timeout(HANG, lock.acquire()).await??;
            ensure!(lost().await?, "round {round}: no reply was lost");
            let (value, pttl) =
                off(|| anyhow::Ok((server.cli(&["GET", &key])?, server.cli(&["PTTL", &key])?)))?;
            ensure!(value.text().ends_with(&format!(":{}", guard.token())), "round {round}: {value:?}");
            ensure!(pttl.number() > Some(0), "round {round}: a lock without an end");
            guard.release().await?;
        }
        until("it is free", async || Ok(!off(|| exists(&server, &key))?)).await?;
    }
    client.close().await?;
    Ok(())
}

async fn a_release_between_the_try_and_the_wait_is_not_missed() -> Result<()> {
    const HELD_BACK: usize = 50;
    let chance = Rounds::asked_for()?.unwrap_or(Rounds::Few).times(5_000, 1_000);
    let server = off(<Redis as Servers>::start)?;
    let proxy = Proxy::start_redis(server.endpoint())?;
    let (holder, waiter) =
        (client(&server.url_for_clients(), LONG).await?, client(&url_at(&proxy.endpoint()), LONG).await?);
    let (held, waited, queue) = (holder.lock("r3")?, waiter.lock("r3")?, side(&name("r3"), "queue"));
    for round in 0..HELD_BACK + chance {
        let guard = held.acquire().await?;
        let holds_back = round < HELD_BACK;
        if holds_back {
            proxy.set(Direction::Replies, Flow::Hold);
        }
        let waiting = tokio::spawn({
            let waited = waited.clone();
            async move { waited.acquire().await }
        });
        if holds_back {
            until("the claim waits", async || off(|| exists(&server, &queue))).await?;
        }
        for _ in 0..fastrand::u8(..) {
            tokio::task::yield_now().await;
        }
        guard.release().await?;
        proxy.pass();
        let next = timeout(TOLD_MAX, waiting).await.with_context(|| format!("round {round}"))???;
        next.release().await?;
    }
    for client in [holder, waiter] {
        client.close().await?;
    }
    let left = off(|| server.keys("*"))?;
    ensure!(left == [side(&name("r3"), "fence")], "{left:?}");
    Ok(())
}

async fn waiters_are_told_though_their_connections_are_killed<S: Servers>() -> Result<()> {
    let servers = off(S::start)?;
    let url = servers.url_for_clients();
    let clients = [client(&url, LONG).await?, client(&url, LONG).await?];
    let pest = Pest::start(servers, Duration::from_millis(20), &["CLIENT", "KILL", "TYPE", "pubsub"]);
    let (mut guard, mut took) = (clients[0].lock("r2")?.acquire().await?, Vec::new());
    let begin = Instant::now();
    while begin.elapsed() < KILLING {
        let next = &clients[(took.len() + 1) % 2];
        let waiting = tokio::spawn({
            let lock = next.lock("r2")?;
            async move { lock.acquire().await }
        });
        has_waiter(next, &name("r2")).await?;
        let start = Instant::now();
        guard.release().await?;
        guard = timeout(TOLD_MAX, waiting).await.with_context(|| format!("round {}", took.len()))???;
        took.push(start.elapsed());
    }
    guard.release().await?;
    let kills = pest.end().await?;
    took.sort_unstable();
    let (count, most) = (took.len(), took[took.len() - 1]);
    println!("{}: {count} hand-overs, {kills} kills: p50 {:?}, longest {most:?}", S::NAME, took[count / 2]);
    ensure!(kills > 1, "nobody was killed");
    Ok(())
}

async fn scripts_that_the_server_forgets_are_sent_again<S: Servers>() -> Result<()> {
    const FOREIGN: usize = 600;
    const LOCKS: usize = 4;
    const ROUNDS: usize = 50;
    let servers = off(S::start)?;
    let url = servers.url_for_clients();
    let pest = Pest::start(servers, Duration::from_millis(10), &["SCRIPT", "FLUSH"]);
    let others = tokio::task::spawn_blocking({
        let servers = std::sync::Arc::clone(&pest.servers);
        move || {
            for number in 0..FOREIGN {
                for node in servers.masters()? {
                    node.cli(&["EVAL", &format!("return {number}"), "0"])?;
                }
            }
            anyhow::Ok(())
        }
    });
    let mut tasks = Vec::new();
    for number in 0..2 * LOCKS {
        // Two clients for each lock: hand-overs, too.
        let lock = client(&url, LONG).await?.lock(format!("r4-{}", number % LOCKS))?;
        tasks.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                timeout(HANG, lock.acquire()).await??.release().await?;
            }
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    others.await??;
    ensure!(pest.end().await? > 1, "nothing was forgotten");
    Ok(())
}
