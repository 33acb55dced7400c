//! Cases of an ensemble: members that are isolated, late, or gone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use lockkit_conformance::{
    Case,
    direct::name,
    own::{HANG, LONG, off, until},
    own_case,
};
use lockkit_core::{Clock, LockClient, LockName};
use lockkit_testbed::{Direction, Flow, Message, Proxy, ZooKeeper, ZooKeeperEnsemble, ZooKeeperOptions};
use tokio::time::{Instant, timeout};

use crate::{
    own::{TICK, backend_of, client},
    store::{directory, entries},
};

pub(crate) const CASES: [Case; 3] = [
    own_case!(node_of_the_previous_session_is_not_adopted: TimedExclusion NoOrphan),
    own_case!(lock_behind_an_isolated_follower_is_lost_before_others_are_granted: TimedExclusion BoundedLoss),
    own_case!(waiters_that_move_to_another_server_are_woken_once: NoLostWakeUp Fifo NoResidue),
];

/// Returns the sessions with nodes of this lock, as a member knows them.
fn sessions_of(member: &ZooKeeper, lock: &LockName) -> Result<Vec<i64>> {
    let below = directory(lock) + "/";
    let mut sessions = member.ephemerals()?;
    sessions.retain(|_, paths| paths.iter().any(|path| path.starts_with(&below)));
    Ok(sessions.into_keys().collect())
}

/// The client abandons its session while the server still has it, and reconnects through a member that is late.
async fn node_of_the_previous_session_is_not_adopted() -> Result<()> {
    let (ttl, ahead_ms) = (Duration::from_secs(10), Arc::new(AtomicU64::new(0)));
    let ensemble = off(ZooKeeperEnsemble::start)?;
    let (leader, follower) = (off(|| ensemble.leader())?, off(|| ensemble.follower())?);
    let to_leader = Proxy::start_zookeeper(ensemble.member(leader).endpoint())?;
    let to_follower = Proxy::start_zookeeper(ensemble.member(follower).endpoint())?;
    let leader = ensemble.member(leader);
    to_follower.refuse();
    let backend = backend_of(&format!("{},{}", to_leader.endpoint(), to_follower.endpoint()), TICK)?;
    // Set forward later: the client's deadline passes while the sessions at the servers have all their time.
    let (clock, ahead) = (Clock::boot(), Arc::clone(&ahead_ms));
    let clock = Clock::new(move || clock.now().after(Duration::from_millis(ahead.load(SeqCst))));
    let client = LockClient::builder(backend).ttl(ttl).clock(clock).build().await?;
    let lock = name("job");
    let old = client.lock("job")?.acquire().await?;
    let old_sessions = off(|| sessions_of(leader, &lock))?;

    for direction in [Direction::Requests, Direction::Replies] {
        to_leader.set(direction, Flow::Hold);
    }
    ahead_ms.store(u64::try_from(ttl.as_millis())?, SeqCst);
    timeout(HANG, old.lost()).await.context("the passed deadline is not noticed")?;
    ensure!(
        off(|| sessions_of(leader, &lock))? == old_sessions,
        "the server expired the session before the client"
    );
    // The old connection stays open but silent: over another one, the client would end the abandoned session.
    to_leader.refuse_new();
    // Less than a heartbeat may take.
    ensemble.delay(follower, ttl / 60);
    to_follower.pass();
    // The create arrives at the late follower and the reply to it, or one just before it, is lost: it is looked up.
    let below = directory(&lock) + "/";
    to_follower.hold_requests_from(&below);
    let handle = client.lock("job")?;
    let acquiring = tokio::spawn(async move { handle.acquire().await });
    until("the create is held", async || Ok(to_follower.holds(&below))).await?;
    to_follower.set(Direction::Requests, Flow::Pass);
    // At once: the reply is on its way soon.
    to_follower.swallow_reply(1);
    let new = timeout(HANG, acquiring).await.context("the old node is waited for")???;
    let owners = off(|| sessions_of(leader, &lock))?;
    ensure!(owners.len() == 1 && owners != old_sessions, "{owners:x?} after {old_sessions:x?}");
    ensure!(off(|| entries(leader, &lock))?.len() == 1, "more than one node");
    ensure!(to_follower.counts().dropped == 1, "no reply was lost");
    ensure!(new.is_held() && !old.is_held() && new.token() > old.token());
    new.release().await?;
    client.close().await?;
    until("nothing is left", async || Ok(off(|| leader.ephemerals())?.is_empty())).await.map(drop)
}

/// With ZooKeeper's default times an isolated follower serves for ten more seconds, and answers pings.
async fn lock_behind_an_isolated_follower_is_lost_before_others_are_granted() -> Result<()> {
    let tick = Duration::from_secs(2);
    let options = ZooKeeperOptions { tick, session_min: 2 * tick, sync_limit: 5, ..Default::default() };
    let ensemble = off(|| ZooKeeperEnsemble::start_with(options))?;
    let (leader, follower) = (off(|| ensemble.leader())?, off(|| ensemble.follower())?);
    let (leader, deaf) = (ensemble.member(leader).endpoint(), ensemble.member(follower));
    let mut both = Vec::new();
    for seconds in [6, 8] {
        let ttl = Duration::from_secs(seconds);
        let (holding, waiting) =
            (client(&deaf.endpoint(), tick, ttl).await?, client(&leader, tick, ttl).await?);
        let name = format!("job-{seconds}");
        let held = Arc::new(holding.lock(&name)?.acquire().await?);
        let handle = waiting.lock(&name)?;
        let watched = Arc::clone(&held);
        let granted = tokio::spawn(async move {
            let guard = handle.acquire().await?;
            // The state of the other hold at this moment.
            anyhow::Ok((Instant::now(), watched.is_held(), guard))
        });
        let watched = Arc::clone(&held);
        let lost = tokio::spawn(async move {
            watched.lost().await;
            Instant::now()
        });
        // A waiter there, too: what its re-checks read at the follower proves nothing.
        let other = format!("job-{seconds}-other");
        let (kept, rechecking) = (waiting.lock(&other)?.acquire().await?, holding.lock(&other)?);
        let rechecks = tokio::spawn(async move { rechecking.acquire().await });
        both.push((seconds, held, lost, granted, (kept, rechecks, [holding, waiting])));
    }
    // Until the known leases have reached their steady age.
    tokio::time::sleep(2 * tick).await;
    ensemble.deafen(follower);
    let (cut, mut losses) = (Instant::now(), Vec::new());
    for (_, _, lost, ..) in &mut both {
        losses.push(timeout(HANG, lost).await.context("the loss is not noticed")??);
    }
    ensure!(off(|| deaf.metrics()).is_ok(), "the follower noticed first, so this proves nothing");
    for ((seconds, held, _, granted, _others), lost) in both.into_iter().zip(losses) {
        let (granted, were_two, next) = timeout(HANG, granted).await.context("the other side waits")???;
        let [after_lost, after_granted] = [lost, granted].map(|at| at - cut);
        println!(
            "session {seconds} s: lost {after_lost:.2?} after the cut, the other side granted after \
             {after_granted:.2?}"
        );
        ensure!(!were_two && lost <= granted, "lost after {after_lost:?}, granted after {after_granted:?}");
        ensure!(next.is_held() && next.token() > held.token());
    }
    Ok(())
}

async fn waiters_that_move_to_another_server_are_woken_once() -> Result<()> {
    const WAITERS: u64 = 50;
    let ensemble = off(ZooKeeperEnsemble::start)?;
    let [here, there] = [0, 1].map(|member| ensemble.member(member));
    let (to_here, to_there) =
        (Proxy::start_zookeeper(here.endpoint())?, Proxy::start_zookeeper(there.endpoint())?);
    to_there.refuse();
    let servers = format!("{},{}", to_here.endpoint(), to_there.endpoint());
    let (lock, holding) = (name("job"), client(&ensemble.member(2).endpoint(), TICK, LONG).await?);
    let held = holding.lock("job")?.acquire().await?;
    let granted = Arc::new(AtomicU64::new(0));
    let (mut clients, mut waiters) = (Vec::<LockClient>::new(), Vec::new());
    for place in 0..WAITERS {
        let client = client(&servers, TICK, LONG).await?;
        let (handle, granted) = (client.lock("job")?, Arc::clone(&granted));
        waiters.push(tokio::spawn(async move {
            let guard = handle.acquire().await?;
            ensure!(granted.fetch_add(1, SeqCst) == place, "number {place} out of turn");
            Ok(guard.release().await?)
        }));
        clients.push(client);
        until("it watches", async || Ok(off(|| here.watches())? == place + 1)).await?;
    }
    to_there.pass();
    to_here.refuse();
    until("all watch there", async || Ok(off(|| there.watches())? == WAITERS)).await?;
    let events = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&events);
    to_there.drop_messages(Message::Events, move |number| {
        count.store(number, SeqCst);
        false
    });
    held.release().await?;
    let all = async {
        for waiter in waiters {
            waiter.await??;
        }
        anyhow::Ok(())
    };
    timeout(HANG, all).await.context("not all were woken")??;
    ensure!(events.load(SeqCst) == WAITERS, "{} events", events.load(SeqCst));
    for client in clients.into_iter().chain([holding]) {
        client.close().await?;
    }
    ensure!(off(|| entries(there, &lock))?.is_empty());
    until("no watch is left", async || Ok(off(|| there.watches())? == 0)).await?;
    until("nothing is left", async || Ok(off(|| there.ephemerals())?.is_empty())).await.map(drop)
}
