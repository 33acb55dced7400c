//! The cost of a waiter while nothing happens.

use std::sync::Arc;

use lockkit_core::backend::Session;
use lockkit_testbed::{Message, Proxy, ZooKeeper};
use zookeeper_client::{Acls, CreateMode};

use crate::common::{
    LONG, SHORT, acquire, enqueued, fresh_name, node, plain, release, session_at, until, url_through,
    watching,
};

async fn renew_now_and_then(session: Arc<dyn Session>) {
    loop {
        session.renew(&[]).await;
        tokio::time::sleep(SHORT / 10).await;
    }
}

/// Listing at each re-check would read n^2 names in a queue of n waiters.
#[tokio::test(flavor = "multi_thread")]
async fn recheck_reads_no_list_and_keeps_its_watch() {
    const WAITERS: usize = 200;
    let server = ZooKeeper::start().unwrap();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    for form in ["curator", "bare"] {
        let holder = session_at(&format!("{}/?form={form}", server.url()), LONG).await;
        let name = fresh_name();
        let held = acquire(&holder, &name).await;
        let session = session_at(&format!("{}&form={form}", url_through(&proxy)), SHORT).await;
        let mut waiting = Vec::new();
        for _ in 0..WAITERS {
            waiting.push(enqueued(&session, &name).await);
        }
        let renewing = tokio::spawn(renew_now_and_then(Arc::clone(&session)));
        until("all watch", async || server.watches().unwrap() == WAITERS as u64).await;
        let before = proxy.counts();
        // Less than one request of each waiter, and more than the heartbeats of that time.
        let sent = || proxy.counts().to_server - before.to_server;
        until("they look again", async || sent() > 40 * WAITERS as u64).await;
        let received = proxy.counts().to_client - before.to_client;
        println!("{form}: {} bytes sent, {received} received by {WAITERS} waiters", sent());
        assert!(received < 10 * sent(), "{received} bytes received for {} sent", sent());
        assert_eq!(server.watches().unwrap(), WAITERS as u64);
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

/// A create per re-check would be a transaction of the whole ensemble.
#[tokio::test(flavor = "multi_thread")]
async fn recheck_of_a_single_node_writes_nothing() {
    let server = ZooKeeper::start().unwrap();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let holder = session_at(&format!("{}/?form=single", server.url()), LONG).await;
    let session = session_at(&format!("{}&form=single", url_through(&proxy)), SHORT).await;
    let name = fresh_name();
    let held = acquire(&holder, &name).await;
    let waiting = enqueued(&session, &name).await;
    until("it watches", async || server.watches().unwrap() == 1).await;
    let (logged, sent) = (server.log_bytes().unwrap(), proxy.counts().to_server);
    // More than the pings until the re-check.
    until("it looks again", async || proxy.counts().to_server > sent + 72).await;
    assert_eq!(server.log_bytes().unwrap(), logged);
    release(&holder, &held).await;
    release(&session, &waiting.granted().await).await;
}

/// Another program takes the lock at the moment of the release; only the lost event would have reported that.
#[tokio::test(flavor = "multi_thread")]
async fn recheck_of_a_single_node_watches_its_replacement() {
    let server = ZooKeeper::start().unwrap();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let holder = session_at(&format!("{}/?form=single", server.url()), LONG).await;
    let session = session_at(&format!("{}&form=single", url_through(&proxy)), SHORT).await;
    let name = fresh_name();
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
