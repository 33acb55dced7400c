//! Servers that restart, freeze, or lose their scripts or data, and connections that break.

use std::time::{Duration, Instant};

use lockkit_core::{
    ErrorKind,
    backend::{Acquired, Renewal},
};
use lockkit_testbed::{Direction, Flow, Proxy, Redis, ServerClock};

use crate::common::{
    HANG, LONG, acquire, assert_rising, bounded, enqueued, fresh_name, granted, is_gave_up, only_renewal,
    release, scripts, session, session_at, side, start, try_acquire, until,
};

fn url_through(proxy: &Proxy) -> String {
    format!("redis://{}/?request_timeout=5s", proxy.endpoint())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_whose_reply_was_lost_is_found() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start(redis.endpoint()).unwrap();
    let session = session_at(&url_through(&proxy), LONG).await;
    for round in 0..10 {
        let name = fresh_name();
        proxy.swallow_reply(1);
        let grant = acquire(&session, &name).await;
        let value = redis.cli(&["GET", name.as_str()]).unwrap();
        assert_eq!(value.text(), format!("{}:{}", grant.claim(), grant.token().get()), "round {round}");
        assert!(redis.cli(&["PTTL", name.as_str()]).unwrap().number().unwrap() > 0);
        proxy.swallow_reply(1);
        release(&session, &grant).await;
        assert_eq!(redis.keys(name.as_str()).unwrap(), [""; 0]);
    }
    assert_eq!(proxy.counts().dropped, 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_whose_reply_was_lost_holds_or_leaves_nothing() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start(redis.endpoint()).unwrap();
    let session = session_at(&url_through(&proxy), LONG).await;
    let name = fresh_name();
    proxy.swallow_reply(1);
    let grant = granted(try_acquire(&session, &name).await);
    release(&session, &grant).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn black_hole_is_replaced_by_a_new_connection() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start(redis.endpoint()).unwrap();
    let session = session_at(&url_through(&proxy), LONG).await;
    let grant = acquire(&session, &fresh_name()).await;
    let before = proxy.counts().accepted;
    proxy.set(Direction::Replies, Flow::Drop);
    assert!(matches!(only_renewal(session.renew(std::slice::from_ref(&grant)).await), Renewal::Unknown(_)));
    // The connection stays open and silent: only the client can find out that it is dead.
    until("another connection is tried", async || proxy.counts().accepted > before).await;
    proxy.pass();
    let renewed = async || {
        matches!(only_renewal(session.renew(std::slice::from_ref(&grant)).await), Renewal::Renewed { .. })
    };
    until("a heartbeat is answered again", renewed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_survive_connections_that_are_killed() {
    let redis = Redis::start().unwrap();
    let (one, other, name) = (session(&redis, LONG).await, session(&redis, LONG).await, fresh_name());
    let mut holder = (one.clone(), acquire(&one, &name).await);
    let mut tokens = vec![holder.1.token()];
    for round in 0..10 {
        let session = if round % 2 == 0 { &other } else { &one };
        let next = enqueued(session, &name).await;
        redis.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
        release(&holder.0, &holder.1).await;
        holder = (session.clone(), next.granted().await);
        tokens.push(holder.1.token());
    }
    assert_rising(&tokens);
}

/// So the clients of a restarted server do not all connect at the same moment.
#[tokio::test(flavor = "multi_thread")]
async fn client_reconnects_after_a_random_pause() {
    const ROUNDS: u32 = 40;
    let redis = Redis::start().unwrap();
    let session = session(&redis, LONG).await;
    let grant = acquire(&session, &fresh_name()).await;
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        assert_eq!(redis.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap().number(), Some(1));
        let renewed = async || {
            matches!(only_renewal(session.renew(std::slice::from_ref(&grant)).await), Renewal::Renewed { .. })
        };
        until("it is connected again", renewed).await;
    }
    // On average half of 50 ms each.
    assert!(begun.elapsed() > ROUNDS * Duration::from_millis(10), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn forgotten_scripts_are_sent_again() {
    let redis = Redis::start().unwrap();
    let (one, other, name) = (session(&redis, LONG).await, session(&redis, LONG).await, fresh_name());
    for _ in 0..20 {
        let held = acquire(&one, &name).await;
        redis.cli(&["SCRIPT", "FLUSH"]).unwrap();
        let next = enqueued(&other, &name).await;
        redis.cli(&["SCRIPT", "FLUSH"]).unwrap();
        assert!(matches!(
            only_renewal(one.renew(std::slice::from_ref(&held)).await),
            Renewal::Renewed { .. }
        ));
        redis.cli(&["SCRIPT", "FLUSH"]).unwrap();
        release(&one, &held).await;
        redis.cli(&["SCRIPT", "FLUSH"]).unwrap();
        let next = next.granted().await;
        release(&other, &next).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn flushed_store_loses_holds_but_not_token_order() {
    let redis = Redis::start().unwrap();
    let (one, other, name) = (session(&redis, LONG).await, session(&redis, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let waiter = enqueued(&other, &name).await;
    redis.cli(&["FLUSHALL"]).unwrap();
    assert!(matches!(only_renewal(one.renew(std::slice::from_ref(&held)).await), Renewal::Gone));
    assert_eq!(redis.keys("*").unwrap(), [""; 0], "a renewal restored something");
    other.renew(&[]).await;
    assert!(matches!(waiter.ends().await, Ok(Acquired::EntryGone)));
    let next = acquire(&other, &name).await;
    assert!(next.token() > held.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_holds_waiters_and_order() {
    let mut redis = Redis::start().unwrap();
    let (one, other, name) = (session(&redis, LONG).await, session(&redis, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let waiter = enqueued(&other, &name).await;
    redis.restart().unwrap();
    release(&one, &held).await;
    let next = waiter.granted().await;
    assert!(next.token() > held.token());
    redis.wipe().unwrap();
    let after = acquire(&one, &name).await;
    assert!(after.token() > next.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_claim_waits_through_an_outage_and_a_try_does_not() {
    let mut redis = Redis::start().unwrap();
    let (one, name) = (session(&redis, LONG).await, fresh_name());
    redis.kill().unwrap();
    // A try whose request may have reached the server would wait for the answer, too.
    until("the outage is known", async || match one.renew(&[]).await.session {
        Renewal::Unknown(error) => error.to_string().contains("refused"),
        _ => false,
    })
    .await;
    let waiting = start(&one, &name);
    let error = try_acquire(&one, &name).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(waiting.is_waiting());
    redis.restart().unwrap();
    let grant = waiting.granted().await;
    release(&one, &grant).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unconfirmed_release_is_forgotten_when_the_lock_must_have_expired() {
    /// Longer than a request to the server that is down may take.
    const TTL: Duration = Duration::from_secs(8);
    let mut redis = Redis::start().unwrap();
    let session = session_at(&format!("{}/?request_timeout=5s", redis.url()), TTL).await;
    let grant = acquire(&session, &fresh_name()).await;
    redis.kill().unwrap();
    let begun = Instant::now();
    assert_eq!(session.release(&grant).await.unwrap_err().kind(), ErrorKind::Unavailable);
    until("the session can be closed", async || session.close().await.is_ok()).await;
    assert!(begun.elapsed() > TTL, "the server may restart and still have the lock");
}

/// The claim may still be granted the lock by the server, until it lapses.
#[tokio::test(flavor = "multi_thread")]
async fn close_reports_a_withdrawal_that_is_not_answered() {
    let mut redis = Redis::start().unwrap();
    let (one, other, name) = (session(&redis, LONG).await, session(&redis, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let waiting = enqueued(&other, &name).await;
    redis.kill().unwrap();
    waiting.control.give_up();
    assert_eq!(other.close().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(!matches!(waiting.ends().await, Ok(Acquired::Granted(_))));
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn acquire_given_up_at_a_frozen_server_leaves_nothing() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start(redis.endpoint()).unwrap();
    let (one, other, name) =
        (session_at(&url_through(&proxy), LONG).await, session(&redis, LONG).await, fresh_name());
    redis.pause().unwrap();
    let before = proxy.counts().to_server;
    let waiting = start(&one, &name);
    until("the request is at the server", async || proxy.counts().to_server > before).await;
    waiting.control.give_up();
    redis.resume().unwrap();
    // The grant may have come before the give-up.
    if let Ok(Acquired::Granted(grant)) = waiting.ends().await {
        release(&one, &grant).await;
    }
    granted(try_acquire(&other, &name).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawal_is_repeated_until_it_is_answered() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start(redis.endpoint()).unwrap();
    let (one, other, name) =
        (session(&redis, LONG).await, session_at(&url_through(&proxy), LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let waiting = enqueued(&other, &name).await;
    let (sent, dropped) = (scripts(&redis), proxy.counts().dropped);
    proxy.swallow_reply(1);
    waiting.control.give_up();
    assert!(is_gave_up(&waiting.ends().await));
    assert_eq!(proxy.counts().dropped, dropped + 1, "no answer was lost");
    assert!(scripts(&redis) >= sent + 2, "it was not sent again");
    release(&one, &held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_to_a_frozen_server_ends_before_the_next_one() {
    let redis = Redis::start().unwrap();
    let session = session(&redis, Duration::from_secs(2)).await;
    let grant = acquire(&session, &fresh_name()).await;
    redis.pause().unwrap();
    let heartbeat =
        tokio::time::timeout(Duration::from_secs(2) / 3, session.renew(std::slice::from_ref(&grant))).await;
    redis.resume().unwrap();
    assert!(matches!(only_renewal(heartbeat.unwrap()), Renewal::Unknown(_)));
}

/// Its end may not depend on the time limit of other requests.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_of_waiters_to_a_frozen_server_has_the_time_limit_of_heartbeats() {
    let redis = Redis::start().unwrap();
    let (holder, name) = (session(&redis, LONG).await, fresh_name());
    acquire(&holder, &name).await;
    let waiting = session_at(&format!("{}/?request_timeout=60s", redis.url()), Duration::from_secs(6)).await;
    let _waiter = enqueued(&waiting, &name).await;
    redis.pause().unwrap();
    let heartbeat = tokio::time::timeout(HANG, waiting.renew(&[])).await;
    redis.resume().unwrap();
    assert!(matches!(heartbeat.unwrap().session, Renewal::Unknown(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn demoted_server_is_asked_again_until_it_is_master() {
    let redis = Redis::start().unwrap();
    let (session, name) = (session(&redis, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    redis.cli(&["REPLICAOF", "127.255.255.254", "1"]).unwrap();
    assert!(matches!(only_renewal(session.renew(std::slice::from_ref(&held)).await), Renewal::Unknown(_)));
    let error = try_acquire(&session, &fresh_name()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    redis.cli(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let next = acquire(&session, &fresh_name()).await;
    assert!(matches!(only_renewal(session.renew(&[held]).await), Renewal::Renewed { .. }));
    release(&session, &next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reconnects_to_a_demoted_server_have_pauses() {
    const SOME: usize = 20;
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start(redis.endpoint()).unwrap();
    let session = session_at(&url_through(&proxy), LONG).await;
    redis.cli(&["REPLICAOF", "127.255.255.254", "1"]).unwrap();
    let waiting: Vec<_> = (0..SOME).map(|_| start(&session, &fresh_name())).collect();
    let (before, begun) = (proxy.counts().accepted, Instant::now());
    until("some connections have failed", async || proxy.counts().accepted >= before + 6).await;
    // The pauses between the first and the last are 50 ms, 100 ms, and so on; with jitter more.
    assert!(begun.elapsed() > Duration::from_millis(50 + 100 + 200 + 400), "{:?}", begun.elapsed());
    redis.cli(&["REPLICAOF", "NO", "ONE"]).unwrap();
    for claim in waiting {
        claim.granted().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unused_counters_expire() {
    let redis = Redis::start().unwrap();
    let session = session_at(&format!("{}/?counter_ttl=1s", redis.url()), LONG).await;
    let name = fresh_name();
    let held = acquire(&session, &name).await;
    let waiter = enqueued(&session, &name).await;
    release(&session, &held).await;
    let next = waiter.granted().await;
    release(&session, &next).await;
    let last = acquire(&session, &name).await;
    release(&session, &last).await;
    assert_eq!(redis.keys("*").unwrap(), [side(&name, "fence")]);
    until("nothing is left", async || redis.keys("*").unwrap().is_empty()).await;
    let again = acquire(&session, &name).await;
    assert!(again.token() > last.token());
    bounded(session.close()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_outlives_the_recheck_pause_with_a_short_counter_ttl() {
    let redis = Redis::start().unwrap();
    let session = session_at(&format!("{}/?counter_ttl=1s", redis.url()), LONG).await;
    let name = fresh_name();
    let held = acquire(&session, &name).await;
    let waiter = enqueued(&session, &name).await;
    // Heartbeats come every 20 s, and re-checks every 10 s. The counter has the holder's metadata.
    for what in ["queue", "deadlines", "fence"] {
        let lives = redis.cli(&["PTTL", &side(&name, what)]).unwrap().number().unwrap();
        assert!(i128::from(lives) > i128::try_from(2 * LONG.as_millis()).unwrap(), "{what}: {lives} ms");
    }
    release(&session, &held).await;
    assert!(waiter.granted().await.token() > held.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_names_used_once_leave_nothing() {
    const TASKS: usize = 50;
    const NAMES_EACH: usize = 200;
    let redis = Redis::start().unwrap();
    let session = session_at(&format!("{}/?counter_ttl=1s", redis.url()), LONG).await;
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let session = session.clone();
            tokio::spawn(async move {
                for _ in 0..NAMES_EACH {
                    let grant = acquire(&session, &fresh_name()).await;
                    release(&session, &grant).await;
                }
            })
        })
        .collect();
    for task in tasks {
        // `acquire` and `release` have time limits of their own.
        task.await.unwrap();
    }
    let keys = async || redis.cli(&["DBSIZE"]).unwrap().number().unwrap();
    until("nothing is left", async || keys().await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_forward_ends_holds_early_and_fences_them() {
    let clock = ServerClock::new().unwrap();
    let redis = Redis::start_on(&clock).unwrap();
    let (one, other, name) = (session(&redis, LONG).await, session(&redis, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let waiter = enqueued(&other, &name).await;
    clock.step_forward(2 * LONG).unwrap();
    // It has lapsed, too: it claims again, as its keeper would.
    other.renew(&[]).await;
    let next = match waiter.ends().await {
        Ok(Acquired::Granted(grant)) => grant,
        end => {
            assert!(matches!(end, Ok(Acquired::EntryGone)), "{end:?}");
            acquire(&other, &name).await
        }
    };
    assert!(next.token() > held.token());
    assert!(matches!(only_renewal(one.renew(std::slice::from_ref(&held)).await), Renewal::Gone));
    release(&one, &held).await;
    assert!(matches!(only_renewal(other.renew(&[next]).await), Renewal::Renewed { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_back_does_not_let_tokens_fall() {
    let clock = ServerClock::new().unwrap();
    let redis = Redis::start_on(&clock).unwrap();
    let (one, other, name) = (session(&redis, LONG).await, session(&redis, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    clock.step_back(Duration::from_secs(3600)).unwrap();
    let waiter = enqueued(&other, &name).await;
    assert!(matches!(only_renewal(one.renew(std::slice::from_ref(&held)).await), Renewal::Renewed { .. }));
    release(&one, &held).await;
    let next = waiter.granted().await;
    assert_eq!(next.token().get(), held.token().get() + 1);
}
