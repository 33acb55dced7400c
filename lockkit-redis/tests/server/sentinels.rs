//! Sentinels: they name the master, and the next one.

use lockkit_core::{Clock, ErrorKind, backend::Backend};
use lockkit_testbed::{Message, Proxy, RedisSentinels};

use crate::{
    common::{
        LONG, acquire, assert_rising, backend, bounded, enqueued, fresh_name, release, session_at, until,
    },
    topologies::{QUICK, is_renewed},
};

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
