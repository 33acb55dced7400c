//! The fallbacks by which a waiter finds its grant after the message was lost. Each comes long before the next one
//! would.

use std::{sync::Arc, time::Duration};

use lockkit_core::{
    backend::{Grant, Session},
    limits::RECHECK_PAUSE_MAX,
};
use lockkit_testbed::{Message, Proxy, Redis};

use crate::common::{
    LONG, PendingClaim, acquire, enqueued, fresh_name, release, scripts, session, session_at, sooner_than,
    until,
};

/// A waiter without heartbeats re-checks after half of this ttl.
const SHORT: Duration = Duration::from_secs(12);

/// The ttl of a holder that is never renewed.
const DEAD: Duration = Duration::from_secs(5);

/// What a busy machine may add to a wait of seconds, in the best of some rounds.
const SLACK: Duration = Duration::from_secs(1);

/// Until then a waiter with a [`LONG`] ttl does not re-check by itself: ten seconds, less a tenth.
fn before_any_recheck() -> Duration {
    RECHECK_PAUSE_MAX.mul_f64(0.9)
}

fn proxy_without_messages(redis: &Redis) -> Proxy {
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    proxy.drop_messages(Message::Events, |_| true);
    proxy
}

fn url_through(proxy: &Proxy) -> String {
    format!("redis://{}/", proxy.endpoint())
}

/// Takes a lock with one session, and waits for it with the other.
async fn held_and_waited_for(one: &Arc<dyn Session>, other: &Arc<dyn Session>) -> (Grant, PendingClaim) {
    let name = fresh_name();
    (acquire(one, &name).await, enqueued(other, &name).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_finds_the_grant_whose_message_was_lost() {
    let redis = Redis::start().unwrap();
    let proxy = proxy_without_messages(&redis);
    let (one, other) = (session(&redis, LONG).await, session_at(&url_through(&proxy), LONG).await);
    sooner_than(before_any_recheck(), async || {
        let dropped = proxy.counts().dropped;
        let (held, waiting) = held_and_waited_for(&one, &other).await;
        release(&one, &held).await;
        until("the message is lost", async || proxy.counts().dropped > dropped).await;
        other.renew(&[]).await;
        release(&other, &waiting.granted().await).await;
    })
    .await;
}

/// It re-checks after half a ttl, at most ten seconds, plus up to a tenth.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_without_messages_and_heartbeats_rechecks_in_time() {
    let redis = Redis::start().unwrap();
    let proxy = proxy_without_messages(&redis);
    for (ttl, pause) in [(SHORT, SHORT / 2), (LONG, RECHECK_PAUSE_MAX)] {
        rechecks_within(&redis, &proxy, ttl, pause.mul_f64(1.1) + SLACK).await;
    }
}

async fn rechecks_within(redis: &Redis, proxy: &Proxy, ttl: Duration, pause: Duration) {
    let (one, other) = (session(redis, LONG).await, session_at(&url_through(proxy), ttl).await);
    sooner_than(pause, async || {
        let dropped = proxy.counts().dropped;
        let (held, waiting) = held_and_waited_for(&one, &other).await;
        release(&one, &held).await;
        let grant = waiting.granted().await;
        assert!(proxy.counts().dropped > dropped, "no message was lost");
        release(&other, &grant).await;
    })
    .await;
}

/// Nothing reports the expiry. The waiter knows the remaining lifetime from the answer to its request.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_rechecks_when_the_lock_of_a_dead_holder_expires() {
    let redis = Redis::start().unwrap();
    sooner_than(before_any_recheck(), async || {
        let (dead, other) = (session(&redis, DEAD).await, session(&redis, LONG).await);
        let name = fresh_name();
        acquire(&dead, &name).await;
        let waiting = enqueued(&other, &name).await;
        release(&other, &waiting.granted().await).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_connection_makes_waiters_recheck() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    let (one, other) = (session(&redis, LONG).await, session_at(&url_through(&proxy), LONG).await);
    sooner_than(before_any_recheck(), async || {
        let (held, waiting) = held_and_waited_for(&one, &other).await;
        proxy.refuse();
        release(&one, &held).await;
        proxy.pass();
        release(&other, &waiting.granted().await).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn message_reaches_a_waiter_whose_connection_is_new() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    let (one, other) = (session(&redis, LONG).await, session_at(&url_through(&proxy), LONG).await);
    sooner_than(before_any_recheck(), async || {
        let (held, waiting) = held_and_waited_for(&one, &other).await;
        let before = scripts(&redis);
        proxy.reset();
        // The re-check over the new connection comes before the release.
        until("the waiter has re-checked", async || scripts(&redis) > before).await;
        release(&one, &held).await;
        release(&other, &waiting.granted().await).await;
    })
    .await;
}
