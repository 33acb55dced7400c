//! Logins that expire while locks are held and waited for.

use std::time::Duration;

use lockkit_testbed::{Direction, Etcd, Flow, Proxy};

use crate::common::{
    LONG, LONGEST, PASSWORD, acquire, enqueued, fresh_name, is_gave_up, key_of, plain_as, queue, release,
    session_at, start, until, with_login,
};

/// Lifetime of a login; long enough to log in and to use it once, on a busy machine.
const LOGIN: Duration = Duration::from_secs(2);

fn logins(etcd: &Etcd) -> u64 {
    etcd.metrics().unwrap().grpc_handled("Authenticate")
}

/// Checks that a waiter whose login has ended watches the foreign key before it.
async fn watches_after_its_login_has_ended(etcd: &Etcd, url: &str, end_login: impl AsyncFnOnce()) {
    let (session, name) = (session_at(url, LONG).await, fresh_name());
    let foreign = format!("{}foreign", queue(&name));
    etcd.put(&foreign, "").unwrap();
    end_login().await;
    let waiting = enqueued(&session, &name).await;
    until("the predecessor is watched", async || etcd.metrics().unwrap().watchers() == 2).await;
    etcd.delete(&foreign).unwrap();
    release(&session, &waiting.granted().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn predecessors_are_watched_after_the_server_has_forgotten_the_login() {
    let (etcd, url) = with_login(Etcd::start());
    watches_after_its_login_has_ended(&etcd, &url, async || etcd.expire_logins("app", PASSWORD).unwrap())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn predecessors_are_watched_after_the_token_has_ended() {
    let (etcd, url) = with_login(Etcd::start_with_jwt(LOGIN));
    let token_ends = async || {
        // Its token is younger than the session's.
        let plain = plain_as("app", &etcd).await;
        until("the token has ended", async || plain.kv_client().get("x", None).await.is_err()).await;
    };
    watches_after_its_login_has_ended(&etcd, &url, token_ends).await;
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

/// The session sends no requests by itself, but must still receive handoffs and the deletion of its epoch key.
#[tokio::test(flavor = "multi_thread")]
async fn stream_that_breaks_after_the_login_expired_is_reopened() {
    let (etcd, _) = with_login(Etcd::start());
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let _session = session_at(&format!("etcd://app:{PASSWORD}@{}", proxy.endpoint()), LONG).await;
    let watchers = || etcd.metrics().unwrap().watchers();
    until("the session watches its own keys", async || watchers() == 1).await;
    proxy.refuse();
    until("the watch has ended", async || watchers() == 0).await;
    etcd.expire_logins("app", PASSWORD).unwrap();
    proxy.pass();
    until("the session watches its own keys again", async || watchers() == 1).await;
}
