//! Reads that decide something are linearizable: a member that lags behind would answer with what has been. The tests
//! inspect the bytes of the requests, because a single server answers both kinds alike.

use lockkit_core::backend::Backend;
use lockkit_testbed::Proxy;

use crate::common::{
    LONG, acquire, backend, bounded, enqueued, fresh_name, own_server, release, session, session_at, until,
    url_through,
};

/// What follows the sort target in a serializable `RangeRequest`, or its range if it is not sorted.
const SERIALIZABLE: &str = "8\u{1}";

/// The limit, the order and the target of a read of the oldest key: ascending, by creation.
const OLDEST: &str = "\u{18}\u{1}(\u{1}0\u{2}";

/// The same of a read of the claim's key and its predecessor.
const OWN_AND_PREDECESSOR: &str = "\u{18}\u{2}(\u{2}0\u{2}";

/// Checks the kind of the read that contains this text, which the work sends, and lets the work end.
#[track_caller]
fn assert_linearizable(
    proxy: &Proxy,
    read: &str,
    work: impl Future<Output = ()>,
) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    proxy.hold_requests_from(read);
    async move {
        let seen = async {
            until("the read is under way", async || proxy.holds(read)).await;
            let is_stale = proxy.holds(&format!("{read}{SERIALIZABLE}"));
            proxy.pass();
            is_stale
        };
        let (is_stale, ()) = bounded(async { tokio::join!(seen, work) }).await;
        assert!(!is_stale, "any member may answer: {place}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_observers_and_records_ask_the_leader() {
    let etcd = own_server();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let url = url_through(&proxy);
    let (session, name) = (session_at(&url, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let (elections, records) = (session.elections().unwrap(), session.records().unwrap());
    assert_linearizable(&proxy, OLDEST, async {
        elections.leader(&name).await.unwrap();
    })
    .await;
    let record = format!("lockkit/:records/{name}");
    assert_linearizable(&proxy, &record, async {
        records.read(&name).await.unwrap();
    })
    .await;
    assert_linearizable(&proxy, &record, async {
        assert!(records.write(&held, "a", LONG).await.unwrap());
    })
    .await;
    let admin = backend(&url);
    assert_linearizable(&proxy, "(\u{1}0\u{2}", async {
        admin.admin().unwrap().inspect(&name).await.unwrap();
    })
    .await;
    release(&session, &held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_reads_its_place_from_the_leader() {
    let etcd = own_server();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let (holder, name) = (session(&etcd, LONG).await, fresh_name());
    let asking = session_at(&url_through(&proxy), LONG).await;
    let held = acquire(&holder, &name).await;
    proxy.hold_requests_from(OWN_AND_PREDECESSOR);
    let waiting = enqueued(&asking, &name).await;
    assert_linearizable(&proxy, OWN_AND_PREDECESSOR, async {}).await;
    release(&holder, &held).await;
    release(&asking, &waiting.granted().await).await;
}
