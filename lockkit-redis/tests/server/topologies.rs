//! Several servers: the master is found, and found again.

use std::sync::{Arc, Mutex};

use lockkit_core::{
    Clock, ErrorKind, FencingToken, LockName,
    backend::{Backend, Grant, Renewal, Session},
};
use lockkit_testbed::{Message, Proxy, RedisReplicas, RedisSentinels};

use crate::common::{
    LONG, acquire, assert_rising, backend, bounded, enqueued, fresh_name, granted, release, session_at,
    try_acquire, until, verdict,
};

/// Options that make outages short.
pub(crate) const QUICK: &str = "?request_timeout=1s";

pub(crate) async fn is_renewed(session: &Arc<dyn Session>, grant: &Grant) -> bool {
    matches!(verdict(session.renew(std::slice::from_ref(grant)).await), Renewal::Renewed { .. })
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_servers_the_master_is_found_and_found_again() {
    let mut nodes = RedisReplicas::start().unwrap();
    let url = format!("{}/{QUICK}", nodes.url());
    let (one, other, name) = (session_at(&url, LONG).await, session_at(&url, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let waiter = enqueued(&other, &name).await;
    nodes.wait_until_in_sync(0).unwrap();
    nodes.promote(1).unwrap();
    until("the hold is renewed at the new master", async || is_renewed(&one, &held).await).await;
    release(&one, &held).await;
    let next = waiter.granted().await;
    assert!(next.token() > held.token());
    assert!(
        nodes.node(1).cli(&["GET", name.as_str()]).unwrap().text().starts_with(&next.claim().to_string())
    );
    nodes.wait_until_in_sync(1).unwrap();
    nodes.node_mut(1).kill().unwrap();
    nodes.promote(2).unwrap();
    until("the hold is renewed at the third master", async || is_renewed(&other, &next).await).await;
    release(&other, &next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_master_nothing_is_granted() {
    let nodes = RedisReplicas::start().unwrap();
    let session = session_at(&format!("{}/{QUICK}", nodes.url()), LONG).await;
    for number in 0..nodes.len() {
        nodes.node(number).cli(&["REPLICAOF", "127.255.255.254", "1"]).unwrap();
    }
    let error = try_acquire(&session, &fresh_name()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    nodes.promote(0).unwrap();
    acquire(&session, &fresh_name()).await;
}

/// R5 and R6: what a failover loses is granted again, with a larger token.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_a_failover_loses_is_followed_by_a_larger_token() {
    let nodes = RedisReplicas::start().unwrap();
    let url = format!("{}/{QUICK}", nodes.url());
    let (one, other, name) = (session_at(&url, LONG).await, session_at(&url, LONG).await, fresh_name());
    nodes.wait_until_in_sync(0).unwrap();
    for number in 1..nodes.len() {
        nodes.node(number).stop_replicating().unwrap();
    }
    let lost = acquire(&one, &name).await;
    nodes.promote(1).unwrap();
    let next = acquire(&other, &name).await;
    assert!(next.token() > lost.token(), "{} after {}", next.token(), lost.token());
    until("the loss is told", async || {
        matches!(verdict(one.renew(std::slice::from_ref(&lost)).await), Renewal::Gone)
    })
    .await;
    assert!(is_renewed(&other, &next).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_counts_only_with_replicas_is_refused_while_they_do_not_follow() {
    let nodes = RedisReplicas::start().unwrap();
    let session = session_at(&format!("{}/{QUICK}&min_replicas=2", nodes.url()), LONG).await;
    let name = fresh_name();
    until_replicas_count(&session, &name).await;
    let held = acquire(&session, &name).await;
    release(&session, &held).await;
    nodes.node(1).stop_replicating().unwrap();
    let error = try_acquire(&session, &name).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(nodes.node(0).keys(name.as_str()).unwrap(), [""; 0], "not given back");
    nodes.node(1).replicate_again().unwrap();
    until_replicas_count(&session, &name).await;
}

/// Waits until a grant counts: a replica answers for the first time when it has written all that it got.
pub(crate) async fn until_replicas_count(session: &Arc<dyn Session>, name: &LockName) -> FencingToken {
    let last = Mutex::new(None);
    let counts = async || match try_acquire(session, name).await {
        Ok(end) => {
            let held = granted(Ok(end));
            release(session, &held).await;
            *last.lock().unwrap() = Some(held.token());
            true
        }
        Err(_) => false,
    };
    until("the replicas count", counts).await;
    last.into_inner().unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connection_that_asks_replicas_may_have_died_meanwhile() {
    let nodes = RedisReplicas::start().unwrap();
    // Half of it is for the replicas, whatever else this machine does.
    let session = session_at(&format!("{}/?request_timeout=20s&min_replicas=1", nodes.url()), LONG).await;
    let name = fresh_name();
    let mut last = until_replicas_count(&session, &name).await;
    for _ in 0..5 {
        // Those that listen are others.
        let killed = nodes.node(0).cli(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap().number();
        assert!(killed >= Some(1), "{killed:?}");
        let held = granted(try_acquire(&session, &name).await);
        assert!(held.token() > last);
        last = held.token();
        release(&session, &held).await;
    }
    let held = acquire(&session, &fresh_name()).await;
    nodes.wait_until_in_sync(0).unwrap();
    nodes.promote(1).unwrap();
    nodes.wait_until_in_sync(1).unwrap();
    until("all but that connection is at the new master", async || is_renewed(&session, &held).await).await;
    assert!(until_replicas_count(&session, &name).await > last);
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_name_the_master_and_the_next_one() {
    let sentinels = RedisSentinels::start().unwrap();
    let url = format!("{}{QUICK}", sentinels.url());
    let (one, other, name) = (session_at(&url, LONG).await, session_at(&url, LONG).await, fresh_name());
    let mut holder = (one.clone(), acquire(&one, &name).await);
    let mut tokens = vec![holder.1.token()];
    for session in [&other, &one] {
        let waiter = enqueued(session, &name).await;
        let former = sentinels.master().unwrap();
        sentinels.replicas().wait_until_in_sync(former).unwrap();
        // The old master goes on taking writes for some 10 s; nobody must stay there.
        let master = sentinels.failover().unwrap();
        assert_ne!(master, former);
        let at_master = |words: &[&str]| sentinels.node(master).cli(words).unwrap().number().unwrap();
        at_master(&["PEXPIRE", name.as_str(), "30000"]);
        let is_there =
            async || is_renewed(&holder.0, &holder.1).await && at_master(&["PTTL", name.as_str()]) > 30_000;
        until("the holder is at the new master", is_there).await;
        release(&holder.0, &holder.1).await;
        holder = ((*session).clone(), waiter.granted().await);
        tokens.push(holder.1.token());
        let value = sentinels.node(master).cli(&["GET", name.as_str()]).unwrap();
        assert!(value.text().starts_with(&holder.1.claim().to_string()));
    }
    assert_rising(&tokens);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_master_is_replaced_and_dead_sentinels_are_not_missed() {
    let mut sentinels = RedisSentinels::start().unwrap();
    let (session, name) = (session_at(&format!("{}{QUICK}", sentinels.url()), LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let former = sentinels.master().unwrap();
    sentinels.replicas().wait_until_in_sync(former).unwrap();
    sentinels.sentinel_mut(0).kill().unwrap();
    assert!(is_renewed(&session, &held).await);
    sentinels.node_mut(former).kill().unwrap();
    sentinels.wait_for_master_after(former).unwrap();
    until("the hold is renewed at the new master", async || is_renewed(&session, &held).await).await;
    release(&session, &held).await;
    let next = acquire(&session, &name).await;
    assert!(next.token() > held.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_master_is_found_although_no_sentinel_tells_of_it() {
    let sentinels = RedisSentinels::start().unwrap();
    let proxy = Proxy::start_redis(sentinels.sentinel(0).endpoint()).unwrap();
    proxy.drop_messages(Message::Events, |_| true);
    let url = format!("redis+sentinel://{}/{}{QUICK}", proxy.endpoint(), RedisSentinels::NAME);
    // It asks for nothing, so nothing but its Sentinel can tell it.
    let _idle = session_at(&url, LONG).await;
    let listens = |number: usize| {
        let channels = sentinels.node(number).cli(&["PUBSUB", "CHANNELS", "lockkit:client:*"]).unwrap();
        !channels.list().is_empty()
    };
    let former = sentinels.master().unwrap();
    assert!(listens(former));
    // Frozen, it breaks no connection.
    sentinels.node(former).pause().unwrap();
    let master = sentinels.wait_for_master_after(former).unwrap();
    until("the client is at the new master", async || listens(master)).await;
    sentinels.node(former).resume().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_master_is_told() {
    let sentinels = RedisSentinels::start().unwrap();
    let (servers, _) = sentinels
        .url()
        .rsplit_once('/')
        .map(|(servers, name)| (servers.to_owned(), name.to_owned()))
        .unwrap();
    let unknown = backend(&format!("{servers}/nobody"));
    let error = bounded(unknown.open_session(LONG, Clock::boot())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("nobody"), "{error}");
}
