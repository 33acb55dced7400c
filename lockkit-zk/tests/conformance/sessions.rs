//! Cases of one server: sessions that are closed elsewhere, and one that survives.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lockkit_conformance::{
    Case,
    direct::name,
    own::{HANG, LONG, off, until},
    own_case,
};
use lockkit_core::{LockName, Status};
use lockkit_testbed::{Direction, Flow, ZooKeeper};
use tokio::time::{sleep, timeout};

use crate::{
    own::{TICK, linked, nothing_is_left},
    store::entries,
};

pub(crate) const CASES: [Case; 3] = [
    own_case!(holder_whose_session_is_closed_elsewhere_loses_its_lock: BoundedLoss),
    own_case!(waiter_whose_session_is_closed_elsewhere_is_not_granted_on_it: TimedExclusion TruthfulErrors),
    own_case!(short_outage_makes_suspect_and_ends_nothing: BoundedLoss),
];

/// Returns the session of the last node of this lock.
fn session_of_last(server: &ZooKeeper, lock: &LockName) -> Result<i64> {
    let nodes = entries(server, lock)?;
    let last = nodes.last().context("no node")?;
    let sessions = server.ephemerals()?;
    let found = sessions.iter().find(|(_, paths)| paths.contains(last)).context("no session")?;
    Ok(*found.0)
}

async fn holder_whose_session_is_closed_elsewhere_loses_its_lock() -> Result<()> {
    let (server, proxy, client) = linked(LONG).await?;
    let (lock, other) = (name("job"), crate::own::client(&proxy.endpoint(), TICK, LONG).await?);
    let guard = client.lock("job")?.acquire().await?;
    let waiting = other.lock("job")?;
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    until("the other waits", async || Ok(off(|| entries(&server, &lock))?.len() == 2)).await?;
    let mut sessions = off(|| server.ephemerals())?;
    sessions.retain(|_, paths| paths.iter().any(|path| path.starts_with("/lockkit/job/")));
    let last = off(|| session_of_last(&server, &lock))?;
    let session = *sessions.keys().find(|&&session| session != last).context("no holder")?;
    proxy.hold_new();
    off(|| server.end_session(session))?;
    proxy.pass();
    // Within the time of a reconnect, not of a ttl.
    let lost = timeout(HANG, guard.lost()).await.context("the holder is not notified")?;
    println!("{lost}");
    let next = timeout(HANG, waiter).await.context("the waiter is not granted")???;
    ensure!(!guard.is_held() && next.is_held() && next.token() > guard.token());
    drop(guard);
    sleep(TICK).await;
    ensure!(next.is_held(), "the late release of a dead hold ended the next one");
    next.release().await?;
    nothing_is_left(&server, &lock, [client, other]).await
}

async fn waiter_whose_session_is_closed_elsewhere_is_not_granted_on_it() -> Result<()> {
    let (server, proxy, client) = linked(LONG).await?;
    let (lock, other) = (name("job"), crate::own::client(&proxy.endpoint(), TICK, LONG).await?);
    let guard = client.lock("job")?.acquire().await?;
    let waiting = other.lock("job")?;
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
        Err(error) => println!("{error}"),
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

async fn short_outage_makes_suspect_and_ends_nothing() -> Result<()> {
    // Half of it must be enough to reconnect, also on a busy machine.
    let ttl = Duration::from_secs(18);
    let (server, proxy, client) = linked(ttl).await?;
    let lock = name("job");
    let guard = client.lock("job")?.acquire().await?;
    let (token, session) = (guard.token(), off(|| session_of_last(&server, &lock))?);
    // Until the known lease has reached its steady age.
    sleep(ttl / 4).await;
    let mut status = client.status();
    for direction in [Direction::Requests, Direction::Replies] {
        proxy.set(direction, Flow::Hold);
    }
    let suspect = async { while !matches!(status.changed().await, Status::Suspect { .. }) {} };
    ensure!(timeout(ttl / 2, suspect).await.is_ok(), "not suspect after half a ttl of silence");
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
