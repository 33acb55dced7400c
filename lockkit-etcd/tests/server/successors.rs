//! Which member a release asks for its successor. The test inspects the bytes of the requests, because a single server
//! answers serializable and linearizable reads alike.

use lockkit_testbed::{Direction, Flow, Proxy};

use crate::common::{
    LONG, acquire, bounded, enqueued, fresh_name, is_gave_up, own_server, release, session, session_at,
    until, url_through,
};

/// Part of a `RangeRequest` for the next key: ascending, by creation, serializable, keys only.
const FROM_ANY_MEMBER: &str = "(\u{1}0\u{2}8\u{1}@\u{1}";

/// The same, linearizable.
const FROM_THE_LEADER: &str = "(\u{1}0\u{2}@\u{1}";

#[tokio::test(flavor = "multi_thread")]
async fn release_asks_any_member_first_and_the_leader_when_that_was_wrong() {
    let etcd = own_server();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let (one, other) = (session_at(&url_through(&proxy), LONG).await, session(&etcd, LONG).await);
    let name = fresh_name();
    let first = acquire(&other, &name).await;
    let waiting = enqueued(&one, &name).await;
    release(&other, &first).await;
    // A waiter holds the lock, because a holder that was alone does not read its successor at first.
    let held = waiting.granted().await;
    let second = enqueued(&other, &name).await;
    let third = enqueued(&other, &name).await;
    // The proxy holds each of the three requests until the test has chosen the next one to hold.
    let go_on_to = |text: &str| {
        proxy.hold_requests_from(text);
        proxy.set(Direction::Requests, Flow::Pass);
    };
    proxy.hold_requests_from(FROM_ANY_MEMBER);
    let releasing = tokio::spawn({
        let (one, held) = (one.clone(), held.clone());
        async move { one.release(&held).await }
    });
    let comes = async |text: &str| {
        until("it is under way", async || proxy.holds(text) || releasing.is_finished()).await;
        assert!(proxy.holds(text), "released without {text:?}");
    };
    comes(FROM_ANY_MEMBER).await;
    go_on_to("mailbox");
    comes("mailbox").await;
    // Makes the reply to the first read stale.
    second.control.give_up();
    assert!(is_gave_up(&second.ends().await));
    go_on_to(FROM_THE_LEADER);
    comes(FROM_THE_LEADER).await;
    proxy.pass();
    bounded(releasing).await.unwrap().unwrap();
    release(&other, &third.granted().await).await;
}
