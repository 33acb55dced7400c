//! Cases of one server: nodes that are unknown, gone, or foreign.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
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
use lockkit_core::ErrorKind;
use lockkit_testbed::{ZooKeeper, ZooKeeperOptions};
use tokio::time::{sleep, timeout};

use crate::{
    own::{BEFORE_A_RECHECK, TICK, client, linked, nothing_is_left, server},
    store::{directory, entries},
};

pub(crate) const CASES: [Case; 9] = [
    own_case!(a_lost_reply_to_a_create_leaves_one_node: NoOrphan TruthfulErrors),
    own_case!(an_acquire_cancelled_during_its_create_leaves_no_node: NoOrphan),
    own_case!(deletion_with_lost_reply_is_repeated: NoOrphan NoForeignRelease),
    own_case!(exhausted_numbers_are_refused_and_never_shared: TimedExclusion TokenOrder TruthfulErrors),
    own_case!(a_predecessor_may_vanish_before_it_is_watched: NoLostWakeUp),
    own_case!(an_own_node_may_vanish_before_it_is_listed: TimedExclusion NoLostWakeUp),
    own_case!(reaped_container_is_created_again_and_tokens_rise: TokenOrder TruthfulErrors),
    own_case!(timed_out_acquires_leave_no_watch: NoResidue),
    own_case!(junk_is_ignored_and_other_families_are_waited_for: TimedExclusion NoLostWakeUp),
];

async fn a_lost_reply_to_a_create_leaves_one_node() -> Result<()> {
    const ROUNDS: u32 = 500;
    let (server, proxy, client) = linked(LONG).await?;
    let (lock, handle) = (name("job"), client.lock("job")?);
    for round in 0..ROUNDS {
        proxy.swallow_reply(1);
        let guard = timeout(HANG, handle.acquire()).await??;
        ensure!(proxy.counts().dropped == u64::from(round) + 1, "no reply was lost");
        let nodes = off(|| entries(&server, &lock))?;
        ensure!(nodes.len() == 1, "round {round}: {nodes:?}");
        guard.release().await?;
    }
    nothing_is_left(&server, &lock, [client]).await
}

async fn an_acquire_cancelled_during_its_create_leaves_no_node() -> Result<()> {
    const ROUNDS: u32 = 20;
    let (server, proxy, client) = linked(LONG).await?;
    let (lock, kept) = (name("job"), client.lock("kept")?.acquire().await?);
    for _ in 0..ROUNDS {
        let handle = client.lock("job")?;
        proxy.hold_requests_from("/lockkit/job/");
        let acquiring = tokio::spawn(async move { handle.acquire().await });
        until("the create is held", async || Ok(proxy.holds("/lockkit/job/"))).await?;
        acquiring.abort();
        ensure!(acquiring.await.is_err_and(|error| error.is_cancelled()), "cancelled too late");
        proxy.pass();
        until("its node is deleted", async || Ok(off(|| entries(&server, &lock))?.is_empty())).await?;
    }
    ensure!(kept.is_held(), "a cancel ended the session");
    kept.release().await?;
    nothing_is_left(&server, &lock, [client]).await
}

async fn deletion_with_lost_reply_is_repeated() -> Result<()> {
    const ROUNDS: u32 = 20;
    let (server, proxy, client) = linked(LONG).await?;
    let (lock, kept) = (name("job"), client.lock("kept")?.acquire().await?);
    let mut last = kept.token();
    for round in 0..ROUNDS {
        let guard = client.lock("job")?.acquire().await?;
        ensure!(guard.token() > last, "{} after {last}", guard.token());
        last = guard.token();
        proxy.swallow_reply(1);
        guard.release().await.context("a release that was done")?;
        let lost = proxy.counts().dropped;
        ensure!(lost == u64::from(round) + 1, "{lost} replies lost in {} rounds", round + 1);
        ensure!(off(|| entries(&server, &lock))?.is_empty(), "released, and still there");
    }
    ensure!(kept.is_held(), "a lost reply ended the session");
    kept.release().await?;
    nothing_is_left(&server, &lock, [client]).await
}

/// At its last number the server stops counting: two nodes may get the same one.
async fn exhausted_numbers_are_refused_and_never_shared() -> Result<()> {
    const CLIENTS: usize = 6;
    // Two rounds with a holder and a waiter, then the limit is reached.
    const LIMIT: i32 = i32::MAX - (1 << 16) + 1;
    let server = off(|| ZooKeeper::start_numbered("/lockkit/job", LIMIT - 4))?;
    let (one, other) =
        (client(&server.endpoint(), TICK, LONG).await?, client(&server.endpoint(), TICK, LONG).await?);
    let lock = name("job");
    for _ in 0..2 {
        let held = one.lock("job")?.acquire().await?;
        let handle = other.lock("job")?;
        let waiter = tokio::spawn(async move { handle.acquire().await });
        until("it waits", async || Ok(off(|| entries(&server, &lock))?.len() == 2)).await?;
        let token = held.token();
        held.release().await?;
        let next = timeout(HANG, waiter).await???;
        ensure!(next.token() > token);
        next.release().await?;
    }
    let refused = one.lock("job")?.acquire().await.err().context("granted beyond the limit")?;
    println!("{refused}");
    nothing_is_left(&server, &lock, [one, other]).await?;

    // At the very end, with all clients at once.
    let server = off(|| ZooKeeper::start_numbered("/lockkit/job", i32::MAX - 2))?;
    let (mut clients, holders) = (Vec::new(), Arc::new(AtomicUsize::new(0)));
    for _ in 0..CLIENTS {
        clients.push(client(&server.endpoint(), TICK, LONG).await?);
    }
    let tries = clients.iter().map(|client| {
        let (handle, holders) = (client.lock("job"), Arc::clone(&holders));
        tokio::spawn(async move {
            let handle = handle?;
            for _ in 0..10 {
                if let Ok(Some(guard)) = handle.acquire_timeout(Duration::from_millis(100)).await {
                    ensure!(holders.fetch_add(1, SeqCst) == 0, "two holders");
                    sleep(Duration::from_millis(5)).await;
                    holders.fetch_sub(1, SeqCst);
                    guard.release().await?;
                }
            }
            Ok(())
        })
    });
    for done in tries.collect::<Vec<_>>() {
        done.await??;
    }
    Ok(())
}

async fn a_predecessor_may_vanish_before_it_is_watched() -> Result<()> {
    const ROUNDS: u32 = 10;
    let (server, proxy, waiting) = linked(LONG).await?;
    let (lock, holding) = (name("job"), client(&server.endpoint(), TICK, LONG).await?);
    for _ in 0..ROUNDS {
        let held = holding.lock("job")?.acquire().await?;
        let node = off(|| entries(&server, &lock))?.pop().context("no node")?;
        // Only the watch request has the path of the predecessor.
        proxy.hold_requests_from(&node);
        let handle = waiting.lock("job")?;
        let waiter = tokio::spawn(async move { handle.acquire().await });
        until("the watch is held", async || Ok(proxy.holds(&node))).await?;
        held.release().await?;
        proxy.pass();
        let granted =
            timeout(BEFORE_A_RECHECK, waiter).await.context("the vanished node is waited for")???;
        granted.release().await?;
    }
    nothing_is_left(&server, &lock, [waiting, holding]).await
}

async fn an_own_node_may_vanish_before_it_is_listed() -> Result<()> {
    let (server, proxy, client) = linked(LONG).await?;
    let lock = name("job");
    client.lock("job")?.acquire().await?.release().await?;
    // The list that was sent with the create is lost, and the next one waits for a connection.
    proxy.hold_new();
    proxy.swallow_reply(2);
    let handle = client.lock("job")?;
    let acquiring = tokio::spawn(async move { handle.acquire().await });
    until("the node is there", async || Ok(!off(|| entries(&server, &lock))?.is_empty())).await?;
    until("the list is lost", async || Ok(proxy.counts().dropped == 1)).await?;
    let node = off(|| entries(&server, &lock))?.pop().context("no node")?;
    off(|| server.delete(&node))?;
    proxy.pass();
    let guard = timeout(HANG, acquiring).await.context("an empty list makes it hang")???;
    let nodes = off(|| entries(&server, &lock))?;
    ensure!(guard.is_held() && nodes.len() == 1 && nodes[0] != node, "granted without a node: {nodes:?}");
    guard.release().await?;
    nothing_is_left(&server, &lock, [client]).await
}

async fn reaped_container_is_created_again_and_tokens_rise() -> Result<()> {
    const ROUNDS: u32 = 30;
    // The server removes empty containers as fast as it can.
    let options = ZooKeeperOptions { reap_every: Duration::from_millis(20), ..Default::default() };
    let server = off(|| ZooKeeper::start_with(options))?;
    let (one, other) =
        (client(&server.endpoint(), TICK, LONG).await?, client(&server.endpoint(), TICK, LONG).await?);
    let lock = name("job");
    let mut last = None;
    for round in 0..ROUNDS {
        let client = if round % 2 == 0 { &one } else { &other };
        let guard = timeout(HANG, client.lock("job")?.acquire()).await??;
        ensure!(Some(guard.token()) > last, "{} after {last:?}", guard.token());
        last = Some(guard.token());
        guard.release().await?;
        if round % 3 == 0 {
            // Deleted by an operator, unless the server was faster.
            off(|| server.delete(&directory(&lock))).context("an empty directory")?;
        } else if round % 3 == 1 {
            let is_gone = async || Ok(!off(|| server.children("/lockkit"))?.contains(&"job".to_owned()));
            until("the server has reaped the directory", is_gone).await?;
        }
    }
    nothing_is_left(&server, &lock, [one, other]).await
}

async fn timed_out_acquires_leave_no_watch() -> Result<()> {
    const LOCKS: usize = 50;
    const ROUNDS: u64 = 200;
    /// From zero to long enough for all requests.
    const TIME_LIMITS: u64 = 40;
    let server = off(server)?;
    let (holding, waiting) =
        (client(&server.endpoint(), TICK, LONG).await?, client(&server.endpoint(), TICK, LONG).await?);
    let names: Vec<String> = (0..LOCKS).map(|n| format!("job-{n}")).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(holding.lock(name)?.acquire().await?);
    }
    let tries = names.iter().map(|name| {
        let handle = waiting.lock(name);
        tokio::spawn(async move {
            let handle = handle?;
            for round in 0..ROUNDS {
                // Some end in the middle of a request.
                let time_limit = Duration::from_millis(round % TIME_LIMITS);
                match handle.acquire_timeout(time_limit).await {
                    Ok(guard) => ensure!(guard.is_none(), "two holders"),
                    // Too early for an answer of the server.
                    Err(error) => ensure!(error.kind() == ErrorKind::Unavailable, "{error}"),
                }
            }
            Ok(())
        })
    });
    for done in tries.collect::<Vec<_>>() {
        done.await??;
    }
    // Claims that gave up are withdrawn in the background. A busy server needs its time for thousands of them.
    let nodes = || server.ephemerals().map(|nodes| nodes.values().map(Vec::len).sum::<usize>());
    // Those of the holders, and one of each client.
    let expected = LOCKS + 2;
    loop {
        let left = off(nodes)?;
        if left <= expected {
            break;
        }
        until("one more claim is withdrawn", async || Ok(off(nodes)? < left)).await?;
    }
    until("no watch is left", async || Ok(off(|| server.watches())? == 0)).await?;
    for guard in guards {
        guard.release().await?;
    }
    nothing_is_left(&server, &name(&names[0]), [holding, waiting]).await
}

async fn junk_is_ignored_and_other_families_are_waited_for() -> Result<()> {
    const JUNK: [&str; 6] =
        ["junk", "lock-", "_c_junk-lock-junk", "x_c_junk-lock-12", "lock-00000000000x", "ö"];
    let server = off(server)?;
    let client = client(&server.endpoint(), TICK, LONG).await?;
    let lock = name("job");
    client.lock("job")?.acquire().await?.release().await?;
    let nodes =
        |names: &[&str]| names.iter().map(|node| format!("{}/{node}", directory(&lock))).collect::<Vec<_>>();
    for node in nodes(&JUNK) {
        off(|| server.create(&node, "junk"))?;
    }
    let guard = timeout(HANG, client.lock("job")?.acquire()).await.context("junk is waited for")??;
    guard.release().await?;

    // A contender of another program, already in the queue.
    for foreign in
        nodes(&["0123456789abcdef0123456789abcdef__lock__0000000000", "lock-0000000000", "x-7-0000000000"])
    {
        off(|| server.create(&foreign, ""))?;
        ensure!(client.lock("job")?.try_acquire().await?.is_none(), "{foreign} does not count");
        let handle = client.lock("job")?;
        let waiter = tokio::spawn(async move { handle.acquire().await });
        until("it waits", async || Ok(off(|| server.watches())? > 0)).await?;
        off(|| server.delete(&foreign))?;
        timeout(BEFORE_A_RECHECK, waiter)
            .await
            .context("the end of the other is missed")???
            .release()
            .await?;
    }
    let (mut left, mut expected) = (off(|| entries(&server, &lock))?, nodes(&JUNK));
    left.sort();
    expected.sort();
    ensure!(left == expected, "{left:?}");
    for node in &left {
        off(|| server.delete(node))?;
    }
    nothing_is_left(&server, &lock, [client]).await
}
