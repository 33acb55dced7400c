//! Cases of one server: sessions that somebody ends, and one that survives.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lockkit_conformance::{Case, own_case};
use lockkit_core::{LockName, Status};
use lockkit_testbed::{Direction, Flow, ZooKeeper};
use tokio::time::{sleep, timeout};

use crate::{
    own::{HANG, LONG, TICK, linked, name, nothing_is_left, off, until},
    store::entries,
};

pub(crate) const CASES: [Case; 3] = [
    own_case!(a_holder_whose_session_somebody_closes_is_told: Z3, P11),
    own_case!(a_waiter_whose_session_somebody_closes_is_not_granted_on_it: Z3, P1 P12),
    own_case!(a_short_cut_makes_suspect_and_ends_nothing: Z5, P11),
];

/// The session of the only node of this lock, or of the last one.
fn session_of_last(server: &ZooKeeper, lock: &LockName) -> Result<i64> {
    let nodes = entries(server, lock)?;
    let last = nodes.last().context("no node")?;
    let sessions = server.ephemerals()?;
    let found = sessions.iter().find(|(_, paths)| paths.contains(last)).context("no session")?;
    Ok(*found.0)
}

async fn a_holder_whose_session_somebody_closes_is_told() -> Result<()> {
    let (server, proxy, client) = linked(LONG).await?;
    let (lock, other) = (name("z3"), crate::own::client(&proxy.endpoint(), TICK, LONG).await?);
    let guard = client.lock("z3")?.acquire().await?;
    let waiting = other.lock("z3")?;
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    until("the other waits", async || Ok(off(|| entries(&server, &lock))?.len() == 2)).await?;
    let mut sessions = off(|| server.ephemerals())?;
    sessions.retain(|_, paths| paths.iter().any(|path| path.starts_with("/lockkit/z3/")));
    let last = off(|| session_of_last(&server, &lock))?;
    let session = *sessions.keys().find(|&&session| session != last).context("no holder")?;
    proxy.hold_new();
    off(|| server.end_session(session))?;
    proxy.pass();
    // Within the time of a connection, and not of a ttl.
    let lost = timeout(HANG, guard.lost()).await.context("the holder is not told")?;
    println!("Z3: {lost}");
    let next = timeout(HANG, waiter).await.context("the waiter is not granted")???;
    ensure!(!guard.is_held() && next.is_held() && next.token() > guard.token());
    drop(guard);
    sleep(TICK).await;
    ensure!(next.is_held(), "the late release of a dead hold ended the next one");
    next.release().await?;
    nothing_is_left(&server, &lock, [client, other]).await
}

async fn a_waiter_whose_session_somebody_closes_is_not_granted_on_it() -> Result<()> {
    let (server, proxy, client) = linked(LONG).await?;
    let (lock, other) = (name("z3"), crate::own::client(&proxy.endpoint(), TICK, LONG).await?);
    let guard = client.lock("z3")?.acquire().await?;
    let waiting = other.lock("z3")?;
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    until("the other waits", async || Ok(off(|| entries(&server, &lock))?.len() == 2)).await?;
    let session = off(|| session_of_last(&server, &lock))?;
    proxy.hold_new();
    off(|| server.end_session(session))?;
    proxy.pass();
    until("its node is gone", async || {
        Ok(off(|| server.ephemerals())?.keys().all(|&found| found != session))
    })
    .await?;
    ensure!(guard.is_held(), "the wrong session ended");
    guard.release().await?;
    match timeout(HANG, waiter).await.context("the waiter hangs")?? {
        Err(error) => println!("Z3: {error}"),
        Ok(next) => {
            ensure!(
                next.is_held() && off(|| session_of_last(&server, &lock))? != session,
                "on a dead session"
            );
            next.release().await?;
        }
    }
    nothing_is_left(&server, &lock, [client, other]).await
}

async fn a_short_cut_makes_suspect_and_ends_nothing() -> Result<()> {
    let ttl = Duration::from_secs(6);
    let (server, proxy, client) = linked(ttl).await?;
    let lock = name("z5");
    let guard = client.lock("z5")?.acquire().await?;
    let (token, session) = (guard.token(), off(|| session_of_last(&server, &lock))?);
    // Until the lifetime is as long as it gets.
    sleep(ttl / 4).await;
    let mut status = client.status();
    for direction in [Direction::Requests, Direction::Replies] {
        proxy.set(direction, Flow::Hold);
    }
    let suspect = async { while !matches!(status.changed().await, Status::Suspect { .. }) {} };
    ensure!(timeout(ttl / 2, suspect).await.is_ok(), "half a ttl of silence, and no suspicion");
    proxy.pass();
    loop {
        match timeout(HANG, status.changed()).await? {
            Status::Connected => break,
            Status::Suspect { .. } => {}
            ended => bail!("{ended:?}"),
        }
    }
    ensure!(guard.is_held() && guard.token() == token, "{:?}", guard.check().err());
    ensure!(off(|| session_of_last(&server, &lock))? == session, "another session");
    guard.release().await?;
    nothing_is_left(&server, &lock, [client]).await
}
