//! Logins that expire while locks are held and waited for.

use std::time::Duration;

use lockkit_testbed::{Direction, Etcd, Flow, Proxy};

use crate::common::{
    LONG, LONGEST, PASSWORD, acquire, enqueued, fresh_name, is_gave_up, key_of, plain_as, queue, release,
    session_at, start, until, with_login,
};

fn logins(etcd: &Etcd) -> u64 {
    etcd.metrics().unwrap().grpc_handled("Authenticate")
}

/// Each time the withdrawal is sent, a role change makes its login stale. The session and its locks must survive.
#[tokio::test(flavor = "multi_thread")]
async fn withdrawal_outlasts_several_role_changes() {
    const CHANGES: usize = 3;
    let (etcd, _) = with_login(Etcd::start_with_jwt(Duration::from_secs(3600)));
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let url = format!("etcd://app:{PASSWORD}@{}/?request_timeout=30s", proxy.endpoint());
    let (session, name) = (session_at(&url, LONGEST).await, fresh_name());
    let held = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    let key = key_of(&etcd, &waiting.claim);
    proxy.hold_requests_from(&key);
    waiting.control.give_up();
    for number in 0..CHANGES {
        until("the withdrawal is under way", async || proxy.holds(&key)).await;
        let before = logins(&etcd);
        plain_as("root", &etcd).await.role_add(format!("role-{number}")).await.unwrap();
        proxy.hold_requests_from(&key);
        proxy.set(Direction::Requests, Flow::Pass);
        until("operator and client have logged in", async || logins(&etcd) >= before + 2).await;
    }
    proxy.pass();
    assert!(is_gave_up(&waiting.ends().await));
    let lost = tokio::time::timeout(Duration::ZERO, session.lost()).await;
    assert!(lost.is_err(), "the session is lost");
    assert_eq!(etcd.keys(&queue(&name)).unwrap().len(), 1);
    release(&session, &held).await;
}

/// All requests whose login is stale share one new login.
#[tokio::test(flavor = "multi_thread")]
async fn requests_share_one_new_login() {
    const CLAIMS: usize = 20;
    let (etcd, url) = with_login(Etcd::start_with_jwt(Duration::from_secs(60)));
    let session = session_at(&url, LONG).await;
    plain_as("root", &etcd).await.role_add("another").await.unwrap();
    let before = logins(&etcd);
    let claims = [(); CLAIMS].map(|()| start(&session, &fresh_name()));
    for claim in claims {
        release(&session, &claim.granted().await).await;
    }
    assert_eq!(logins(&etcd) - before, 1);
}
