//! Heartbeats that are larger, or slower, than usual.

use std::time::Duration;

use etcd_client::PutOptions;
use lockkit_core::backend::{Grant, Renewal, Renewals};
use lockkit_testbed::{Direction, Flow, Proxy};

use crate::common::{
    LONGEST, acquire, bounded, fresh_name, lease_of_only_session, own_server, plain, session, session_at,
    until,
};

fn assert_all_renewed(heartbeat: &Renewals, held: &[Grant]) {
    let is_renewed = |(_, renewal): &(_, Renewal)| matches!(renewal, Renewal::Renewed { .. });
    assert_eq!(heartbeat.holds.len(), held.len());
    assert!(heartbeat.holds.iter().all(is_renewed), "{heartbeat:?}");
}

/// The keeper would miss the next one otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_to_a_frozen_server_ends_before_the_next_one() {
    const TTL: Duration = Duration::from_secs(30);
    let etcd = own_server();
    let session = session_at(&format!("{}/?request_timeout=60s", etcd.url()), TTL).await;
    let held = acquire(&session, &fresh_name()).await;
    etcd.pause().unwrap();
    let heartbeat = tokio::time::timeout(TTL / 3, session.renew(std::slice::from_ref(&held))).await;
    assert!(matches!(heartbeat.unwrap().session, Renewal::Unknown(_)));
    etcd.resume().unwrap();
}

/// The list of the lease's keys confirms no single key, and etcd accepts 128 operations in a transaction.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_confirms_more_single_keys_than_fit_into_a_transaction() {
    let etcd = own_server();
    let session = session_at(&format!("{}/?form=single", etcd.url()), LONGEST).await;
    let mut held = Vec::new();
    for _ in 0..130 {
        held.push(acquire(&session, &fresh_name()).await);
    }
    assert_all_renewed(&bounded(session.renew(&held)).await, &held);
}

/// Another program may attach keys to the lease, and a client receives 4 MiB at most.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_whose_list_is_too_long_reads_the_holds_by_name() {
    const NAME_BYTES: usize = 500_000;
    let etcd = own_server();
    let session = session(&etcd, LONGEST).await;
    let held = [acquire(&session, &fresh_name()).await];
    let with_lease = PutOptions::new().with_lease(lease_of_only_session(&etcd));
    let mut other = plain(&etcd).await;
    for nth in 0..10 {
        let key = format!("other/{nth}/{}", "x".repeat(NAME_BYTES));
        other.put(key, "", Some(with_lease.clone())).await.unwrap();
    }
    assert_all_renewed(&bounded(session.renew(&held)).await, &held);
}

/// HTTP/2 pings find it. No request does: the session has nothing to send.
#[tokio::test(flavor = "multi_thread")]
async fn connection_that_falls_silent_is_replaced() {
    let etcd = own_server();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    // A ping may take as long.
    let url = format!("etcd://{}/?request_timeout=1500ms", proxy.endpoint());
    let _session = session_at(&url, LONGEST).await;
    let accepted = proxy.counts().accepted;
    proxy.set(Direction::Replies, Flow::Hold);
    until("there is a new connection", async || proxy.counts().accepted > accepted).await;
}
