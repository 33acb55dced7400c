//! Each of the ways in which a waiter learns that it is next, where its watch says nothing: it comes long before the next
//! one would have come.

use std::time::Duration;

use lockkit_testbed::{Message, Proxy, ZooKeeper};

use crate::common::{
    BEFORE_A_LOOK, LONG, SHORT, acquire, enqueued, fresh_name, latest_recheck, node, queue, release, session,
    session_at, sooner_than, until, url_through, watching,
};

/// What a machine may add to a wait of seconds, in the best of some rounds.
const SLACK: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn waiter_that_is_told_nothing_looks_in_time() {
    let server = ZooKeeper::start().unwrap();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    for form in ["curator", "single"] {
        let one = session_at(&format!("{}/?form={form}", server.url()), LONG).await;
        sooner_than(latest_recheck(SHORT) + SLACK, async || {
            let other = session_at(&format!("{}&form={form}", url_through(&proxy)), SHORT).await;
            let name = fresh_name();
            let held = acquire(&one, &name).await;
            let waiting = watching(&server, &other, &name).await;
            let dropped = proxy.counts().dropped;
            proxy.drop_messages(Message::Events, |_| true);
            release(&one, &held).await;
            let grant = waiting.granted().await;
            assert!(proxy.counts().dropped > dropped, "nothing was dropped");
            proxy.pass();
            release(&other, &grant).await;
            other.close().await.unwrap();
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn predecessor_that_goes_before_it_is_watched_is_noticed() {
    let server = ZooKeeper::start().unwrap();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (one, other) = (session(&server, LONG).await, session_at(&url_through(&proxy), LONG).await);
    sooner_than(BEFORE_A_LOOK, async || {
        let name = fresh_name();
        let held = acquire(&one, &name).await;
        // The first request that names the predecessor is the one that watches it.
        let predecessor = format!("{}/{}", node(&name), queue(&server, &name)[0]);
        proxy.hold_at(&predecessor);
        let waiting = enqueued(&other, &name).await;
        until("its watch is on the way", async || proxy.holds(&predecessor)).await;
        release(&one, &held).await;
        proxy.pass();
        release(&other, &waiting.granted().await).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_that_was_broken_fires_for_what_has_happened_meanwhile() {
    let server = ZooKeeper::start().unwrap();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (one, other) = (session(&server, LONG).await, session_at(&url_through(&proxy), LONG).await);
    sooner_than(BEFORE_A_LOOK, async || {
        let name = fresh_name();
        let held = acquire(&one, &name).await;
        let waiting = watching(&server, &other, &name).await;
        proxy.refuse();
        release(&one, &held).await;
        proxy.pass();
        release(&other, &waiting.granted().await).await;
    })
    .await;
}
