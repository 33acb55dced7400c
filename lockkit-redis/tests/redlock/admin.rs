//! What an operator asks of a set of nodes.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use lockkit_conformance::{
    Store,
    direct::{
        HANG, LONG, acquire, assert_error, assert_rising, bounded, enqueued, fresh_name, is_renewed, name,
        release, until,
    },
};
use lockkit_core::{
    Clock, ErrorKind, LockName,
    backend::{Admin, Backend, Contender, Grant, Loss, Renewal, Session},
};
use lockkit_redis::RedlockBackend;
use lockkit_testbed::{Direction, Flow, Message, Proxy};

use crate::redlock::{
    Masters, config, encoded,
    rights::{LOGIN, RIGHTS},
    url_of,
};

/// Rights that an operator needs besides those of clients.
const OPERATOR: [&str; 4] = ["ACL", "SETUSER", "app", "+pttl"];

fn admin(url: &str) -> RedlockBackend {
    RedlockBackend::new(config(url).unwrap())
}

/// Opens a session with a request timeout for a busy machine.
async fn session(url: &str) -> Arc<dyn Session> {
    let patient = admin(&format!("{url}?request_timeout=10s"));
    bounded(patient.open_session(LONG, Clock::boot())).await.unwrap()
}

async fn holder(admin: &RedlockBackend, name: &LockName) -> Option<Contender> {
    bounded(admin.inspect(name)).await.unwrap().holder
}

async fn renewal(session: &Arc<dyn Session>, grant: &Grant) -> Renewal {
    session.renew(std::slice::from_ref(grant)).await.holds.pop().unwrap().1
}

/// Runs a command at some nodes.
async fn at(masters: &Masters, nodes: std::ops::Range<usize>, command: &[&str]) {
    let command: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
    let run = masters.with(move |all| {
        nodes.into_iter().try_for_each(|node| {
            all.node(node).cli(&command.iter().map(String::as_str).collect::<Vec<_>>()).map(drop)
        })
    });
    run.await.unwrap();
}

/// Waits until every node has the lock: a majority has granted before.
async fn until_everywhere(masters: &Masters, name: &LockName) {
    until("every node has the lock", async || {
        let (nodes, key) = (masters.endpoints.len(), encoded(name));
        let has = masters.with(move |all| {
            (0..nodes).try_fold(true, |has, node| {
                Ok(has && all.node(node).cli(&["EXISTS", &key])?.number() == Some(1))
            })
        });
        has.await.unwrap()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_holder_is_notified_and_the_next_waiter_is_granted() {
    let masters = Masters::start(3).unwrap();
    let (one, other, admin) =
        (session(&masters.url()).await, session(&masters.url()).await, admin(&masters.url()));
    let name = fresh_name();
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let held = acquire(&one, &name).await;
        let waiting = enqueued(&other, &name).await;
        let shown = holder(&admin, &name).await.unwrap();
        assert!(bounded(admin.break_lock(&name, &shown)).await.unwrap());
        assert!(matches!(bounded(one.lost()).await, Loss::Grant(claim) if claim == held.claim()));
        let next = waiting.granted().await;
        tokens.extend([held.token(), next.token()]);
        assert!(!bounded(admin.break_lock(&name, &shown)).await.unwrap(), "repeated");
        assert!(is_renewed(&renewal(&other, &next).await));
        // The client has ended the hold already.
        release(&one, &held).await;
        release(&other, &next).await;
    }
    assert_rising(&tokens);
}

/// The break may have reached one node only: without its holder, the lock would be held at the others for a ttl.
#[tokio::test(flavor = "multi_thread")]
async fn client_of_a_broken_hold_ends_it_at_every_node() {
    let masters = Masters::start(3).unwrap();
    let (session, name) = (session(&masters.url()).await, fresh_name());
    let held = acquire(&session, &name).await;
    until_everywhere(&masters, &name).await;
    let shown = holder(&admin(&masters.url()), &name).await.unwrap();
    // What the node publishes where it ends the hold.
    at(&masters, 0..1, &["PUBLISH", "lockkit:released:", &shown.entry]).await;
    assert!(matches!(bounded(session.lost()).await, Loss::Grant(claim) if claim == held.claim()));
    until("no node has the lock", async || masters.entries(&name).await.unwrap().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_finds_a_break_whose_messages_are_lost() {
    let masters = Masters::start(3).unwrap();
    let proxies: Vec<Proxy> =
        masters.endpoints.iter().map(|endpoint| Proxy::start_redis(endpoint).unwrap()).collect();
    let session = session(&url_of(&proxies.iter().map(Proxy::endpoint).collect::<Vec<_>>())).await;
    let name = fresh_name();
    let held = acquire(&session, &name).await;
    until_everywhere(&masters, &name).await;
    proxies.iter().for_each(|proxy| proxy.drop_messages(Message::Events, |_| true));
    let admin = admin(&masters.url());
    let shown = holder(&admin, &name).await.unwrap();
    assert!(bounded(admin.break_lock(&name, &shown)).await.unwrap());
    until("a majority of the messages is dropped", async || {
        proxies.iter().filter(|proxy| proxy.counts().dropped > 0).count() >= 2
    })
    .await;
    assert!(matches!(renewal(&session, &held).await, Renewal::Gone));
}

/// Each node that has ended the hold refuses to take it back, also while the others still have it.
#[tokio::test(flavor = "multi_thread")]
async fn break_at_a_minority_is_no_break_and_is_not_undone_there() {
    let masters = Masters::start(3).unwrap();
    let proxies: Vec<Proxy> =
        masters.endpoints.iter().map(|endpoint| Proxy::start_redis(endpoint).unwrap()).collect();
    // The holder gets no message.
    proxies.iter().for_each(|proxy| proxy.drop_messages(Message::Events, |_| true));
    let session = session(&url_of(&proxies.iter().map(Proxy::endpoint).collect::<Vec<_>>())).await;
    let name = fresh_name();
    let held = acquire(&session, &name).await;
    until_everywhere(&masters, &name).await;
    let shown = holder(&admin(&masters.url()), &name).await.unwrap();
    // The operator's requests reach all nodes until the break, which two refuse.
    at(&masters, 1..3, &["ACL", "SETUSER", "app", "-set", "-del"]).await;
    let error = bounded(admin(&masters.url()).break_lock(&name, &shown)).await.unwrap_err();
    assert_error(&error, ErrorKind::Denied, "2 of 3");
    assert!(is_renewed(&renewal(&session, &held).await), "a majority still has it");
    let key = name.to_string();
    let state = async || {
        let key = key.clone();
        let state = masters.with(move |all| {
            let node = all.node(0);
            Ok((node.calls("evalsha")? + node.calls("eval")?, node.cli(&["EXISTS", &key])?.number()))
        });
        state.await.unwrap()
    };
    let (before, heartbeats) = (state().await.0, AtomicU64::new(0));
    until("a heartbeat has tried to restore the lock", async || {
        heartbeats.fetch_add(1, SeqCst);
        assert!(is_renewed(&renewal(&session, &held).await));
        let (scripts, exists) = state().await;
        scripts > before + heartbeats.load(SeqCst) || exists == Some(1)
    })
    .await;
    assert_eq!(state().await.1, Some(0), "restored");
    at(&masters, 1..3, &["ACL", "SETUSER", "app", "+set", "+del"]).await;
    assert!(bounded(admin(&masters.url()).break_lock(&name, &shown)).await.unwrap());
    assert!(matches!(renewal(&session, &held).await, Renewal::Gone));
}

/// One node refuses, one ends the hold, and the one that answers last has lost it.
#[tokio::test(flavor = "multi_thread")]
async fn hold_was_broken_if_any_node_had_it() {
    let masters = Masters::start(3).unwrap();
    let proxy = Proxy::start_redis(&masters.endpoints[2]).unwrap();
    let endpoints = [masters.endpoints[0].clone(), masters.endpoints[1].clone(), proxy.endpoint()];
    let (session, name) = (session(&masters.url()).await, fresh_name());
    acquire(&session, &name).await;
    until_everywhere(&masters, &name).await;
    at(&masters, 0..1, &["ACL", "SETUSER", "app", "-set", "-del"]).await;
    at(&masters, 2..3, &["DEL", &encoded(&name)]).await;
    let admin = admin(&format!("{}?request_timeout=10s", url_of(&endpoints)));
    let shown = holder(&admin, &name).await.unwrap();
    proxy.set(Direction::Replies, Flow::Delay(Duration::from_millis(200)));
    assert!(bounded(admin.break_lock(&name, &shown)).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn outdated_inspection_breaks_nobody() {
    let masters = Masters::start(3).unwrap();
    let (one, other, admin) =
        (session(&masters.url()).await, session(&masters.url()).await, admin(&masters.url()));
    let name = fresh_name();
    let first = acquire(&one, &name).await;
    let outdated = holder(&admin, &name).await.unwrap();
    release(&one, &first).await;
    let second = acquire(&other, &name).await;
    let shown = holder(&admin, &name).await.unwrap();
    for wrong in [
        outdated.clone(),
        Contender::new(shown.entry.clone(), outdated.token, None),
        Contender::new(name.as_str(), None, None),
    ] {
        assert!(!bounded(admin.break_lock(&name, &wrong)).await.unwrap(), "{wrong:?}");
    }
    assert!(is_renewed(&renewal(&other, &second).await));
    assert!(bounded(admin.break_lock(&name, &shown)).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_of_another_program_is_broken_only_while_it_is_one() {
    let masters = Masters::start(3).unwrap();
    let (session, admin) = (session(&masters.url()).await, admin(&masters.url()));
    for value in ["f00d", "not hexadecimal", ""] {
        let name = fresh_name();
        at(&masters, 0..3, &["SET", name.as_str(), value]).await;
        let Some(shown) = holder(&admin, &name).await else { panic!("{value:?} is not shown") };
        assert_eq!((&*shown.entry, shown.token, &shown.remaining), (name.as_str(), None, &None));
        let waiting = enqueued(&session, &name).await;
        assert!(bounded(admin.break_lock(&name, &shown)).await.unwrap(), "{value:?}");
        let granted = waiting.granted().await;
        assert!(!bounded(admin.break_lock(&name, &shown)).await.unwrap(), "{value:?}");
        assert!(is_renewed(&renewal(&session, &granted).await));
    }
    // One to the waiters of each lock from each node, and none with the value to the holder.
    let published =
        masters.with(|all| (0..3).map(|node| all.node(node).calls("publish")).sum::<anyhow::Result<u64>>());
    assert!((1..=9).contains(&published.await.unwrap()));
}

/// Returns all locks of a listing, and the number of its pages.
async fn listed(admin: &RedlockBackend, prefix: &str, limit: usize) -> (Vec<LockName>, usize) {
    let (mut found, mut next, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = bounded(admin.list(prefix, next.as_deref(), limit)).await.unwrap();
        assert!(page.locks.len() <= limit);
        found.extend(page.locks.into_iter().filter_map(|lock| lock.name));
        pages += 1;
        next = page.next;
        if next.is_none() {
            return (found, pages);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_a_majority_are_listed_by_name() {
    let masters = Masters::start_for_an_operator(3).unwrap();
    let (session, admin) = (session(&masters.url()).await, admin(&masters.url()));
    let mut expected = BTreeSet::new();
    for number in 0..20 {
        let name = name(&format!("jobs/held {number}"));
        acquire(&session, &name).await;
        expected.insert(name);
    }
    let fill = "for n = 1, ARGV[2] do redis.call('SET', ARGV[1] .. n, 'x') end";
    let names = |prefix: &str, count: usize| {
        (1..=count).map(|number| name(&format!("jobs/{prefix}-{number}"))).collect::<Vec<_>>()
    };
    // At different majorities, and at a minority only.
    at(&masters, 0..2, &["EVAL", fill, "0", "jobs%2Fa-", "700"]).await;
    at(&masters, 1..3, &["EVAL", fill, "0", "jobs%2Fb-", "100"]).await;
    at(&masters, 2..3, &["EVAL", fill, "0", "jobs%2Fminority-", "100"]).await;
    at(&masters, 0..3, &["EVAL", fill, "0", "other-", "100"]).await;
    expected.extend(names("a", 700).into_iter().chain(names("b", 100)));
    for down in [None, Some(0), Some(2)] {
        let mut expected = expected.clone();
        if let Some(down) = down {
            masters.with(move |all| all.node(down).pause()).await.unwrap();
        }
        if down == Some(0) {
            // The silent node may have them too.
            expected.extend(names("minority", 100));
        }
        let (found, pages) = listed(&admin, "jobs/", 200).await;
        assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "not in order, or twice");
        assert!(pages > 2, "{pages} pages");
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected, "without node {down:?}");
        if let Some(down) = down {
            masters.with(move |all| all.node(down).resume()).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_that_only_a_silent_node_could_decide_is_not_inspected() {
    let (masters, name) = (Masters::start(3).unwrap(), fresh_name());
    at(&masters, 0..2, &["SET", name.as_str(), "x"]).await;
    masters.with(|all| all.node(0).pause()).await.unwrap();
    let error = bounded(admin(&masters.url()).inspect(&name)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    masters.with(|all| all.node(0).resume()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_names_cannot_be_listed() {
    let raw = admin("redlock://a,b,c?names=raw");
    assert_error(&raw.list("", None, 10).await.unwrap_err(), ErrorKind::Unsupported, "raw names");
    assert!(!raw.info().powers.list);
}

#[test]
fn listing_and_breaking_are_powers_of_a_set() {
    let powers = admin("redlock://a,b,c").info().powers;
    assert!(powers.list && powers.break_lock);
}

/// Each node has no more than a page.
#[tokio::test(flavor = "multi_thread")]
async fn listing_continues_while_all_nodes_together_have_more() {
    let masters = Masters::start_for_an_operator(3).unwrap();
    let (session, admin) = (session(&masters.url()).await, admin(&masters.url()));
    let last = name("more/4");
    acquire(&session, &last).await;
    until_everywhere(&masters, &last).await;
    for node in 0..3 {
        at(&masters, node..node + 1, &["SET", &format!("more%2F{}", node + 1), "x"]).await;
    }
    let first = bounded(admin.list("more/", None, 2)).await.unwrap();
    assert_eq!((first.locks.len(), first.next.as_deref()), (0, Some("more/2")));
    let second = bounded(admin.list("more/", first.next.as_deref(), 2)).await.unwrap();
    assert_eq!((&second.locks[0].name, second.next), (&Some(last), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_needs_two_more_rights() {
    let masters = Masters::start(3).unwrap();
    let (session, admin, name) = (session(&masters.url()).await, admin(&masters.url()), fresh_name());
    acquire(&session, &name).await;
    let shown = holder(&admin, &name).await.unwrap();
    assert_eq!(shown.remaining, None);
    at(&masters, 0..3, &OPERATOR).await;
    let shown = holder(&admin, &name).await.unwrap();
    assert!((LONG / 2..=LONG).contains(&shown.remaining.unwrap()), "{shown:?}");
    let error = admin.list("", None, 10).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    at(&masters, 0..1, &["ACL", "SETUSER", "app", "+scan"]).await;
    let error = admin.list("", None, 10).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "the keys of one node are not all: {error}");
    at(&masters, 0..3, &["ACL", "SETUSER", "app", "+scan"]).await;
    assert_eq!(admin.list("", None, 10).await.unwrap().locks.len(), 1);
}

/// A request may take longer than this test waits.
#[tokio::test(flavor = "multi_thread")]
async fn operator_waits_for_no_silent_node() {
    let masters = Masters::start_for_an_operator(3).unwrap();
    let (session, name) = (session(&masters.url()).await, fresh_name());
    acquire(&session, &name).await;
    until_everywhere(&masters, &name).await;
    let admin = admin(&format!("{}?request_timeout=60s", masters.url()));
    masters.with(|all| all.node(2).pause()).await.unwrap();
    let asked = tokio::time::timeout(HANG, async {
        let listed = admin.list("", None, 10).await.unwrap().locks.len();
        let shown = holder(&admin, &name).await.unwrap();
        (listed, admin.break_lock(&name, &shown).await.unwrap())
    });
    let asked = asked.await;
    masters.with(|all| all.node(2).resume()).await.unwrap();
    assert_eq!(asked.expect("the others are enough"), (1, true));
}

/// Waiters poll then, and heartbeats find losses.
#[tokio::test(flavor = "multi_thread")]
async fn user_without_channels_can_lock() {
    let masters = Masters::start(3).unwrap();
    at(&masters, 0..3, &["ACL", "SETUSER", "app", "-subscribe", "-unsubscribe", "-publish"]).await;
    assert!(RIGHTS.contains("+subscribe") && masters.url().contains(LOGIN));
    let (one, other, name) = (session(&masters.url()).await, session(&masters.url()).await, fresh_name());
    let held = acquire(&one, &name).await;
    let waiting = enqueued(&other, &name).await;
    release(&one, &held).await;
    let next = waiting.granted().await;
    at(&masters, 0..3, &["CLIENT", "KILL", "USER", "app"]).await;
    until("the hold is renewed over new connections", async || is_renewed(&renewal(&other, &next).await))
        .await;
    release(&other, &next).await;
    // A majority has confirmed the release; the last node may still be reconnected.
    until("nothing is left", async || masters.entries(&name).await.unwrap().is_empty()).await;
}
