//! The cost of idle waiters, and re-checks after lost events.

use std::time::Duration;

use lockkit_testbed::{Message, Proxy};

use crate::common::{
    LONGEST, acquire, bounded, enqueued, fresh_name, key_of, own_server, queue, release, session, session_at,
    until, url_through,
};

/// A ttl with a re-check every 2 s.
const SHORT: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread")]
async fn idle_waiters_ask_for_two_keys_each_and_keep_one_watch_per_client() {
    const WAITERS: usize = 20;
    let etcd = own_server();
    let (one, other, name) = (session(&etcd, LONGEST).await, session(&etcd, SHORT).await, fresh_name());
    let held = acquire(&one, &name).await;
    let mut waiting = Vec::new();
    for _ in 0..WAITERS {
        waiting.push(enqueued(&other, &name).await);
        bounded(other.renew(&[])).await;
    }
    let metrics = || etcd.metrics().unwrap();
    until("the first watches its predecessor", async || metrics().watchers() == 3).await;
    let before = metrics();
    let since = |method| metrics().grpc_handled(method) - before.grpc_handled(method);
    until("each has re-checked twice", async || {
        bounded(other.renew(&[])).await;
        since("Txn") + since("Range") >= 2 * WAITERS as u64
    })
    .await;
    assert_eq!(since("Range"), 0, "the cost of a range read grows with the queue");
    assert_eq!(metrics().grpc_received("Watch"), before.grpc_received("Watch"), "watches were made again");
    release(&one, &held).await;
    for next in waiting {
        release(&other, &next.granted().await).await;
    }
}

/// A later claim, behind the waiter, reuses the predecessor's key; the waiter receives no events.
#[tokio::test(flavor = "multi_thread")]
async fn reused_key_is_not_taken_for_the_predecessor() {
    let etcd = own_server();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let (one, other) = (session(&etcd, LONGEST).await, session_at(&url_through(&proxy), SHORT).await);
    let name = fresh_name();
    proxy.drop_messages(Message::Events, |_| true);
    let held = acquire(&one, &name).await;
    let waiting = enqueued(&other, &name).await;
    let key = key_of(&etcd, &waiting.claim);
    // Before, it would look at the queue in any case.
    until("it watches its predecessor", async || {
        bounded(other.renew(&[])).await;
        etcd.metrics().unwrap().watchers() == 3
    })
    .await;
    release(&one, &held).await;
    let again = enqueued(&one, &name).await;
    let keys = etcd.keys(&queue(&name)).unwrap();
    assert!(keys[0] == key && keys[1].ends_with(&held.claim().to_string()), "{keys:?}");
    until("the waiter has re-checked", async || {
        bounded(other.renew(&[])).await;
        !waiting.is_waiting()
    })
    .await;
    release(&other, &waiting.granted().await).await;
    release(&one, &again.granted().await).await;
}
