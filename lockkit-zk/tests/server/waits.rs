//! The cost of a waiter while nothing happens.

use std::sync::Arc;

use lockkit_core::backend::Session;
use lockkit_testbed::{Direction, Flow, Message, Proxy, ZooKeeper};
use zookeeper_client::{Acls, CreateMode};

use crate::common::{
    BEFORE_A_RECHECK, LONG, SHORT, acquire, contend, enqueued, fresh_name, heartbeat, is_entry_gone,
    is_renewed, node, own_server, plain, queue, release, session_at, sooner_than, until, url_through,
    watching,
};

async fn renew_now_and_then(session: Arc<dyn Session>) {
    loop {
        session.renew(&[]).await;
        tokio::time::sleep(SHORT / 10).await;
    }
}

/// Opens sessions of a holder and, through a proxy, of a waiter, for locks that are one node. The waiter's outlasts its
/// first re-check also without heartbeats.
async fn single_node_sessions(server: &ZooKeeper) -> (Proxy, Arc<dyn Session>, Arc<dyn Session>) {
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let holder = session_at(&format!("{}/?form=single", server.url()), LONG).await;
    let waiter = session_at(&format!("{}&form=single", url_through(&proxy)), 2 * SHORT).await;
    (proxy, holder, waiter)
}

/// Listing at each re-check would read n^2 names in a queue of n waiters.
#[tokio::test(flavor = "multi_thread")]
async fn recheck_reads_no_list_and_keeps_its_watch() {
    const WAITERS: usize = 200;
    let server = own_server();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    for form in ["curator", "bare"] {
        let holder = session_at(&format!("{}/?form={form}", server.url()), LONG).await;
        let name = fresh_name();
        let held = acquire(&holder, &name).await;
        let session = session_at(&format!("{}&form={form}", url_through(&proxy)), SHORT).await;
        let renewing = tokio::spawn(renew_now_and_then(Arc::clone(&session)));
        let mut waiting = Vec::new();
        for _ in 0..WAITERS {
            waiting.push(enqueued(&session, &name).await);
        }
        until("all watch", async || server.watches().unwrap() == WAITERS as u64).await;
        let before = proxy.counts();
        // Less than one request of each waiter, and more than the heartbeats of that time.
        let sent = || proxy.counts().to_server - before.to_server;
        until("they look again", async || sent() > 40 * WAITERS as u64).await;
        let received = proxy.counts().to_client - before.to_client;
        println!("{form}: {} bytes sent, {received} received by {WAITERS} waiters", sent());
        assert!(received < 10 * sent(), "{received} bytes received for {} sent", sent());
        // If the client has reconnected, it is about to set them again.
        until("all still watch", async || server.watches().unwrap() == WAITERS as u64).await;
        release(&holder, &held).await;
        let mut waiting = waiting.into_iter();
        for _ in 0..3 {
            let next = waiting.next().unwrap().granted().await;
            release(&session, &next).await;
        }
        renewing.abort();
        session.close().await.unwrap();
        until("nothing is left", async || server.watches().unwrap() == 0).await;
    }
}

/// A create per re-check would be a transaction of the whole ensemble. The end of the wait does not depend on one: the
/// deletion is reported.
#[tokio::test(flavor = "multi_thread")]
async fn recheck_of_a_single_node_writes_nothing() {
    let (server, name) = (own_server(), fresh_name());
    let (proxy, holder, session) = single_node_sessions(&server).await;
    let held = acquire(&holder, &name).await;
    let waiting = enqueued(&session, &name).await;
    until("it watches", async || server.watches().unwrap() == 1).await;
    let (logged, sent) = (server.log_bytes().unwrap(), proxy.counts().to_server);
    // More than the pings until the re-check.
    until("it looks again", async || proxy.counts().to_server > sent + 72).await;
    assert_eq!(server.log_bytes().unwrap(), logged);
    release(&holder, &held).await;
    release(&session, &waiting.granted().await).await;
    let patient = session_at(&format!("{}/?form=single", server.url()), LONG).await;
    sooner_than(BEFORE_A_RECHECK, async || {
        let held = acquire(&holder, &name).await;
        let waiting = watching(&server, &patient, &name).await;
        release(&holder, &held).await;
        release(&patient, &waiting.granted().await).await;
    })
    .await;
}

/// Another program takes the lock at the moment of the release; only the lost event would have reported that.
#[tokio::test(flavor = "multi_thread")]
async fn recheck_of_a_single_node_watches_its_replacement() {
    let (server, name) = (own_server(), fresh_name());
    let (proxy, holder, session) = single_node_sessions(&server).await;
    let held = acquire(&holder, &name).await;
    let waiting = watching(&server, &session, &name).await;
    let renewing = tokio::spawn(renew_now_and_then(Arc::clone(&session)));
    proxy.drop_messages(Message::Events, |_| true);
    let (other, path) = (plain(&server).await, node(&name));
    let mut taking = other.new_multi_writer();
    taking.add_delete(&path, None).unwrap();
    taking.add_create(&path, b"", &CreateMode::Ephemeral.with_acls(Acls::anyone_all())).unwrap();
    taking.commit().await.unwrap();
    until("the event is lost", async || proxy.counts().dropped > 0).await;
    proxy.pass();
    until("it watches the other one", async || server.watches().unwrap() == 1).await;
    assert!(waiting.is_waiting());
    other.delete(&path, None).await.unwrap();
    release(&session, &waiting.granted().await).await;
    release(&holder, &held).await;
    renewing.abort();
}

/// All names recur in a new directory, and no event reports that.
#[tokio::test(flavor = "multi_thread")]
async fn recheck_finds_that_a_waiters_node_is_another_ones() {
    let server = own_server();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let other = plain(&server).await;
    let session = session_at(&format!("{}&form=bare", url_through(&proxy)), SHORT).await;
    let name = fresh_name();
    let first = contend(&other, &name, "lock-").await;
    let waiting = watching(&server, &session, &name).await;
    let renewing = tokio::spawn(renew_now_and_then(Arc::clone(&session)));
    proxy.drop_messages(Message::Events, |_| true);
    let own = format!("{}/lock-0000000001", node(&name));
    assert!(
        server.delete(&own).unwrap()
            && server.delete(&first).unwrap()
            && server.delete(&node(&name)).unwrap()
    );
    assert_eq!(contend(&other, &name, "lock-").await, first, "the name did not recur");
    assert_eq!(contend(&other, &name, "lock-").await, own, "the name did not recur");
    until("its event is lost", async || proxy.counts().dropped > 0).await;
    assert!(is_entry_gone(&waiting.ends().await));
    // If the claim had ended with its session, there would be none.
    until("it is renewed", async || is_renewed(&heartbeat(&session, &[]).await.session)).await;
    renewing.abort();
}

/// Its event comes when other contenders have got all names in a new directory, and the one that has its own is first.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_whose_name_another_one_has_got_is_not_granted() {
    let server = own_server();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let other = plain(&server).await;
    let session = session_at(&format!("{}&form=bare", url_through(&proxy)), LONG).await;
    let name = fresh_name();
    let first = contend(&other, &name, "lock-").await;
    let waiting = watching(&server, &session, &name).await;
    proxy.hold_events();
    let own = format!("{}/lock-0000000001", node(&name));
    for path in [&own, &first, &node(&name)] {
        assert!(server.delete(path).unwrap(), "{path}");
    }
    for path in [&first, &own] {
        assert_eq!(&contend(&other, &name, "lock-").await, path, "the name did not recur");
    }
    assert!(server.delete(&first).unwrap());
    proxy.pass();
    let end = waiting.ends().await;
    assert!(is_entry_gone(&end), "{end:?}");
    assert_eq!(queue(&server, &name).len(), 1, "the other one's node is deleted");
}

/// Nobody may read the node but its owner. It exists nevertheless, so there is nothing to list.
#[tokio::test(flavor = "multi_thread")]
async fn recheck_of_an_unreadable_predecessor_reads_no_list() {
    let server = own_server();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let session = session_at(&url_through(&proxy), SHORT).await;
    let name = fresh_name();
    // The directories are everybody's.
    release(&session, &acquire(&session, &name).await).await;
    let owner = session_at(&format!("zk://app:secret@{}/?acl=auth::cdrwa", server.endpoint()), LONG).await;
    let held = acquire(&owner, &name).await;
    let waiting = watching(&server, &session, &name).await;
    let renewing = tokio::spawn(renew_now_and_then(Arc::clone(&session)));
    // Requests that name the directory. In a list, it is followed by "no watch".
    let (directory, list) = (node(&name), format!("{}\0", node(&name)));
    let predecessor = format!("{directory}/{}", queue(&server, &name)[0]);
    proxy.hold_requests_from(&directory);
    for _ in 0..2 {
        until("it looks", async || proxy.holds(&directory)).await;
        assert!(proxy.holds(&predecessor) && !proxy.holds(&list), "it lists");
        // This look passes, and what follows is held.
        proxy.hold_requests_from(&directory);
        proxy.set(Direction::Requests, Flow::Pass);
        until("the look is sent", async || !proxy.holds(&predecessor)).await;
    }
    proxy.pass();
    release(&owner, &held).await;
    release(&session, &waiting.granted().await).await;
    renewing.abort();
}
