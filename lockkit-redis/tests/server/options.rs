//! The options of a configuration.

use std::time::Duration;

use lockkit_core::{
    Clock, ErrorKind,
    backend::{Acquired, Backend},
};
use lockkit_redis::{RedisBackend, RedisConfig};
use lockkit_testbed::{Redis, RedisCluster};

use crate::{
    common::{
        LONG, acquire, backend, bounded, enqueued, fresh_name, granted, is_gave_up, release, session,
        session_at, side, start, try_acquire, until,
    },
    rights::{LOGIN, RIGHTS, keys_of, user},
};

fn set_user(redis: &Redis, rights: &str) {
    let mut command = vec!["ACL", "SETUSER"];
    command.extend(user(rights));
    command.insert(3, "reset");
    redis.cli(&command).unwrap();
}

fn url_of(redis: &Redis) -> String {
    format!("redis://{LOGIN}@{}", redis.endpoint())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_the_documented_rights_can_do_everything() {
    let redis = Redis::start().unwrap();
    set_user(&redis, RIGHTS);
    let url = url_of(&redis);
    let (session, name) = (session_at(&url, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let (next, leaving) = (enqueued(&session, &name).await, enqueued(&session, &name).await);
    session.renew(std::slice::from_ref(&held)).await;
    leaving.control.give_up();
    assert!(is_gave_up(&leaving.ends().await));
    let inspected =
        lockkit_core::backend::Backend::admin(&backend(&url)).unwrap().inspect(&name).await.unwrap();
    assert_eq!((inspected.holder.is_some(), inspected.waiters.len()), (true, 1));
    release(&session, &held).await;
    let next = next.granted().await;
    bounded(session.close()).await.unwrap();
    assert!(next.token() > held.token());
    let refused = redis.cli(&["ACL", "LOG"]).unwrap();
    assert_eq!(refused.list(), [], "{refused:?}");
}

/// The next heartbeat finds the grant.
#[tokio::test(flavor = "multi_thread")]
async fn handoff_works_although_the_message_is_refused() {
    let redis = Redis::start().unwrap();
    set_user(&redis, RIGHTS);
    let (one, other, name) =
        (session_at(&url_of(&redis), LONG).await, session(&redis, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let waiting = enqueued(&other, &name).await;
    redis.cli(&["ACL", "SETUSER", "app", "-publish"]).unwrap();
    bounded(one.release(&held)).await.unwrap();
    other.renew(&[]).await;
    release(&other, &waiting.granted().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_user_needs_two_more_rights() {
    let cluster = RedisCluster::start().unwrap();
    for number in 0..cluster.len() {
        set_user(cluster.node(number), &format!("{RIGHTS} +cluster|slots +asking"));
    }
    let url = cluster.url().replace("://", &format!("://{LOGIN}@"));
    let (one, other, name) = (session_at(&url, LONG).await, session_at(&url, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let next = enqueued(&other, &name).await;
    release(&one, &held).await;
    assert!(next.granted().await.token() > held.token());
    for number in 0..cluster.len() {
        let refused = cluster.node(number).cli(&["ACL", "LOG"]).unwrap();
        assert_eq!(refused.list(), [], "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_the_documented_rights_is_needed() {
    let redis = Redis::start().unwrap();
    for right in ["+subscribe", "+publish", "+evalsha", "+getrange", "+set", "&lockkit:client:*"] {
        set_user(&redis, &RIGHTS.replace(right, ""));
        let opened = bounded(lockkit_core::backend::Backend::open_session(
            &backend(&url_of(&redis)),
            LONG,
            lockkit_core::Clock::boot(),
        ))
        .await;
        let error = match opened {
            Err(error) => error,
            Ok(session) => try_acquire(&session, &fresh_name()).await.unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Denied, "without {right}: {error}");
    }
}

/// What the server reports about itself is only logged, or shows that it was restarted.
#[tokio::test(flavor = "multi_thread")]
async fn user_without_the_right_to_info_locks_and_lists() {
    let redis = Redis::start().unwrap();
    set_user(&redis, &format!("{} +scan", RIGHTS.replace("+info ", "")));
    let (session, name) = (session_at(&url_of(&redis), LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let operator = backend(&url_of(&redis));
    let page = bounded(operator.admin().unwrap().list("", None, 10)).await.unwrap();
    assert_eq!(page.locks.into_iter().map(|lock| lock.name).collect::<Vec<_>>(), [Some(name)]);
    release(&session, &held).await;
}

/// Side keys of a name with braces have another prefix.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_the_documented_keys_of_a_prefix_can_do_everything() {
    let redis = Redis::start().unwrap();
    set_user(&redis, &RIGHTS.replace("~*", &keys_of("app:")));
    let url = format!("{}/?prefix=app:&names=raw&queue=fifo", url_of(&redis));
    let session = session_at(&url, LONG).await;
    for name in ["plain", "{user}:1", "user:{1}", "b}r{aces"] {
        let name = crate::common::name(name);
        let held = acquire(&session, &name).await;
        let next = enqueued(&session, &name).await;
        session.renew(std::slice::from_ref(&held)).await;
        release(&session, &held).await;
        release(&session, &next.granted().await).await;
    }
    let refused = redis.cli(&["ACL", "LOG"]).unwrap();
    assert_eq!(refused.list(), [], "{refused:?}");
    // Keys without the prefix are denied.
    let error = try_acquire(&session_at(&url_of(&redis), LONG).await, &fresh_name()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_and_a_database_keep_locks_apart() {
    let redis = Redis::start().unwrap();
    let name = fresh_name();
    let url = redis.url();
    for url in [url.clone(), format!("{url}/?prefix=app:"), format!("{url}/3")] {
        granted(try_acquire(&session_at(&url, LONG).await, &name).await);
    }
    let keys = redis.keys("*").unwrap();
    assert!(keys.contains(&name.to_string()) && keys.contains(&format!("app:{name}")), "{keys:?}");
    assert_eq!(keys.iter().filter(|key| key.starts_with(&format!("lockkit:{{app:{name}}}:"))).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn unix_socket_works() {
    let redis = Redis::start().unwrap();
    let url = format!("redis+unix://{}", redis.socket().display());
    let (here, there, name) = (session_at(&url, LONG).await, session(&redis, LONG).await, fresh_name());
    let held = acquire(&here, &name).await;
    let next = enqueued(&there, &name).await;
    release(&here, &held).await;
    next.granted().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_names_with_a_queue_notice_a_foreign_release_by_the_next_heartbeat() {
    let redis = Redis::start().unwrap();
    let session = session_at(&format!("{}/?names=raw&queue=fifo", redis.url()), LONG).await;
    let name = crate::common::name("my/lock");
    assert_eq!(redis.cli(&["SET", "my/lock", "theirs", "NX", "PX", "60000"]).unwrap().text(), "OK");
    let waiter = enqueued(&session, &name).await;
    assert_eq!(redis.keys("lockkit:{my/lock}:queue").unwrap().len(), 1);
    // The release of the other program is a DEL, which notifies nobody.
    redis.cli(&["DEL", "my/lock"]).unwrap();
    session.renew(&[]).await;
    waiter.granted().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counter_ttl_beyond_the_range_of_redis_works() {
    let redis = Redis::start().unwrap();
    let config = RedisConfig::new([redis.endpoint()]).unwrap().counter_ttl(Duration::MAX);
    let session = RedisBackend::new(config).open_session(LONG, Clock::boot()).await.unwrap();
    let name = fresh_name();
    let grant = acquire(&session, &name).await;
    let waiter = enqueued(&session, &name).await;
    release(&session, &grant).await;
    waiter.granted().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_without_a_queue_leave_nothing_and_are_granted() {
    let redis = Redis::start().unwrap();
    let url = format!("{}/?queue=none", redis.url());
    let (one, other, name) = (session_at(&url, LONG).await, session_at(&url, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let waiter = start(&other, &name);
    until("the waiter has asked", async || waiter.control.was_contended()).await;
    assert_eq!(redis.keys(&side(&name, "queue")).unwrap(), [""; 0]);
    release(&one, &held).await;
    let next = waiter.granted().await;
    // It does not overtake waiters in the queue.
    let queued = enqueued(&session(&redis, LONG).await, &name).await;
    let polling = start(&one, &name);
    release(&other, &next).await;
    queued.granted().await;
    assert!(polling.is_waiting());
    polling.control.give_up();
    assert!(is_gave_up(&polling.ends().await));
}

#[tokio::test(flavor = "multi_thread")]
async fn grant_that_too_few_replicas_acknowledge_is_refused() {
    let redis = Redis::start().unwrap();
    let url = format!("{}/?min_replicas=1&request_timeout=5s", redis.url());
    let (session, name) = (session_at(&url, LONG).await, fresh_name());
    for wait in [false, true] {
        let error = crate::common::start_claim(&session, &name, wait).ends().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("replica"), "{error}");
    }
    granted(try_acquire(&crate::common::session(&redis, LONG).await, &name).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn grant_that_replicas_acknowledge_counts() {
    let (redis, replica) = (Redis::start().unwrap(), Redis::start().unwrap());
    let (host, port) =
        redis.endpoint().split_once(':').map(|(host, port)| (host.to_owned(), port.to_owned())).unwrap();
    replica.cli(&["REPLICAOF", &host, &port]).unwrap();
    until("the replica follows", async || {
        replica.cli(&["INFO", "replication"]).unwrap().text().contains("master_link_status:up")
    })
    .await;
    let session = session_at(&format!("{}/?min_replicas=1", redis.url()), LONG).await;
    let name = fresh_name();
    let grant = acquire(&session, &name).await;
    assert!(replica.cli(&["GET", name.as_str()]).unwrap().text().starts_with(&grant.claim().to_string()));
    let waiter = enqueued(&session, &name).await;
    release(&session, &grant).await;
    assert!(matches!(waiter.ends().await, Ok(Acquired::Granted(_))));
}
