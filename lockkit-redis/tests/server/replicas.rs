//! Grants and renewals that count only when replicas know of them.

use std::sync::{Arc, Mutex};

use lockkit_core::{ErrorKind, FencingToken, LockName, backend::Session};
use lockkit_testbed::RedisReplicas;

use crate::{
    common::{LONG, acquire, fresh_name, granted, release, session_at, try_acquire, until},
    topologies::{QUICK, is_renewed},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_counts_only_with_replicas_is_refused_while_they_do_not_follow() {
    let nodes = RedisReplicas::start().unwrap();
    let session = session_at(&format!("{}/{QUICK}&min_replicas=2", nodes.url()), LONG).await;
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
