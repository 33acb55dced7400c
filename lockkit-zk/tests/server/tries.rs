//! Tries at locks that were busy a moment ago, which read before they create a node.

use std::sync::{Arc, atomic::Ordering::SeqCst};

use lockkit_core::{
    ErrorKind, LockName,
    backend::{Backend, Grant, Renewal, Session},
};
use lockkit_testbed::ZooKeeper;
use zookeeper_client::{Acls, CreateMode};

use crate::{
    budget::spent,
    common::{
        LATE, LONG, acquire, backend, enqueued, fresh_name, granted, heartbeat, is_gave_up, node,
        own_ensemble, own_server, plain, queue, quiet_session, quiet_url, release, session, session_at,
        shared, shifted_clock, start_claim, through_proxy, try_acquire, until,
    },
};

/// Takes a lock, which `trying` then finds busy.
async fn held_and_tried(holding: &Arc<dyn Session>, trying: &Arc<dyn Session>, name: &LockName) -> Grant {
    let held = acquire(holding, name).await;
    assert!(is_gave_up(&try_acquire(trying, name).await));
    held
}

/// The try's own server still shows the holder; its leader does not.
#[tokio::test(flavor = "multi_thread")]
async fn try_at_a_late_follower_is_granted_what_was_released_before() {
    let ensemble = own_ensemble();
    let (leader, follower) = (ensemble.leader().unwrap(), ensemble.follower().unwrap());
    let (at_leader, to_follower) = (ensemble.member(leader), ensemble.member(follower));
    for form in ["curator", "bare", "single"] {
        let url = |server: &ZooKeeper| format!("{}&form={form}", quiet_url(server));
        let (holding, trying) =
            (session_at(&url(at_leader), LONG).await, session_at(&url(to_follower), LONG).await);
        let name = fresh_name();
        let held = acquire(&holding, &name).await;
        // The second only reads.
        for _ in 0..2 {
            assert!(is_gave_up(&try_acquire(&trying, &name).await), "{form}");
        }
        // Connected before the delay: a new connection would be as new as the leader.
        let reader = plain(to_follower).await;
        ensemble.delay(follower, LATE);
        release(&holding, &held).await;
        let path = node(&name);
        let is_shown = match form {
            "single" => reader.check_stat(&path).await.unwrap().is_some(),
            _ => !reader.list_children(&path).await.unwrap().is_empty(),
        };
        assert!(is_shown, "{form}: the follower is not late");
        let next = granted(try_acquire(&trying, &name).await);
        assert!(next.token() > held.token());
        ensemble.heal();
        release(&trying, &next).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn try_whose_read_is_not_answered_fails_and_leaves_nothing() {
    let (server, name) = (shared(), fresh_name());
    let holding = session(server, LONG).await;
    let (proxy, trying) = through_proxy(server).await;
    let held = held_and_tried(&holding, &trying, &name).await;
    for nth in [1, 2] {
        proxy.swallow_reply(nth);
        let error = try_acquire(&trying, &name).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert_eq!(queue(server, &name).len(), 1);
    }
    release(&holding, &held).await;
    release(&trying, &granted(try_acquire(&trying, &name).await)).await;
}

/// A create that the server refuses is a transaction, too.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_try_at_a_busy_lock_writes_nothing() {
    let server = own_server();
    for form in ["curator", "bare", "single"] {
        let url = format!("{}&form={form}", quiet_url(&server));
        let (holding, trying) = (session_at(&url, LONG).await, session_at(&url, LONG).await);
        let name = fresh_name();
        let held = held_and_tried(&holding, &trying, &name).await;
        let logged = server.log_bytes().unwrap();
        assert!(is_gave_up(&try_acquire(&trying, &name).await), "{form}");
        assert_eq!(server.log_bytes().unwrap(), logged, "{form}");
        release(&holding, &held).await;
    }
}

/// A lock that counts as recently busy, and has been released: what is left at its place must not refuse it.
#[tokio::test(flavor = "multi_thread")]
async fn recently_busy_lock_is_granted_whatever_is_left_of_its_queue() {
    let server = shared();
    let operator = plain(server).await;
    for form in ["curator", "bare"] {
        let url = format!("{}/?form={form}", server.url());
        let (holding, trying) = (session_at(&url, LONG).await, session_at(&url, LONG).await);
        for is_directory_left in [false, true] {
            let name = fresh_name();
            let held = held_and_tried(&holding, &trying, &name).await;
            release(&holding, &held).await;
            let directory = node(&name);
            if is_directory_left {
                let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
                operator.create(&format!("{directory}/notes"), b"", &options).await.unwrap();
            } else {
                operator.delete(&directory, None).await.unwrap();
            }
            release(&trying, &granted(try_acquire(&trying, &name).await)).await;
        }
    }
}

/// The read of the next try would find a node, but that node never goes away.
#[tokio::test(flavor = "multi_thread")]
async fn lasting_node_at_the_place_of_a_recently_busy_lock_is_an_error() {
    let server = shared();
    let url = format!("{}/?form=single", server.url());
    let (holding, trying) = (session_at(&url, LONG).await, session_at(&url, LONG).await);
    let name = fresh_name();
    let held = held_and_tried(&holding, &trying, &name).await;
    release(&holding, &held).await;
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    plain(server).await.create(&node(&name), b"", &options).await.unwrap();
    let error = try_acquire(&trying, &name).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_that_waits_queues_for_a_recently_busy_lock() {
    let server = shared();
    for form in ["curator", "single"] {
        let url = format!("{}/?form={form}", server.url());
        let (holding, other) = (session_at(&url, LONG).await, session_at(&url, LONG).await);
        let name = fresh_name();
        let held = acquire(&holding, &name).await;
        for _ in 0..2 {
            let trying = start_claim(&other, &name, false);
            let control = trying.control.clone();
            assert!(is_gave_up(&trying.ends().await));
            assert!(control.was_contended(), "{form}: the keeper takes it for an unavailable server");
        }
        let waiting = enqueued(&other, &name).await;
        release(&holding, &held).await;
        release(&other, &waiting.granted().await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn try_at_a_recently_busy_lock_without_a_connection_is_unavailable() {
    let (server, name) = (shared(), fresh_name());
    let holding = session(server, LONG).await;
    let (proxy, trying) = through_proxy(server).await;
    let held = held_and_tried(&holding, &trying, &name).await;
    // A new connection comes into being, and remains silent.
    proxy.hold_new();
    proxy.reset();
    until("the client has noticed", async || {
        matches!(heartbeat(&trying, &[]).await.session, Renewal::Unknown(_))
    })
    .await;
    let error = try_acquire(&trying, &name).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Unavailable, Some(&name)));
    proxy.pass();
    release(&holding, &held).await;
}

/// A read cannot tell a contender from a node that only looks like one, so reads alone must not refuse a lock for ever.
#[tokio::test(flavor = "multi_thread")]
async fn node_decides_again_a_minute_after_the_last_one_did() {
    let (server, (clock, ahead)) = (own_server(), shifted_clock());
    let trying = backend(&quiet_url(&server)).open_session(LONG, clock).await.unwrap();
    let (holding, name) = (quiet_session(&server).await, fresh_name());
    let held = acquire(&holding, &name).await;
    // Create, list and delete; or sync and list.
    for (after, packets) in [(0, 3), (40, 2), (70, 3), (71, 2)] {
        ahead.store(after, SeqCst);
        let spent = spent(&server, async || assert!(is_gave_up(&try_acquire(&trying, &name).await))).await;
        assert_eq!(spent, (packets, packets), "after {after} s");
    }
    release(&holding, &held).await;
}
