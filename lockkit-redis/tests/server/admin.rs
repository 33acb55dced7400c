//! What an operator asks: who holds a lock, and the end of a hold.

use std::{sync::Arc, time::Duration};

use lockkit_core::{
    ErrorKind, FencingToken, LockClient, LockName, Metadata, Proposal,
    backend::{Acquired, Admin, Backend, Claim, ClaimControl, Contender, Grant, Loss, Renewal, Session},
};
use lockkit_redis::RedisBackend;
use lockkit_testbed::{Direction, Flow, Message, Proxy, Redis, RedisCluster, RedisSentinels};

use crate::{
    common::{
        LONG, acquire, assert_error, assert_rising, backend, bounded, enqueued, fresh_name, is_entry_gone,
        is_gave_up, only_renewal, release, scripts, session, session_at, shared, side, try_acquire, until,
    },
    raw::add_lapsed_waiters,
    rights::{LOGIN, RIGHTS, user},
    topologies::{PATIENT, is_renewed},
};

async fn holder(admin: &RedisBackend, name: &LockName) -> Contender {
    bounded(admin.inspect(name)).await.unwrap().holder.unwrap()
}

async fn break_lock(admin: &RedisBackend, name: &LockName, holder: &Contender) -> bool {
    bounded(admin.break_lock(name, holder)).await.unwrap()
}

async fn lost(session: &Arc<dyn Session>) -> Loss {
    bounded(session.lost()).await
}

async fn is_gone(session: &Arc<dyn Session>, grant: &Grant) -> bool {
    matches!(only_renewal(session.renew(std::slice::from_ref(grant)).await), Renewal::Gone)
}

fn is_of(loss: &Loss, grant: &Grant) -> bool {
    matches!(loss, Loss::Grant(claim) if *claim == grant.claim())
}

#[tokio::test(flavor = "multi_thread")]
async fn inspection_shows_clients_and_remaining_times() {
    let (redis, name) = (Redis::start().unwrap(), fresh_name());
    let (one, other) = (session(&redis, LONG).await, session(&redis, LONG / 2).await);
    let held = acquire(&one, &name).await;
    let waiting = [enqueued(&other, &name).await, enqueued(&one, &name).await];
    let found = backend(&redis.url()).inspect(&name).await.unwrap();
    let (holder, waiters) = (found.holder.unwrap(), found.waiters);
    assert_eq!((holder.entry, holder.token), (held.claim().to_string(), Some(held.token())));
    let left = |contender: &Option<Duration>| contender.unwrap();
    assert!((LONG / 2..=LONG).contains(&left(&holder.remaining)), "{:?}", holder.remaining);
    assert!((LONG / 4..=LONG / 2).contains(&left(&waiters[0].remaining)), "{waiters:?}");
    assert_eq!(holder.session, waiters[1].session);
    // As the server's own tools print them.
    let channels = redis.cli(&["PUBSUB", "CHANNELS", "lockkit:client:*"]).unwrap();
    let mut connected: Vec<&str> = channels.list().iter().map(|channel| &channel.text()[15..]).collect();
    let mut shown: Vec<&str> = waiters.iter().filter_map(|waiter| waiter.session.as_deref()).collect();
    connected.sort_unstable();
    shown.sort_unstable();
    assert_eq!(shown, connected);
    // As if the first one had died.
    redis
        .cli(&["HSET", &side(&name, "deadlines"), &waiting[0].claim.id().to_string(), "1:1000:c0ffee"])
        .unwrap();
    let living = backend(&redis.url()).inspect(&name).await.unwrap().waiters;
    assert_eq!(living.iter().map(|waiter| &waiter.entry).collect::<Vec<_>>(), [&waiters[1].entry]);
    for waiter in waiting {
        waiter.control.give_up();
        assert!(is_gave_up(&waiter.ends().await));
    }
    // A holder without metadata, as an earlier version of this library leaves them, and after a loss of the key.
    for without in [&["SET", "KEY", "7"][..], &["DEL", "KEY"]] {
        let counter = side(&name, "fence");
        let command: Vec<&str> =
            without.iter().map(|&part| if part == "KEY" { &*counter } else { part }).collect();
        redis.cli(&command).unwrap();
        let holder = self::holder(&backend(&redis.url()), &name).await;
        assert_eq!((holder.session, holder.metadata), (None, None));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inspection_of_another_programs_lock_shows_no_secret() {
    let (redis, name) = (shared(), fresh_name());
    let (session, admin) = (session(redis, LONG).await, backend(&redis.url()));
    // What is known of this client is stored with the counter, and stays.
    release(&session, &acquire(&session, &name).await).await;
    // The second one is of another length than those of this library.
    for secret in ["s3cret", "4242:17"] {
        redis.cli(&["SET", name.as_str(), secret, "PX", "60000"]).unwrap();
        let found = holder(&admin, &name).await;
        assert!(found.remaining.is_some() && !format!("{found:?}").contains(secret), "{found:?}");
        assert_eq!((&*found.entry, found.session, found.data), (name.as_str(), None, None));
    }
    redis.cli(&["PERSIST", name.as_str()]).unwrap();
    assert_eq!(holder(&admin, &name).await.remaining, None);
}

/// The counter shows which client to notify.
#[tokio::test(flavor = "multi_thread")]
async fn hold_whose_counter_is_lost_is_broken() {
    let (redis, name) = (shared(), fresh_name());
    let (session, admin) = (session(redis, LONG).await, backend(&redis.url()));
    let held = acquire(&session, &name).await;
    let shown = holder(&admin, &name).await;
    redis.cli(&["DEL", &side(&name, "fence")]).unwrap();
    assert!(break_lock(&admin, &name, &shown).await);
    assert!(is_gone(&session, &held).await);
}

/// The pauses before re-checks and heartbeats are longer than the test.
#[tokio::test(flavor = "multi_thread")]
async fn broken_holder_and_next_waiter_are_notified_at_once() {
    let (redis, name) = (Redis::start().unwrap(), fresh_name());
    let [one, other] = [session(&redis, LONG).await, session(&redis, LONG).await];
    let admin = backend(&redis.url());
    let held = acquire(&one, &name).await;
    let kept = acquire(&one, &fresh_name()).await;
    let waiting = enqueued(&other, &name).await;
    let shown = holder(&admin, &name).await;
    let before = scripts(&redis);
    assert!(break_lock(&admin, &name, &shown).await);
    assert!(is_of(&lost(&one).await, &held));
    let next = waiting.granted().await;
    // The break (its script was not at the server yet), and the confirm of the waiter.
    assert!(scripts(&redis) - before <= 4, "somebody has looked at the lock again");
    assert_rising(&[held.token(), next.token()]);
    assert!(is_gone(&one, &held).await && is_renewed(&one, &kept).await && is_renewed(&other, &next).await);
    // Repeated with the same inspection, it ends nothing.
    assert!(!break_lock(&admin, &name, &shown).await);
    release(&one, &held).await;
    assert!(is_renewed(&other, &next).await, "the broken holder's release ended a later hold");
    // Each loss is reported once.
    let again = tokio::time::timeout(Duration::from_millis(50), one.lost()).await;
    assert!(again.is_err(), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_without_the_right_to_notify_breaks_a_hold() {
    let (redis, name) = (Redis::start().unwrap(), fresh_name());
    let session = session(&redis, LONG).await;
    let held = acquire(&session, &name).await;
    let rights = RIGHTS.replace("&lockkit:client:*", "resetchannels");
    let mut command = vec!["ACL", "SETUSER"];
    command.extend(user(&rights));
    redis.cli(&command).unwrap();
    let admin = backend(&format!("redis://{LOGIN}@{}", redis.endpoint()));
    let shown = holder(&admin, &name).await;
    assert!(break_lock(&admin, &name, &shown).await);
    assert!(is_gone(&session, &held).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn guard_of_a_broken_hold_is_lost() {
    let (redis, name) = (Redis::start().unwrap(), fresh_name());
    let client = |url: String| LockClient::builder(backend(&url)).ttl(LONG).build();
    let (client, operator) = (client(redis.url()).await.unwrap(), client(redis.url()).await.unwrap());
    let guard = client.lock(&name).unwrap().acquire().await.unwrap();
    let shown = operator.inspect(&name).await.unwrap().holder.unwrap();
    assert!(operator.break_lock(&name, &shown).await.unwrap());
    assert_eq!(bounded(guard.lost()).await.kind(), ErrorKind::Lost);
    let next = operator.lock(&name).unwrap().try_acquire().await.unwrap().expect("the lock is free");
    assert!(next.token() > guard.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_finds_a_break_whose_message_is_lost() {
    let (redis, name) = (Redis::start().unwrap(), fresh_name());
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    let session = session_at(&format!("redis://{}", proxy.endpoint()), LONG).await;
    let held = acquire(&session, &name).await;
    proxy.drop_messages(Message::Events, |_| true);
    let admin = backend(&redis.url());
    let shown = holder(&admin, &name).await;
    assert!(break_lock(&admin, &name, &shown).await);
    until("the message is dropped", async || proxy.counts().dropped == 1).await;
    assert!(is_gone(&session, &held).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn outdated_or_wrong_inspection_breaks_nobody() {
    let (redis, name) = (shared(), fresh_name());
    let (one, other, admin) = (session(redis, LONG).await, session(redis, LONG).await, backend(&redis.url()));
    let first = acquire(&one, &name).await;
    let outdated = holder(&admin, &name).await;
    release(&one, &first).await;
    let second = acquire(&other, &name).await;
    let waiting = enqueued(&one, &name).await;
    let shown = holder(&admin, &name).await;
    let waiter = admin.inspect(&name).await.unwrap().waiters.remove(0);
    let with_token = |token: u64| Contender::new(shown.entry.clone(), Some(FencingToken::new(token)), None);
    let token = second.token().get();
    for wrong in [
        outdated,
        with_token(token - 1),
        with_token(token + 1),
        Contender::new(shown.entry.clone(), None, None),
        // As another program's hold would be shown.
        Contender::new(name.as_str(), None, None),
        Contender::new(name.as_str(), shown.token, None),
        waiter,
    ] {
        assert!(!break_lock(&admin, &name, &wrong).await, "{wrong:?}");
    }
    assert!(is_renewed(&other, &second).await && waiting.is_waiting());
    assert!(break_lock(&admin, &name, &shown).await);
    waiting.granted().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn break_whose_reply_was_lost_breaks_nobody_else_when_it_is_repeated() {
    let (redis, name) = (Redis::start().unwrap(), fresh_name());
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    // The request must not be given up before it is delivered.
    let admin = backend(&format!("redis://{}/{PATIENT}", proxy.endpoint()));
    let (one, other) = (session(&redis, LONG).await, session(&redis, LONG).await);
    let held = acquire(&one, &name).await;
    let waiting = enqueued(&other, &name).await;
    let shown = holder(&admin, &name).await;
    proxy.hold_requests_from("EVALSHA");
    let breaking = tokio::spawn({
        let (admin, name, shown) = (admin.clone(), name.clone(), shown.clone());
        async move { admin.break_lock(&name, &shown).await }
    });
    until("the request is under way", async || proxy.holds("EVALSHA")).await;
    // The script must be known: only the reply to its first copy is lost.
    let other_name = fresh_name();
    let (elsewhere, direct) = (acquire(&one, &other_name).await, backend(&redis.url()));
    assert!(break_lock(&direct, &other_name, &holder(&direct, &other_name).await).await);
    assert!(is_of(&lost(&one).await, &elsewhere));
    proxy.set(Direction::Replies, Flow::Hold);
    proxy.set(Direction::Requests, Flow::Pass);
    let error = bounded(breaking).await.unwrap().unwrap_err();
    assert_error(&error, ErrorKind::Unavailable, "break");
    proxy.pass();
    let next = waiting.granted().await;
    assert!(is_of(&lost(&one).await, &held));
    assert!(!break_lock(&admin, &name, &shown).await);
    assert!(is_renewed(&other, &next).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_of_another_program_is_broken_only_while_it_is_one() {
    let redis = shared();
    let (session, admin) = (session(redis, LONG).await, backend(&redis.url()));
    // The third one is almost that of this library.
    let texts = ["s3cret", "", "c0ffee:17"].map(|value| vec!["SET", "KEY", value]);
    for command in texts.into_iter().chain([vec!["HSET", "KEY", "a", "1"]]) {
        let name = fresh_name();
        let command: Vec<&str> =
            command.iter().map(|&part| if part == "KEY" { name.as_str() } else { part }).collect();
        redis.cli(&command).unwrap();
        let shown = holder(&admin, &name).await;
        let waiting = enqueued(&session, &name).await;
        assert!(break_lock(&admin, &name, &shown).await, "{command:?}");
        let granted = waiting.granted().await;
        assert!(!break_lock(&admin, &name, &shown).await, "{command:?}");
        assert!(is_renewed(&session, &granted).await);
        release(&session, &granted).await;
        assert!(!break_lock(&admin, &name, &shown).await, "a free lock has no holder");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pinned_hold_is_broken_before_its_pin_ends() {
    let (redis, name) = (shared(), fresh_name());
    let (one, other, admin) = (session(redis, LONG).await, session(redis, LONG).await, backend(&redis.url()));
    for leaves in [false, true] {
        let held = acquire(&one, &name).await;
        let pins = one.pins().unwrap();
        assert!(bounded(pins.pin(&held, 100 * LONG)).await.unwrap());
        if leaves {
            bounded(pins.leave(&held)).await.unwrap();
        }
        let waiting = enqueued(&other, &name).await;
        let shown = holder(&admin, &name).await;
        assert!(shown.remaining > Some(2 * LONG), "{shown:?}");
        assert!(break_lock(&admin, &name, &shown).await);
        let next = waiting.granted().await;
        assert!(next.token() > held.token());
        if !leaves {
            assert!(is_of(&lost(&one).await, &held));
        }
        release(&other, &next).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn break_finds_the_next_waiter_behind_many_that_have_lapsed() {
    let (redis, name) = (Redis::start().unwrap(), fresh_name());
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    let other = session_at(&format!("redis://{}/{PATIENT}", proxy.endpoint()), LONG).await;
    let (one, admin) = (session(&redis, LONG).await, backend(&redis.url()));
    acquire(&one, &name).await;
    let waiting = enqueued(&other, &name).await;
    add_lapsed_waiters(&redis, &name, 1200);
    // The waiter cannot look for itself.
    proxy.set(Direction::Requests, Flow::Hold);
    let shown = holder(&admin, &name).await;
    assert!(break_lock(&admin, &name, &shown).await);
    waiting.granted().await;
}

/// The message comes before the answer to the confirm that would grant the claim the lock. That of a candidate needs
/// one.
#[tokio::test(flavor = "multi_thread")]
async fn hold_that_is_broken_before_its_claim_knows_of_it_is_not_granted() {
    let (redis, name) = (Redis::start().unwrap(), fresh_name());
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    let slow = session_at(&format!("redis://{}/{PATIENT}", proxy.endpoint()), LONG).await;
    let (other, admin) = (session(&redis, LONG).await, backend(&redis.url()));
    let held = acquire(&other, &name).await;
    let (control, metadata) = (ClaimControl::new(), Metadata::of_this_process(None));
    let claim = Claim::new(name.clone(), true, metadata.with_proposal(Proposal::new("a", 1)), &control);
    let waiting = tokio::spawn(async move { slow.acquire(claim).await });
    until("the candidate waits", async || control.was_contended()).await;
    proxy.hold_requests_from("EVALSHA");
    release(&other, &held).await;
    until("the claim confirms its grant", async || proxy.holds("EVALSHA")).await;
    assert!(break_lock(&admin, &name, &holder(&admin, &name).await).await);
    proxy.pass();
    assert!(is_entry_gone(&bounded(waiting).await.unwrap()));
}

/// Both messages wait for their client: that of the grant, and that of its end.
#[tokio::test(flavor = "multi_thread")]
async fn pushed_hold_that_is_broken_at_once_is_lost_or_not_granted() {
    let (redis, name) = (Redis::start().unwrap(), fresh_name());
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    let slow = session_at(&format!("redis://{}/{PATIENT}", proxy.endpoint()), LONG).await;
    let (other, admin) = (session(&redis, LONG).await, backend(&redis.url()));
    let held = acquire(&other, &name).await;
    let waiting = enqueued(&slow, &name).await;
    proxy.set(Direction::Replies, Flow::Hold);
    release(&other, &held).await;
    assert!(break_lock(&admin, &name, &holder(&admin, &name).await).await);
    proxy.pass();
    match waiting.ends().await {
        Ok(Acquired::Granted(grant)) => assert!(is_of(&lost(&slow).await, &grant)),
        end => assert!(is_entry_gone(&end)),
    }
    assert_eq!(redis.keys(name.as_str()).unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_on_all_nodes_of_a_cluster_are_notified() {
    let cluster = RedisCluster::start().unwrap();
    let url = format!("{}/{PATIENT}", cluster.url());
    let (one, other, admin) = (session_at(&url, LONG).await, session_at(&url, LONG).await, backend(&url));
    for _ in 0..10 {
        let name = fresh_name();
        let held = acquire(&one, &name).await;
        let waiting = enqueued(&other, &name).await;
        let shown = holder(&admin, &name).await;
        assert!(break_lock(&admin, &name, &shown).await);
        assert!(is_of(&lost(&one).await, &held));
        let next = waiting.granted().await;
        assert_rising(&[held.token(), next.token()]);
        assert!(!break_lock(&admin, &name, &shown).await);
        release(&other, &next).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_in_a_slot_that_moves_is_broken_once_it_has_moved() {
    let cluster = RedisCluster::start().unwrap();
    let url = format!("{}/{PATIENT}", cluster.url());
    let (session, admin) = (session_at(&url, LONG).await, backend(&url));
    let name = fresh_name();
    let held = acquire(&session, &name).await;
    let shown = holder(&admin, &name).await;
    let slot = cluster.slot(name.as_str()).unwrap();
    let owner = cluster.owner(slot).unwrap();
    let to =
        (0..cluster.len()).find(|&node| node != owner && cluster.node(node).is_master().unwrap()).unwrap();
    let migration = cluster.migrate(slot, to).unwrap();
    migration.move_keys().unwrap();
    // A node refuses scripts about several keys then, the release too.
    let error = bounded(admin.break_lock(&name, &shown)).await.unwrap_err();
    assert_error(&error, ErrorKind::Unavailable, "TRYAGAIN");
    migration.finish().unwrap();
    assert!(break_lock(&admin, &name, &shown).await);
    assert!(is_of(&lost(&session).await, &held));
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_at_the_master_of_sentinels_is_broken() {
    let sentinels = RedisSentinels::start().unwrap();
    let url = format!("{}{PATIENT}", sentinels.url());
    let (session, admin, name) = (session_at(&url, LONG).await, backend(&url), fresh_name());
    let held = acquire(&session, &name).await;
    let page = bounded(admin.list("", None, 10)).await.unwrap();
    assert_eq!(page.locks.iter().filter_map(|lock| lock.name.as_ref()).collect::<Vec<_>>(), [&name]);
    let shown = holder(&admin, &name).await;
    assert!(break_lock(&admin, &name, &shown).await);
    assert!(is_of(&lost(&session).await, &held));
    assert!(!is_gave_up(&try_acquire(&session, &name).await));
    assert!(admin.info().powers.break_lock);
}
