//! Observers of leaders, and what leaders proclaim.

use std::{sync::Arc, time::Duration};

use lockkit_core::{
    Clock, ErrorKind, FencingToken, LockName, Metadata, Proposal,
    backend::{
        Acquired, Admin, Backend, Claim, ClaimControl, Grant, LeaderEntry, LeaderWatch, Renewal, Session,
    },
};
use lockkit_testbed::{Direction, Flow, Proxy, Redis, RedisCluster};
use tokio::task::JoinHandle;

use crate::{
    common::{
        LONG, acquire, backend, bounded, fresh_name, granted, release, session, session_at, shared, side,
        try_acquire, until,
    },
    raw::remaining_keys,
    rights::{LOGIN, RIGHTS, user},
};

/// The ttl of a session that dies: longer than its requests take on a busy machine.
const DYING: Duration = Duration::from_secs(5);

fn proposing(value: &str, number: u64) -> Metadata {
    Metadata::of_this_process(Some("election")).with_proposal(Proposal::new(value, number))
}

/// Starts a claim that proposes this value.
fn campaign(session: &Arc<dyn Session>, name: &LockName, value: &str) -> JoinHandle<Grant> {
    let claim = Claim::new(name.clone(), true, proposing(value, 1), &ClaimControl::new());
    let session = Arc::clone(session);
    tokio::spawn(async move {
        match session.acquire(claim).await {
            Ok(Acquired::Granted(grant)) => grant,
            other => panic!("not elected: {other:?}"),
        }
    })
}

async fn elect(session: &Arc<dyn Session>, name: &LockName, value: &str) -> Grant {
    bounded(campaign(session, name, value)).await.unwrap()
}

async fn leader(session: &Arc<dyn Session>, name: &LockName) -> Option<LeaderEntry> {
    bounded(session.elections().unwrap().leader(name)).await.unwrap()
}

async fn value(session: &Arc<dyn Session>, name: &LockName) -> Option<(FencingToken, String)> {
    leader(session, name).await.map(|leader| (leader.token, leader.proposal.value))
}

async fn watch(session: &Arc<dyn Session>, name: &LockName) -> Box<dyn LeaderWatch> {
    bounded(session.elections().unwrap().watch(name)).await.unwrap()
}

async fn proclaim(session: &Arc<dyn Session>, grant: &Grant, value: &str, number: u64) -> bool {
    bounded(session.elections().unwrap().proclaim(grant, &proposing(value, number))).await.unwrap()
}

async fn until_waiters(session: &Arc<dyn Session>, redis: &Redis, name: &LockName, count: i64) {
    session.renew(&[]).await;
    let queue = side(name, "queue");
    until("the candidate waits", async || redis.cli(&["ZCARD", &queue]).unwrap().number() == Some(count))
        .await;
}

/// The channels of watched leaders.
fn channels(redis: &Redis) -> Vec<String> {
    let channels = redis.cli(&["PUBSUB", "CHANNELS", "lockkit:leader:*"]).unwrap();
    channels.list().iter().map(|channel| channel.text().to_owned()).collect()
}

/// No timer can wake the watch: each lock outlives the test.
#[tokio::test(flavor = "multi_thread")]
async fn watch_wakes_on_grant_proclaim_handoff_and_release() {
    let (redis, name) = (shared(), fresh_name());
    let (one, other, observer) =
        (session(redis, 10 * LONG).await, session(redis, 10 * LONG).await, session(redis, LONG).await);
    assert_eq!(leader(&observer, &name).await, None);
    let mut watch = watch(&observer, &name).await;

    let first = elect(&one, &name, "a").await;
    bounded(watch.changed()).await;
    assert_eq!(value(&observer, &name).await, Some((first.token(), "a".to_owned())));

    assert!(proclaim(&one, &first, "b", 2).await);
    bounded(watch.changed()).await;
    let seen = leader(&observer, &name).await.unwrap();
    assert_eq!((seen.token, &seen.proposal), (first.token(), &Proposal::new("b", 2)));
    assert_eq!(seen.metadata.unwrap().label.as_deref(), Some("election"));

    let second = campaign(&other, &name, "c");
    until_waiters(&other, redis, &name, 1).await;
    release(&one, &first).await;
    bounded(watch.changed()).await;
    let second = bounded(second).await.unwrap();
    assert_eq!(value(&observer, &name).await, Some((second.token(), "c".to_owned())));

    // The new leader's own confirmation may have sent another hint.
    release(&other, &second).await;
    bounded(async {
        while leader(&observer, &name).await.is_some() {
            watch.changed().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn release_without_a_successor_wakes_the_watch() {
    let (redis, name) = (shared(), fresh_name());
    // The watch also wakes when the lock would have expired.
    let (one, observer) = (session(redis, 10 * LONG).await, session(redis, LONG).await);
    let grant = elect(&one, &name, "a").await;
    let mut watch = watch(&observer, &name).await;
    release(&one, &grant).await;
    bounded(watch.changed()).await;
    assert_eq!(leader(&observer, &name).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_wakes_when_the_leader_has_died() {
    let (redis, name) = (shared(), fresh_name());
    let (dead, other, observer) =
        (session(redis, DYING).await, session(redis, LONG).await, session(redis, LONG).await);
    let first = elect(&dead, &name, "a").await;
    let mut watch = watch(&observer, &name).await;
    let wake = watch.changed();
    bounded(wake).await;
    assert_eq!(leader(&observer, &name).await, None, "it woke before the end");
    let second = elect(&other, &name, "b").await;
    bounded(watch.changed()).await;
    assert_eq!(value(&observer, &name).await, Some((second.token(), "b".to_owned())));
    assert!(second.token() > first.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn former_leader_cannot_proclaim() {
    let (redis, name) = (shared(), fresh_name());
    let (one, other) = (session(redis, LONG).await, session(redis, LONG).await);
    let first = elect(&one, &name, "a").await;
    release(&one, &first).await;
    assert!(!proclaim(&one, &first, "late", 7).await, "nobody leads");
    let second = elect(&other, &name, "b").await;
    assert!(!proclaim(&one, &first, "late", 7).await);
    assert_eq!(value(&one, &name).await, Some((second.token(), "b".to_owned())));
    // The same claim, with the token of an earlier grant, as after a failover.
    redis.cli(&["SET", name.as_str(), &format!("{}:7", second.claim())]).unwrap();
    assert!(!proclaim(&other, &second, "late", 7).await);
    release(&other, &second).await;
    assert_eq!(remaining_keys(redis, &name), [side(&name, "fence")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn late_copy_of_a_proclaim_undoes_nothing() {
    let (redis, name) = (shared(), fresh_name());
    let session = session(redis, LONG).await;
    let grant = elect(&session, &name, "a").await;
    assert!(proclaim(&session, &grant, "c", 3).await);
    assert!(proclaim(&session, &grant, "b", 2).await, "the grant is held");
    assert_eq!(leader(&session, &name).await.unwrap().proposal, Proposal::new("c", 3));
    // Repeated, and later.
    for (value, number) in [("c", 3), ("d", 4)] {
        assert!(proclaim(&session, &grant, value, number).await);
        assert_eq!(leader(&session, &name).await.unwrap().proposal, Proposal::new(value, number));
    }
    // What another program has written is replaced.
    let counter = side(&name, "fence");
    let deep = "[".repeat(5000);
    let long = format!("{{\"proposal\":{{\"number\":9{}}}}}", " ".repeat(10_000));
    for junk in ["", "junk", "7", "{\"proposal\":7}", "{\"proposal\":{\"number\":null}}", &deep, &long] {
        redis.command(&[b"SET", counter.as_bytes(), format!("7\0c0ffee {junk}").as_bytes()]).unwrap();
        assert!(proclaim(&session, &grant, "e", 5).await);
        assert_eq!(leader(&session, &name).await.unwrap().proposal, Proposal::new("e", 5), "{junk:.40}");
    }
    redis.cli(&["DEL", &counter]).unwrap();
    assert!(proclaim(&session, &grant, "f", 6).await);
    assert!(redis.cli(&["PTTL", &counter]).unwrap().number() > Some(100_000), "it stays for ever");
    assert_eq!(leader(&session, &name).await.unwrap().proposal, Proposal::new("f", 6));
    // The token counter is the same key, and never falls: neither below the grant's token nor below what is there.
    release(&session, &grant).await;
    let next = elect(&session, &name, "a").await;
    assert!(next.token() > grant.token());
    let ahead = 1_u64 << 52;
    redis.cli(&["SET", &counter, &ahead.to_string()]).unwrap();
    assert!(proclaim(&session, &next, "b", 2).await);
    assert_eq!(leader(&session, &name).await.unwrap().proposal, Proposal::new("b", 2));
    release(&session, &next).await;
    assert_eq!(acquire(&session, &name).await.token().get(), ahead + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_that_are_no_candidates() {
    let (redis, name) = (shared(), fresh_name());
    let session = session(redis, LONG).await;
    let grant = acquire(&session, &name).await;
    let found = leader(&session, &name).await.unwrap();
    assert_eq!((found.token, &found.proposal), (grant.token(), &Proposal::default()));
    assert!(found.metadata.is_some());
    release(&session, &grant).await;
    redis.cli(&["SET", name.as_str(), "their-token"]).unwrap();
    assert_eq!(leader(&session, &name).await, None, "another program's lock has no token");
}

/// They publish nothing: this server counts every message.
#[tokio::test(flavor = "multi_thread")]
async fn ordinary_locks_notify_no_observers() {
    let redis = Redis::start().unwrap();
    let (session, name) = (session(&redis, LONG).await, fresh_name());
    let _watch = watch(&session, &name).await;
    let before = redis.calls("publish").unwrap();
    let grant = acquire(&session, &name).await;
    release(&session, &grant).await;
    assert_eq!(redis.calls("publish").unwrap(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn last_watch_of_a_lock_ends_its_subscription() {
    let redis = Redis::start().unwrap();
    let (session, name) = (session(&redis, LONG).await, fresh_name());
    let channel = format!("lockkit:leader:{{{name}}}");
    for _ in 0..3 {
        let (one, mut other) = (watch(&session, &name).await, watch(&session, &name).await);
        drop(one);
        let grant = elect(&session, &name, "a").await;
        bounded(other.changed()).await;
        assert_eq!(channels(&redis), std::slice::from_ref(&channel));
        release(&session, &grant).await;
        drop(other);
        // At once watched again: the end of the last watch must not end this one.
        let mut again = watch(&session, &name).await;
        let grant = elect(&session, &name, "b").await;
        bounded(again.changed()).await;
        release(&session, &grant).await;
        drop(again);
        until("nothing is subscribed to", async || channels(&redis).is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_outlives_its_connection() {
    let redis = Redis::start().unwrap();
    let (one, observer, name) = (session(&redis, LONG).await, session(&redis, LONG).await, fresh_name());
    let mut watch = watch(&observer, &name).await;
    for number in 1..4 {
        redis.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
        // What was published meanwhile is lost, so the watch wakes once it is subscribed again.
        bounded(watch.changed()).await;
        until("it is subscribed again", async || channels(&redis).len() == 1).await;
        let grant = elect(&one, &name, "a").await;
        bounded(async {
            while leader(&observer, &name).await.is_none() {
                watch.changed().await;
            }
        })
        .await;
        assert_eq!(leader(&observer, &name).await.unwrap().token, grant.token(), "round {number}");
        release(&one, &grant).await;
        bounded(async {
            while leader(&observer, &name).await.is_some() {
                watch.changed().await;
            }
        })
        .await;
    }
}

/// Between the end of the former connection and the new subscription.
#[tokio::test(flavor = "multi_thread")]
async fn change_before_the_new_subscription_wakes_the_watch() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    let url = format!("redis://{}/?request_timeout=20s", proxy.endpoint());
    let (one, observer, name) =
        (session(&redis, 10 * LONG).await, session_at(&url, LONG).await, fresh_name());
    let mut watch = watch(&observer, &name).await;
    proxy.hold_requests_from("lockkit:leader:");
    proxy.reset_clients();
    until("it subscribes again", async || proxy.holds("lockkit:leader:")).await;
    // The new connection has woken it.
    bounded(watch.changed()).await;
    let grant = elect(&one, &name, "a").await;
    proxy.set(Direction::Requests, Flow::Pass);
    bounded(watch.changed()).await;
    assert_eq!(leader(&observer, &name).await.unwrap().token, grant.token());
}

/// No timer can wake the watch: the lock outlives the test.
#[tokio::test(flavor = "multi_thread")]
async fn break_without_a_successor_wakes_the_watch() {
    let (redis, name) = (shared(), fresh_name());
    let (one, observer) = (session(redis, 10 * LONG).await, session(redis, LONG).await);
    elect(&one, &name, "a").await;
    let mut watch = watch(&observer, &name).await;
    let admin = backend(&redis.url());
    let holder = bounded(admin.inspect(&name)).await.unwrap().holder.unwrap();
    assert!(bounded(admin.break_lock(&name, &holder)).await.unwrap());
    bounded(watch.changed()).await;
    assert_eq!(leader(&observer, &name).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn full_server_serves_a_proclaim() {
    let redis = Redis::start().unwrap();
    let (session, name) = (session(&redis, LONG).await, fresh_name());
    let grant = elect(&session, &name, "a").await;
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    assert!(proclaim(&session, &grant, "b", 2).await);
    assert_eq!(leader(&session, &name).await.unwrap().proposal.value, "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn user_without_the_right_to_the_channel_can_lock_but_not_watch() {
    let redis = Redis::start().unwrap();
    let url = format!("redis://{LOGIN}@{}", redis.endpoint());
    let (name, set_user) = (fresh_name(), |rights: &str| {
        let mut command = vec!["ACL", "SETUSER"];
        command.extend(user(rights));
        command.insert(3, "reset");
        redis.cli(&command).unwrap();
    });
    set_user(&RIGHTS.replace("&lockkit:leader:*", ""));
    let limited = session_at(&url, LONG).await;
    let refused = bounded(limited.elections().unwrap().watch(&name)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    let grant = elect(&limited, &name, "a").await;
    assert!(proclaim(&limited, &grant, "b", 2).await);
    release(&limited, &grant).await;
    // With the documented rights nothing is refused.
    redis.cli(&["ACL", "LOG", "RESET"]).unwrap();
    set_user(RIGHTS);
    let session = session_at(&url, LONG).await;
    let mut watching = watch(&session, &name).await;
    let grant = elect(&session, &name, "a").await;
    bounded(watching.changed()).await;
    assert!(proclaim(&session, &grant, "b", 2).await);
    assert!(bounded(session.records().unwrap().write(&grant, "done", LONG)).await.unwrap());
    assert_eq!(bounded(session.records().unwrap().read(&name)).await.unwrap().as_deref(), Some("done"));
    assert!(bounded(session.pins().unwrap().pin(&grant, 2 * LONG)).await.unwrap());
    bounded(session.pins().unwrap().leave(&grant)).await.unwrap();
    drop(watching);
    until("it has unsubscribed", async || channels(&redis).is_empty()).await;
    let log = redis.cli(&["ACL", "LOG"]).unwrap();
    assert_eq!(log.list(), [], "{log:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_session_answers_no_observer() {
    let (session, name) = (session(shared(), LONG).await, fresh_name());
    let led = acquire(&session, &name).await;
    bounded(session.close()).await.unwrap();
    let elections = session.elections().unwrap();
    assert_eq!(bounded(elections.leader(&name)).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(bounded(elections.watch(&name)).await.unwrap_err().kind(), ErrorKind::Closed);
    let proclaimed = bounded(elections.proclaim(&led, &proposing("late", 2))).await;
    assert_eq!(proclaimed.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_fails_at_once_while_the_server_is_known_to_be_away() {
    let mut redis = Redis::start().unwrap();
    let session = session_at(&format!("{}/?request_timeout=60s", redis.url()), LONG).await;
    redis.kill().unwrap();
    until("the outage is known", async || match session.renew(&[]).await.session {
        Renewal::Unknown(error) => error.to_string().contains("refused"),
        _ => false,
    })
    .await;
    let watch = bounded(session.elections().unwrap().watch(&fresh_name())).await;
    assert_eq!(watch.unwrap_err().kind(), ErrorKind::Unavailable);
}

/// Channel and lock are on the same node.
#[tokio::test(flavor = "multi_thread")]
async fn watches_work_on_a_cluster() {
    let cluster = RedisCluster::start().unwrap();
    let backend = backend(&cluster.url());
    let (one, observer) = (
        backend.open_session(LONG, Clock::boot()).await.unwrap(),
        backend.open_session(LONG, Clock::boot()).await.unwrap(),
    );
    for _ in 0..8 {
        let name = fresh_name();
        let mut watch = watch(&observer, &name).await;
        let grant = granted(try_acquire(&one, &fresh_name()).await);
        release(&one, &grant).await;
        let grant = elect(&one, &name, "a").await;
        bounded(watch.changed()).await;
        assert_eq!(value(&observer, &name).await, Some((grant.token(), "a".to_owned())));
        let records = one.records().unwrap();
        assert!(bounded(records.write(&grant, "done", Duration::from_secs(60))).await.unwrap());
        release(&one, &grant).await;
    }
    until("nothing is subscribed to", async || cluster.nodes().iter().all(|node| channels(node).is_empty()))
        .await;
}
