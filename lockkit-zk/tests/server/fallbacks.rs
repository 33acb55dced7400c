//! Each fallback by which a waiter learns that it is next without an event of its watch. Each must act well before the
//! next slower one would.

use std::time::{Duration, Instant};

use lockkit_testbed::{Message, Proxy};

use crate::common::{
    BEFORE_A_RECHECK, LONG, SHORT, acquire, enqueued, fresh_name, latest_recheck, node, own_server,
    patient_url, queue, release, session, session_at, shared, sooner_than, start_claim, through_proxy, until,
    url_through, watching,
};

/// Delay that a busy machine may add to a wait of seconds, in the best of some rounds.
const SLACK: Duration = Duration::from_secs(1);

/// Measured waits, at most.
const WAITS_MAX: usize = 3;

#[tokio::test(flavor = "multi_thread")]
async fn waiter_without_notification_rechecks_in_time() {
    let server = own_server();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    for form in ["curator", "single"] {
        let one = session_at(&format!("{}/?form={form}", server.url()), LONG).await;
        let mut waits = Vec::new();
        // Only the wait itself counts, not what is done before and after it.
        while waits.last().is_none_or(|waited| *waited >= latest_recheck(SHORT) + SLACK) {
            assert!(waits.len() < WAITS_MAX, "{form}: {waits:?}");
            let other = session_at(&format!("{}&form={form}", url_through(&proxy)), SHORT).await;
            let name = fresh_name();
            let held = acquire(&one, &name).await;
            let waiting = watching(&server, &other, &name).await;
            let (watched, dropped) = (Instant::now(), proxy.counts().dropped);
            proxy.drop_messages(Message::Events, |_| true);
            release(&one, &held).await;
            let grant = waiting.granted().await;
            waits.push(watched.elapsed());
            assert!(proxy.counts().dropped > dropped, "nothing was dropped");
            proxy.pass();
            release(&other, &grant).await;
            other.close().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn predecessor_deleted_before_its_watch_is_noticed() {
    let server = own_server();
    let (one, (proxy, other)) = (session(&server, LONG).await, through_proxy(&server).await);
    sooner_than(BEFORE_A_RECHECK, async || {
        let name = fresh_name();
        let held = acquire(&one, &name).await;
        // The first request with the path of the predecessor is the one that watches it.
        let predecessor = format!("{}/{}", node(&name), queue(&server, &name)[0]);
        proxy.hold_requests_from(&predecessor);
        let waiting = enqueued(&other, &name).await;
        until("its watch is on the way", async || proxy.holds(&predecessor)).await;
        release(&one, &held).await;
        proxy.pass();
        release(&other, &waiting.granted().await).await;
    })
    .await;
}

/// The create of the claim has found it. A try continues, too: nobody holds the lock.
#[tokio::test(flavor = "multi_thread")]
async fn single_node_deleted_before_it_is_watched_is_created() {
    let server = shared();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let holder = session_at(&format!("{}/?form=single", server.url()), LONG).await;
    let other = session_at(&format!("{}&form=single", patient_url(&proxy)), LONG).await;
    for wait in [true, false] {
        let name = fresh_name();
        let held = acquire(&holder, &name).await;
        // A path, and "watch"; in a create, the path is followed by the length of the data.
        let watch = [node(&name).as_bytes(), &[1]].concat();
        proxy.hold_requests_from(&watch);
        let claim = start_claim(&other, &name, wait);
        until("its watch is on the way", async || proxy.holds_bytes(&watch)).await;
        release(&holder, &held).await;
        proxy.pass();
        release(&other, &claim.granted().await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reconnected_watch_fires_for_missed_changes() {
    let server = own_server();
    let (one, (proxy, other)) = (session(&server, LONG).await, through_proxy(&server).await);
    sooner_than(BEFORE_A_RECHECK, async || {
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
