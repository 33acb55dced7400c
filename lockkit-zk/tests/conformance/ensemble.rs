//! Cases of an ensemble: members that hear nothing, hear late, or are gone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use lockkit_conformance::{Case, own_case};
use lockkit_core::{BootInstant, Clock, LockClient, LockName, TimeSource};
use lockkit_testbed::{Direction, Flow, Message, Proxy, ZooKeeper, ZooKeeperEnsemble, ZooKeeperOptions};
use tokio::time::{Instant, timeout};

use crate::{
    own::{HANG, LONG, TICK, backend_of, client, name, off, until},
    store::{directory, entries},
};

pub(crate) const CASES: [Case; 3] = [
    own_case!(a_ghost_of_the_session_before_is_not_adopted: Z4, P1 P6),
    own_case!(a_deaf_follower_is_given_up_before_others_are_granted: Z7, P1 P11),
    own_case!(waiters_that_move_to_another_server_are_woken_once: Z11, P5 P10 P13),
];

/// The sessions that have nodes of this lock, as a member knows it.
fn sessions_of(member: &ZooKeeper, lock: &LockName) -> Result<Vec<i64>> {
    let below = directory(lock) + "/";
    let mut sessions = member.ephemerals()?;
    sessions.retain(|_, paths| paths.iter().any(|path| path.starts_with(&below)));
    Ok(sessions.into_keys().collect())
}

/// A clock that can be put forward: its client's deadline passes while the servers have all their time.
struct Ahead(Clock, Arc<AtomicU64>);

impl TimeSource for Ahead {
    fn now(&self) -> BootInstant {
        self.0.now().after(Duration::from_millis(self.1.load(SeqCst)))
    }
}

/// The client gives its session up while the server does not yet, and comes back by way of a member that is late.
async fn a_ghost_of_the_session_before_is_not_adopted() -> Result<()> {
    let (ttl, ahead_ms) = (Duration::from_secs(10), Arc::new(AtomicU64::new(0)));
    let ensemble = off(ZooKeeperEnsemble::start)?;
    let (leader, follower) = (off(|| ensemble.leader())?, off(|| ensemble.follower())?);
    let to_leader = Proxy::start_zookeeper(ensemble.member(leader).endpoint())?;
    let to_follower = Proxy::start_zookeeper(ensemble.member(follower).endpoint())?;
    let leader = ensemble.member(leader);
    to_follower.refuse();
    let backend = backend_of(&format!("{},{}", to_leader.endpoint(), to_follower.endpoint()), TICK)?;
    let clock = Clock::new(Ahead(Clock::boot(), Arc::clone(&ahead_ms)));
    let client = LockClient::builder(backend).ttl(ttl).clock(clock).build().await?;
    let lock = name("z4");
    let old = client.lock("z4")?.acquire().await?;
    let ghosts = off(|| sessions_of(leader, &lock))?;

    for direction in [Direction::Requests, Direction::Replies] {
        to_leader.set(direction, Flow::Hold);
    }
    ahead_ms.store(u64::try_from(ttl.as_millis())?, SeqCst);
    timeout(HANG, old.lost()).await.context("the deadline is not noticed")?;
    ensure!(off(|| sessions_of(leader, &lock))? == ghosts, "the server was sooner than the client");
    // The old connection stays as it is: over another one, the client would end the session that it has given up.
    to_leader.refuse_new();
    // Less than what a beat may take.
    ensemble.delay(follower, ttl / 60);
    to_follower.pass();
    // Behind the new session's own node: the reply to the create, so that it is looked for.
    to_follower.swallow_reply(2);
    let new = timeout(HANG, client.lock("z4")?.acquire()).await.context("the ghost is waited for")??;
    let owners = off(|| sessions_of(leader, &lock))?;
    ensure!(owners.len() == 1 && owners != ghosts, "{owners:x?} after {ghosts:x?}");
    ensure!(off(|| entries(leader, &lock))?.len() == 1, "more than one node");
    ensure!(to_follower.counts().dropped == 1, "no reply was lost");
    ensure!(new.is_held() && !old.is_held() && new.token() > old.token());
    new.release().await?;
    client.close().await?;
    until("nothing is left", async || Ok(off(|| leader.ephemerals())?.is_empty())).await.map(drop)
}

/// With ZooKeeper's default times a follower that hears nothing serves on for ten seconds, and answers pings.
async fn a_deaf_follower_is_given_up_before_others_are_granted() -> Result<()> {
    let tick = Duration::from_secs(2);
    let options = ZooKeeperOptions { tick, session_min: 2 * tick, sync_limit: 5, ..Default::default() };
    let ensemble = off(|| ZooKeeperEnsemble::start_with(options))?;
    let (leader, follower) = (off(|| ensemble.leader())?, off(|| ensemble.follower())?);
    let (leader, deaf) = (ensemble.member(leader).endpoint(), ensemble.member(follower));
    let mut both = Vec::new();
    for seconds in [4, 6] {
        let ttl = Duration::from_secs(seconds);
        let (holding, waiting) =
            (client(&deaf.endpoint(), tick, ttl).await?, client(&leader, tick, ttl).await?);
        let name = format!("z7-{seconds}");
        let held = Arc::new(holding.lock(&name)?.acquire().await?);
        let handle = waiting.lock(&name)?;
        let watched = Arc::clone(&held);
        let granted = tokio::spawn(async move {
            let guard = handle.acquire().await?;
            // The other one, at this moment.
            anyhow::Ok((Instant::now(), watched.is_held(), guard))
        });
        let watched = Arc::clone(&held);
        let lost = tokio::spawn(async move {
            watched.lost().await;
            Instant::now()
        });
        // Somebody waits there, too: what its looks read at the follower proves nothing.
        let other = format!("z7-{seconds}-other");
        let (kept, looking) = (waiting.lock(&other)?.acquire().await?, holding.lock(&other)?);
        let looks = tokio::spawn(async move { looking.acquire().await });
        both.push((seconds, held, lost, granted, (kept, looks, [holding, waiting])));
    }
    // Until lifetimes are as long as they get.
    tokio::time::sleep(2 * tick).await;
    ensemble.deafen(follower);
    let cut = Instant::now();
    for (seconds, held, lost, granted, _others) in both {
        let lost = timeout(HANG, lost).await.context("nobody noticed")??;
        ensure!(off(|| deaf.metrics()).is_ok(), "the follower noticed first, so this proves nothing");
        let (granted, were_two, next) = timeout(HANG, granted).await.context("the other side waits")???;
        let [after_lost, after_granted] = [lost, granted].map(|at| at - cut);
        println!(
            "Z7: session {seconds} s: lost {after_lost:.2?} after the cut, the other side granted after \
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
    let (lock, holding) = (name("z11"), client(&ensemble.member(2).endpoint(), TICK, LONG).await?);
    let held = holding.lock("z11")?.acquire().await?;
    let granted = Arc::new(AtomicU64::new(0));
    let (mut clients, mut waiters) = (Vec::<LockClient>::new(), Vec::new());
    for place in 0..WAITERS {
        let client = client(&servers, TICK, LONG).await?;
        let (handle, granted) = (client.lock("z11")?, Arc::clone(&granted));
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
    ensure!(off(|| there.watches())? == 0 && off(|| entries(there, &lock))?.is_empty());
    until("nothing is left", async || Ok(off(|| there.ephemerals())?.is_empty())).await.map(drop)
}
