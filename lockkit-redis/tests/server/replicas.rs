//! Grants and renewals that count only when replicas know of them.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkit_core::{
    ErrorKind, FencingToken, LockClient, LockName,
    backend::{Renewal, Session},
};
use lockkit_testbed::{Proxy, RedisReplicas};

use crate::{
    common::{
        LONG, acquire, backend, bounded, fresh_name, granted, release, says, session, session_at, start,
        try_acquire, until, verdict,
    },
    topologies::is_renewed,
};

/// Half of it is for the replicas, however busy this machine is.
const PATIENT: &str = "?request_timeout=5s";

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_counts_only_with_replicas_is_refused_while_they_do_not_follow() {
    let nodes = RedisReplicas::start().unwrap();
    let session = session_at(&format!("{}/{PATIENT}&min_replicas=2", nodes.url()), LONG).await;
    let name = fresh_name();
    until_replicas_count(&session, &name).await;
    let held = acquire(&session, &name).await;
    release(&session, &held).await;
    nodes.node(1).stop_replicating().unwrap();
    let error = try_acquire(&session, &name).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(nodes.node(0).keys(name.as_str()).unwrap(), [""; 0], "not given back");
    nodes.node(1).replicate_again().unwrap();
    until_replicas_count(&session, &name).await;
}

/// Waits until a grant counts: a replica answers for the first time when it has written all that it got.
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
    until("the replicas count", counts).await;
    last.into_inner().unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connection_that_asks_replicas_may_have_died_meanwhile() {
    let nodes = RedisReplicas::start().unwrap();
    // Half of it is for the replicas, whatever else this machine does.
    let session = session_at(&format!("{}/?request_timeout=20s&min_replicas=1", nodes.url()), LONG).await;
    let name = fresh_name();
    let mut last = until_replicas_count(&session, &name).await;
    for _ in 0..5 {
        // Those that listen are others.
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
    until("all but that connection is at the new master", async || is_renewed(&session, &held).await).await;
    assert!(until_replicas_count(&session, &name).await > last);
}

/// The first one was lost with a master, and the claim asked again elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_is_found_with_another_token_is_none() {
    let nodes = RedisReplicas::start().unwrap();
    let proxy = Proxy::start_redis(nodes.node(0).endpoint()).unwrap();
    let url = format!("redis://{}/{PATIENT}&min_replicas=1", proxy.endpoint());
    let (session, name) = (session_at(&url, LONG).await, fresh_name());
    until_replicas_count(&session, &name).await;
    proxy.hold_at("WAIT");
    let claim = start(&session, &name);
    until("replicas are asked", async || proxy.holds("WAIT")).await;
    let value = nodes.node(0).cli(&["GET", name.as_str()]).unwrap();
    let (id, token) = value.text().split_once(':').unwrap();
    let another = format!("{id}:{}", token.parse::<u64>().unwrap() + 1);
    nodes.node(0).cli(&["SET", name.as_str(), &another, "PX", "60000"]).unwrap();
    proxy.pass();
    let error = claim.ends().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(nodes.node(0).keys(name.as_str()).unwrap(), [""; 0], "not given back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_too_few_replicas_acknowledge_is_unknown() {
    let nodes = RedisReplicas::start().unwrap();
    let session = session_at(&format!("{}/{PATIENT}&min_replicas=1", nodes.url()), LONG).await;
    until_replicas_count(&session, &fresh_name()).await;
    let held = acquire(&session, &fresh_name()).await;
    assert!(is_renewed(&session, &held).await);
    for number in 1..nodes.len() {
        nodes.node(number).stop_replicating().unwrap();
    }
    match verdict(session.renew(std::slice::from_ref(&held)).await) {
        Renewal::Unknown(error) => says(&error, ErrorKind::Unavailable, "replica"),
        other => panic!("{other:?}"),
    }
    nodes.node(1).replicate_again().unwrap();
    until("a replica acknowledges renewals again", async || is_renewed(&session, &held).await).await;
    // What the master itself no longer has is lost, whatever replicas say.
    nodes.node(0).cli(&["DEL", held.name().as_str()]).unwrap();
    assert!(matches!(verdict(session.renew(std::slice::from_ref(&held)).await), Renewal::Gone));
}

/// A replica that is cut off forgets the lock one ttl after the last renewal that it got; whoever asks it then, once it is
/// promoted, is granted the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_ends_before_a_replica_that_was_cut_off_and_promoted_grants_the_lock() {
    const TTL: Duration = Duration::from_secs(3);
    let nodes = RedisReplicas::start().unwrap();
    // Both of them: one that acknowledged nothing may have nothing.
    let url = format!("{}/{PATIENT}&min_replicas=2", nodes.url());
    let client = LockClient::builder(backend(&url)).ttl(TTL).build().await.unwrap();
    let name = fresh_name();
    let guard = bounded(async {
        loop {
            // A replica counts from its first acknowledgement on.
            match client.lock(name.as_str()).unwrap().try_acquire().await {
                Ok(guard) => break guard.unwrap(),
                Err(error) => assert!(error.is_temporary(), "{error}"),
            }
        }
    })
    .await;
    for number in 1..nodes.len() {
        nodes.node(number).stop_replicating().unwrap();
    }
    let promoted = nodes.node(1);
    until("the replica has forgotten the lock", async || {
        promoted.cli(&["EXISTS", name.as_str()]).unwrap().number() == Some(0)
    })
    .await;
    promoted.cli(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let next = granted(try_acquire(&session(promoted, LONG).await, &name).await);
    assert!(!guard.is_held(), "two holders: {} and {}", guard.token(), next.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_replicas_must_know_of_takes_two_scripts() {
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
    // And one for the release.
    assert_eq!((after.0 - before.0, after.1 - before.1), (3 * ROUNDS, ROUNDS));
}

/// None of them waits until another one has been confirmed.
#[tokio::test(flavor = "multi_thread")]
async fn grants_are_confirmed_by_replicas_side_by_side() {
    const LOCKS: usize = 100;
    let nodes = RedisReplicas::start().unwrap();
    let session = session_at(&format!("{}/?min_replicas=1&request_timeout=20s", nodes.url()), LONG).await;
    until_replicas_count(&session, &fresh_name()).await;
    let claims: Vec<_> = (0..LOCKS).map(|_| start(&session, &fresh_name())).collect();
    let mut held = Vec::new();
    for claim in claims {
        held.push(claim.granted().await);
    }
    let beat = bounded(session.renew(&held)).await;
    assert!(beat.holds.iter().all(|(_, renewal)| matches!(renewal, Renewal::Renewed { .. })), "{beat:?}");
}
