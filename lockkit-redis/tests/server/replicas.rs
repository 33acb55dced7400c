//! Grants and renewals that count only when replicas have acknowledged them.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkit_core::{
    ErrorKind, FencingToken, LockClient, LockName,
    backend::{Acquired, Grant, Renewal, Session},
};
use lockkit_testbed::{Proxy, RedisReplicas};

use crate::{
    common::{
        LONG, acquire, assert_error, backend, bounded, enqueued, fresh_name, granted, is_entry_gone,
        only_renewal, release, session, session_at, start, try_acquire, until,
    },
    topologies::is_renewed,
};

/// Half of it is for the replicas; long enough for a busy machine.
const PATIENT: &str = "?request_timeout=10s";

#[tokio::test(flavor = "multi_thread")]
async fn grant_is_refused_while_replicas_do_not_follow() {
    let nodes = RedisReplicas::start().unwrap();
    let session = session_at(&format!("{}/{PATIENT}&min_replicas=2", nodes.url()), LONG).await;
    let name = fresh_name();
    until_replicas_count(&session, &name).await;
    let held = acquire(&session, &name).await;
    release(&session, &held).await;
    nodes.node(1).stop_replicating().unwrap();
    let error = try_acquire(&session, &name).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(nodes.node(0).keys(name.as_str()).unwrap(), [""; 0], "the refused grant is still there");
    nodes.node(1).replicate_again().unwrap();
    until_replicas_count(&session, &name).await;
}

/// Waits until a grant counts: a replica acknowledges nothing before its first synchronization is complete.
pub(crate) async fn until_replicas_count(session: &Arc<dyn Session>, name: &LockName) -> FencingToken {
    let last = Mutex::new(None);
    let counts = async || match try_acquire(session, name).await {
        Ok(end) => {
            let held = granted(Ok(end));
            release(session, &held).await;
            *last.lock().unwrap() = Some(held.token());
            true
        }
        Err(_) => false,
    };
    until("the replicas acknowledge", counts).await;
    last.into_inner().unwrap().unwrap()
}

/// Its renewals have a connection of their own. What it reads over the other one would be as old as the replication.
#[tokio::test(flavor = "multi_thread")]
async fn client_that_only_renews_leaves_a_demoted_master() {
    let nodes = RedisReplicas::start().unwrap();
    let session = session_at(&format!("{}/{PATIENT}&min_replicas=1", nodes.url()), LONG).await;
    let name = fresh_name();
    until_replicas_count(&session, &name).await;
    let held = acquire(&session, &name).await;
    nodes.wait_until_in_sync(0).unwrap();
    nodes.promote(1).unwrap();
    until("its channel is at the new master", async || {
        bounded(session.renew(std::slice::from_ref(&held))).await;
        let channels = nodes.node(1).cli(&["PUBSUB", "CHANNELS", "lockkit:client:*"]).unwrap();
        !channels.list().is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_connection_for_replicas_is_replaced() {
    let nodes = RedisReplicas::start().unwrap();
    // Half of it is for the replicas; long enough for a busy machine.
    let session = session_at(&format!("{}/?request_timeout=20s&min_replicas=1", nodes.url()), LONG).await;
    let name = fresh_name();
    let mut last = until_replicas_count(&session, &name).await;
    for _ in 0..5 {
        // Connections with a subscription have another type.
        let killed = nodes.node(0).cli(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap().number();
        assert!(killed >= Some(1), "{killed:?}");
        let held = granted(try_acquire(&session, &name).await);
        assert!(held.token() > last);
        last = held.token();
        release(&session, &held).await;
    }
    let held = acquire(&session, &fresh_name()).await;
    nodes.wait_until_in_sync(0).unwrap();
    nodes.promote(1).unwrap();
    nodes.wait_until_in_sync(1).unwrap();
    until("the main connection is at the new master", async || is_renewed(&session, &held).await).await;
    assert!(until_replicas_count(&session, &name).await > last);
}

/// As if the first grant was lost with a master, and the repeated request granted at another one.
#[tokio::test(flavor = "multi_thread")]
async fn grant_found_with_another_token_is_withdrawn() {
    let nodes = RedisReplicas::start().unwrap();
    let proxy = Proxy::start_redis(nodes.node(0).endpoint()).unwrap();
    let url = format!("redis://{}/{PATIENT}&min_replicas=1", proxy.endpoint());
    let (session, name) = (session_at(&url, LONG).await, fresh_name());
    until_replicas_count(&session, &name).await;
    proxy.hold_requests_from("WAIT");
    let claim = start(&session, &name);
    until("replicas are asked", async || proxy.holds("WAIT")).await;
    let value = nodes.node(0).cli(&["GET", name.as_str()]).unwrap();
    let (id, token) = value.text().split_once(':').unwrap();
    let another = format!("{id}:{}", token.parse::<u64>().unwrap() + 1);
    nodes.node(0).cli(&["SET", name.as_str(), &another, "PX", "60000"]).unwrap();
    proxy.pass();
    // It says nothing about replicas: a new claim may be granted.
    assert!(is_entry_gone(&claim.ends().await));
    assert_eq!(nodes.node(0).keys(name.as_str()).unwrap(), [""; 0], "the refused grant is still there");
}

/// The message shows that the master has the grant, and nothing about its replicas.
#[tokio::test(flavor = "multi_thread")]
async fn pushed_grant_is_refused_while_replicas_do_not_follow() {
    let (nodes, name) = (RedisReplicas::start().unwrap(), fresh_name());
    let one = session_at(&format!("{}/{PATIENT}", nodes.url()), LONG).await;
    let other = session_at(&format!("{}/{PATIENT}&min_replicas=2", nodes.url()), LONG).await;
    until_replicas_count(&other, &name).await;
    let held = acquire(&one, &name).await;
    let waiter = enqueued(&other, &name).await;
    nodes.node(1).stop_replicating().unwrap();
    release(&one, &held).await;
    let error = waiter.ends().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(nodes.node(0).keys(name.as_str()).unwrap(), [""; 0], "the refused grant is still there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_too_few_replicas_acknowledge_is_unknown() {
    let nodes = RedisReplicas::start().unwrap();
    let session = session_at(&format!("{}/{PATIENT}&min_replicas=1", nodes.url()), LONG).await;
    until_replicas_count(&session, &fresh_name()).await;
    let (held, lost) = (acquire(&session, &fresh_name()).await, acquire(&session, &fresh_name()).await);
    assert!(is_renewed(&session, &held).await);
    for number in 1..nodes.len() {
        nodes.node(number).stop_replicating().unwrap();
    }
    match only_renewal(session.renew(std::slice::from_ref(&held)).await) {
        Renewal::Unknown(error) => assert_error(&error, ErrorKind::Unavailable, "replica"),
        other => panic!("{other:?}"),
    }
    // What the master no longer has is lost, whatever replicas acknowledge.
    let is_gone = async |grant: &Grant| {
        nodes.node(0).cli(&["DEL", grant.name().as_str()]).unwrap();
        matches!(only_renewal(session.renew(std::slice::from_ref(grant)).await), Renewal::Gone)
    };
    assert!(is_gone(&lost).await);
    nodes.node(1).replicate_again().unwrap();
    until("a replica acknowledges renewals again", async || is_renewed(&session, &held).await).await;
    assert!(is_gone(&held).await);
}

/// A replica that is cut off expires the lock one ttl after the last renewal that it received. If it is promoted then,
/// it grants the lock to the next client.
#[tokio::test(flavor = "multi_thread")]
async fn hold_ends_before_a_promoted_replica_grants_the_lock_again() {
    const TTL: Duration = Duration::from_secs(3);
    let nodes = RedisReplicas::start().unwrap();
    // Both replicas: one that did not acknowledge may not have the lock.
    let url = format!("{}/?request_timeout=5s&min_replicas=2", nodes.url());
    let client = LockClient::builder(backend(&url)).ttl(TTL).build().await.unwrap();
    let name = fresh_name();
    let guard = bounded(async {
        loop {
            // Fails until both replicas have acknowledged something.
            match client.lock(name.as_str()).unwrap().try_acquire().await {
                Ok(Some(guard)) => break guard,
                // A refused grant is still being withdrawn.
                Ok(None) => {}
                Err(error) => assert!(error.is_temporary(), "{error}"),
            }
        }
    })
    .await;
    for number in 1..nodes.len() {
        nodes.node(number).stop_replicating().unwrap();
    }
    let promoted = nodes.node(1);
    until("the lock has expired at the replica", async || {
        promoted.cli(&["EXISTS", name.as_str()]).unwrap().number() == Some(0)
    })
    .await;
    promoted.cli(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let next = granted(try_acquire(&session(promoted, LONG).await, &name).await);
    assert!(!guard.is_held(), "two holders: {} and {}", guard.token(), next.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn grant_confirmed_by_replicas_takes_two_scripts() {
    const ROUNDS: u64 = 20;
    let nodes = RedisReplicas::start().unwrap();
    let session = session_at(&format!("{}/?min_replicas=1", nodes.url()), LONG).await;
    let name = fresh_name();
    until_replicas_count(&session, &name).await;
    let counted = || {
        let calls = |command| nodes.node(0).calls(command).unwrap();
        (calls("evalsha") + calls("eval"), calls("wait"))
    };
    let before = counted();
    for _ in 0..ROUNDS {
        let held = granted(try_acquire(&session, &name).await);
        release(&session, &held).await;
    }
    let after = counted();
    // Two for the grant, and one for the release.
    assert_eq!((after.0 - before.0, after.1 - before.1), (3 * ROUNDS, ROUNDS));
}

/// No grant waits for the confirmation of another one.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_confirm_grants_concurrently() {
    const LOCKS: usize = 100;
    let nodes = RedisReplicas::start().unwrap();
    let session = session_at(&format!("{}/?min_replicas=1&request_timeout=20s", nodes.url()), LONG).await;
    until_replicas_count(&session, &fresh_name()).await;
    let claims: Vec<_> = (0..LOCKS).map(|_| start(&session, &fresh_name())).collect();
    let mut held = Vec::new();
    for claim in claims {
        held.push(claim.granted().await);
    }
    let heartbeat = bounded(session.renew(&held)).await;
    assert!(
        heartbeat.holds.iter().all(|(_, renewal)| matches!(renewal, Renewal::Renewed { .. })),
        "{heartbeat:?}"
    );
}

/// Nobody knows which replicas have the grant.
#[tokio::test(flavor = "multi_thread")]
async fn grant_at_a_master_that_is_demoted_meanwhile_is_unavailable() {
    let nodes = RedisReplicas::start().unwrap();
    let master = nodes.node(0);
    // The demotion ends the wait for replicas, and must come before its time limit.
    let session = session_at(&format!("{}/?request_timeout=20s&min_replicas=1", nodes.url()), LONG).await;
    until_replicas_count(&session, &fresh_name()).await;
    (1..nodes.len()).for_each(|replica| nodes.node(replica).stop_replicating().unwrap());
    let info = |section, line: &str| {
        let info = master.cli(&["INFO", section]).unwrap();
        info.text().lines().any(|found| found.starts_with(line))
    };
    let claim = start(&session, &fresh_name());
    until("the grant waits for replicas", async || info("clients", "blocked_clients:1")).await;
    master.cli(&["REPLICAOF", "127.255.255.254", "1"]).unwrap();
    assert!(info("errorstats", "errorstat_UNBLOCKED:"));
    master.cli(&["REPLICAOF", "NO", "ONE"]).unwrap();
    match claim.ends().await {
        // On a busy machine, the client asks again when the server is a master once more. Then another claim follows.
        Ok(Acquired::EntryGone) => {}
        end => assert_eq!(end.unwrap_err().kind(), ErrorKind::Unavailable),
    }
}
