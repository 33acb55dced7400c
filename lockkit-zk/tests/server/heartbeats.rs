//! What a heartbeat costs, what it finds, and what a late answer proves.

use std::{
    cell::Cell,
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use lockkit_core::{
    Clock, ErrorKind, LockClient,
    backend::{Backend, Grant, Renewal, Session},
};
use lockkit_testbed::{Direction, Flow, Proxy, ZooKeeper};
use tokio::task::JoinSet;

use crate::budget::spent;
use crate::common::{
    LATE, LONG, acquire, backend, bounded, fresh_name, heartbeat, held_create, is_renewed, node,
    own_ensemble, own_server, patient_url, plain, queue, quiet_session, release, session, session_at, shared,
    shifted_clock, start, until, url_through,
};
use crate::elections::{elections, lead, proclaim};

/// Acquires this many locks.
async fn hold(session: &Arc<dyn Session>, count: usize) -> Vec<Grant> {
    let claims: Vec<_> = (0..count).map(|_| start(session, &fresh_name())).collect();
    let mut held = Vec::new();
    for claim in claims {
        held.push(claim.granted().await);
    }
    held
}

/// Opens a session whose heartbeats report after this time.
async fn hasty_session(proxy: &Proxy, request_timeout: Duration) -> Arc<dyn Session> {
    let millis = request_timeout.as_millis();
    let backend = backend(&format!("zk://{}/?tick=1ms&request_timeout={millis}ms", proxy.endpoint()));
    // On a busy machine an open may take longer.
    loop {
        if let Ok(session) = backend.open_session(LONG, Clock::boot()).await {
            return session;
        }
    }
}

/// Deletes the node of this hold, as an operator would.
fn delete_node(server: &ZooKeeper, grant: &Grant) {
    let child = queue(server, grant.name()).remove(0);
    assert!(server.delete(&format!("{}/{child}", node(grant.name()))).unwrap());
}

/// A heartbeat that checked every hold through the leader would cost each server of the ensemble 110 bytes of log per
/// hold and tenth of a ttl.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_logs_as_many_bytes_with_a_thousand_holds_as_with_none() {
    const HEARTBEATS: u64 = 5;
    let server = own_server();
    let session = session(&server, LONG).await;
    let (mut held, mut logged) = (Vec::new(), Vec::new());
    for count in [0, 1, 100, 1000] {
        held.extend(hold(&session, count - held.len()).await);
        let before = server.log_bytes().unwrap();
        for _ in 0..HEARTBEATS {
            let heartbeat = bounded(session.renew(&held)).await;
            assert!(
                is_renewed(&heartbeat.session) && heartbeat.holds.iter().all(|(_, hold)| is_renewed(hold))
            );
        }
        logged.push((server.log_bytes().unwrap() - before) / HEARTBEATS);
        println!("{count} holds: {} bytes of log per heartbeat", logged[logged.len() - 1]);
    }
    assert!(logged[0] > 0 && logged.iter().all(|bytes| *bytes == logged[0]), "{logged:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_holds_than_fit_one_request_are_renewed_and_missing_found() {
    const HOLDS: usize = 1100;
    let server = own_server();
    let session = session(&server, LONG).await;
    let held = hold(&session, HOLDS).await;
    let missing = [0, 1, 700, HOLDS - 1].map(|index| held[index].claim());
    for grant in held.iter().filter(|grant| missing.contains(&grant.claim())) {
        delete_node(&server, grant);
    }
    let heartbeat = bounded(session.renew(&held)).await;
    assert!(is_renewed(&heartbeat.session), "{:?}", heartbeat.session);
    assert_eq!(heartbeat.holds.len(), HOLDS);
    for (id, renewal) in heartbeat.holds {
        assert_eq!(matches!(renewal, Renewal::Gone), missing.contains(&id), "{renewal:?}");
    }
}

/// Each missing node once cost a transaction, and the session died with its healthy holds.
#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_missing_nodes_cost_as_many_requests_as_none() {
    const HOLDS: usize = 500;
    const MISSING: usize = 300;
    let server = own_server();
    let session = session(&server, LONG).await;
    let held = hold(&session, HOLDS).await;
    held[..MISSING].iter().for_each(|grant| delete_node(&server, grant));
    let (before, log_before) = (server.metrics().unwrap().packets_received(), server.log_bytes().unwrap());
    let heartbeat = bounded(session.renew(&held)).await;
    let packets = server.metrics().unwrap().packets_received() - before;
    let gone = heartbeat.holds.iter().filter(|(_, renewal)| matches!(renewal, Renewal::Gone)).count();
    let renewed = heartbeat.holds.iter().filter(|(_, renewal)| is_renewed(renewal)).count();
    assert_eq!((gone, renewed), (MISSING, HOLDS - MISSING), "{:?}", heartbeat.session);
    // The reads of the counters, and perhaps a ping.
    assert!(packets <= 6, "{packets} packets");
    let logged = server.log_bytes().unwrap() - log_before;
    assert!(logged < 1000, "{logged} bytes of log");
}

/// For example, the latency of a disk that commits slowly.
#[tokio::test(flavor = "multi_thread")]
async fn late_answers_renew_session_and_holds() {
    let server = own_server();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let session = hasty_session(&proxy, Duration::from_millis(100)).await;
    let held = acquire(&session, &fresh_name()).await;
    let (missing, late_since) = (acquire(&session, &fresh_name()).await, Clock::boot().now());
    proxy.set(Direction::Replies, Flow::Delay(Duration::from_millis(300)));
    delete_node(&server, &missing);
    // Since then, a request was answered that was sent later, and the node of each hold was read.
    let is_late =
        |renewal: &Renewal| matches!(renewal, Renewal::Renewed { armed_at } if *armed_at > late_since);
    let (is_held, is_gone) = (Cell::new(false), Cell::new(false));
    until("late answers count", async || {
        let heartbeat = heartbeat(&session, &[&held, &missing]).await;
        for (id, renewal) in &heartbeat.holds {
            is_held.set(is_held.get() || *id == held.claim() && is_late(renewal));
            is_gone.set(is_gone.get() || *id == missing.claim() && matches!(renewal, Renewal::Gone));
        }
        is_late(&heartbeat.session) && is_held.get() && is_gone.get()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_survives_latency_above_the_heartbeat_timeout() {
    // A busy machine takes a part of the little time that the late answers leave.
    const TTL: Duration = Duration::from_secs(15);
    let server = own_server();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let url = format!("zk://{}/?tick=500ms", proxy.endpoint());
    let client = LockClient::builder(backend(&url)).ttl(TTL).build().await.unwrap();
    let guard = client.lock(fresh_name().as_str()).unwrap().acquire().await.unwrap();
    proxy.set(Direction::Replies, Flow::Delay(TTL / 10));
    // Only the late answers renew it: without them it would end within one ttl.
    let lost = tokio::time::timeout(TTL * 3 / 2, guard.lost()).await;
    assert!(lost.is_err() && guard.is_held(), "{lost:?}");
    proxy.pass();
    guard.release().await.unwrap();
    client.close().await.unwrap();
}

/// Unanswered requests do not pile up.
#[tokio::test(flavor = "multi_thread")]
async fn unanswered_heartbeats_are_bounded() {
    let server = own_server();
    // What the server logs of one. It logs no ping, and no greeting of a client that has given up a connection.
    let answered = quiet_session(&server).await;
    let opened = server.log_bytes().unwrap();
    assert!(is_renewed(&heartbeat(&answered, &[]).await.session));
    let one = server.log_bytes().unwrap() - opened;
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let session = hasty_session(&proxy, Duration::from_millis(20)).await;
    proxy.set(Direction::Replies, Flow::Hold);
    let before = server.log_bytes().unwrap();
    for _ in 0..50 {
        assert!(matches!(heartbeat(&session, &[]).await.session, Renewal::Unknown(_)));
    }
    let logged = server.log_bytes().unwrap() - before;
    assert!(logged <= 15 * one, "{logged} bytes, {one} for each");
    proxy.pass();
    until("it is renewed", async || is_renewed(&heartbeat(&session, &[]).await.session)).await;
}

/// Where answers take longer than the time between two heartbeats, those of a whole ttl are under way.
#[tokio::test(flavor = "multi_thread")]
async fn ten_heartbeats_are_sent_without_an_answer() {
    const UNANSWERED: u64 = 10;
    let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
    let session = session_at(&patient_url(&proxy), LONG).await;
    let sent = || proxy.counts().to_server;
    let opened = sent();
    assert!(is_renewed(&heartbeat(&session, &[]).await.session));
    let (one, before) = (sent() - opened, sent());
    proxy.set(Direction::Replies, Flow::Hold);
    let mut renewing = JoinSet::new();
    for _ in 0..UNANSWERED {
        let session = Arc::clone(&session);
        renewing.spawn(async move { session.renew(&[]).await });
    }
    until("all are sent", async || sent() >= before + UNANSWERED * one).await;
    proxy.pass();
    bounded(renewing.join_all()).await;
}

/// A follower may show old state, but not behind a request that went through the leader.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_through_a_late_follower_finds_what_the_leader_has_deleted() {
    let ensemble = own_ensemble();
    let (leader, follower) = (ensemble.leader().unwrap(), ensemble.follower().unwrap());
    let to_follower = ensemble.member(follower);
    let session = quiet_session(to_follower).await;
    let (held, kept) = (acquire(&session, &fresh_name()).await, acquire(&session, &fresh_name()).await);
    // Connected before the delay: a new connection would be as new as the leader.
    let reader = plain(to_follower).await;
    ensemble.delay(follower, LATE);
    delete_node(ensemble.member(leader), &held);
    assert_eq!(reader.list_children(&node(held.name())).await.unwrap().len(), 1, "the follower is not late");
    let heartbeat = heartbeat(&session, &[&held, &kept]).await;
    assert!(
        matches!(heartbeat.holds[0].1, Renewal::Gone) && is_renewed(&heartbeat.holds[1].1),
        "{heartbeat:?}"
    );
}

/// Otherwise the server would get all of them at once, and none that is current.
#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_connection_are_not_sent_later() {
    const HEARTBEATS: u64 = 6;
    let server = own_server();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (session, name) = (hasty_session(&proxy, Duration::from_millis(20)).await, fresh_name());
    proxy.hold_new();
    proxy.reset();
    for _ in 0..HEARTBEATS {
        assert!(matches!(heartbeat(&session, &[]).await.session, Renewal::Unknown(_)));
        let error = bounded(elections(&session).leader(&name)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    let later = Cell::new(0);
    let (received, _) = spent(&server, async || {
        proxy.pass();
        until("it is renewed", async || {
            later.set(later.get() + 1);
            is_renewed(&heartbeat(&session, &[]).await.session)
        })
        .await;
    })
    .await;
    // A client that has given up a connection greets again.
    assert!(received < later.get() + HEARTBEATS, "{received} packets for {} heartbeats", later.get());
}

/// The request may have reached no leader.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_with_a_lost_reply_extends_no_lease() {
    let (proxy, (clock, ahead)) = (Proxy::start_zookeeper(shared().endpoint()).unwrap(), shifted_clock());
    // Half a tick is a quarter of the ttl.
    let session = backend(&patient_url(&proxy)).open_session(LONG, clock).await.unwrap();
    let armed_at = async || match heartbeat(&session, &[]).await.session {
        Renewal::Renewed { armed_at } => armed_at,
        other => panic!("{other:?}"),
    };
    let first = armed_at().await;
    ahead.store(LONG.as_secs() / 3, SeqCst);
    proxy.swallow_reply(1);
    assert!(matches!(heartbeat(&session, &[]).await.session, Renewal::Unknown(_)));
    ahead.store(LONG.as_secs() * 2 / 3, SeqCst);
    assert!(armed_at().await.since(first) < LONG / 4, "the lost one counts");
}

/// Each of them passes through the leader, like a heartbeat.
#[tokio::test(flavor = "multi_thread")]
async fn answers_to_writes_extend_the_lease() {
    for write in ["release", "proclaim", "record"] {
        let (clock, ahead) = shifted_clock();
        // Half a tick is a quarter of the ttl.
        let session = backend(&shared().url()).open_session(LONG, clock).await.unwrap();
        let first = lead(&session, &fresh_name(), "x").await;
        ahead.store(LONG.as_secs() / 3, SeqCst);
        match write {
            "release" => release(&session, &first).await,
            "proclaim" => assert!(proclaim(&session, &first, "y", 2).await),
            _ => {
                let records = session.records().unwrap();
                assert!(bounded(records.write(&first, "x", LONG)).await.unwrap());
            }
        }
        ahead.store(LONG.as_secs() * 2 / 3, SeqCst);
        let next = acquire(&session, &fresh_name()).await;
        assert!(next.armed_at().since(first.armed_at()) >= LONG / 4, "{write}");
    }
}

/// A lock that is one node is created by a request of its own kind.
#[tokio::test(flavor = "multi_thread")]
async fn create_of_a_single_node_extends_the_lease() {
    let (clock, ahead) = shifted_clock();
    // Half a tick is a quarter of the ttl.
    let url = format!("{}/?form=single", shared().url());
    let session = backend(&url).open_session(LONG, clock).await.unwrap();
    let first = acquire(&session, &fresh_name()).await;
    for third in [1, 2] {
        ahead.store(LONG.as_secs() / 3 * third, SeqCst);
        let next = acquire(&session, &fresh_name()).await;
        // What was created a third of the ttl ago counts.
        assert_eq!(next.armed_at().since(first.armed_at()) >= LONG / 4, third == 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_counts_from_the_sending_of_a_create() {
    let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
    let session = session_at(&format!("{}&tick=1us", patient_url(&proxy)), LONG).await;
    let claim = held_create(&proxy, &session, &fresh_name()).await;
    let still_held = Clock::boot().now();
    proxy.pass();
    let held = claim.granted().await;
    match heartbeat(&session, &[&held]).await.session {
        Renewal::Renewed { armed_at } => {
            assert!(armed_at <= still_held, "{:?} late", armed_at.since(still_held));
        }
        other => panic!("{other:?}"),
    }
    release(&session, &held).await;
}

/// The server grants ten minutes at most: the margin is a quarter of these, and the session ends with them.
#[tokio::test(flavor = "multi_thread")]
async fn shortened_session_lives_by_the_ttl_that_was_granted() {
    let (asked, (clock, ahead)) = (Duration::from_secs(20 * 60), shifted_clock());
    let session = backend(&shared().url()).open_session(asked, clock).await.unwrap();
    let granted = session.ttl();
    assert_eq!(granted, asked / 2);
    let first = acquire(&session, &fresh_name()).await;
    ahead.store(granted.as_secs() / 3, SeqCst);
    heartbeat(&session, &[]).await;
    assert!(is_renewed(&heartbeat(&session, &[]).await.session));
    let next = acquire(&session, &fresh_name()).await;
    assert!(next.armed_at() > first.armed_at(), "the margin is that of the ttl asked for");
    ahead.store(granted.as_secs() * 3 / 2, SeqCst);
    bounded(session.lost()).await;
}

/// What an earlier heartbeat has found proves nothing later.
#[tokio::test(flavor = "multi_thread")]
async fn result_of_a_heartbeat_is_reported_once() {
    let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
    let session = session_at(&url_through(&proxy), LONG).await;
    let held = acquire(&session, &fresh_name()).await;
    until("it is renewed", async || is_renewed(&heartbeat(&session, &[&held]).await.holds[0].1)).await;
    proxy.set(Direction::Replies, Flow::Hold);
    let unanswered = heartbeat(&session, &[&held]).await;
    assert!(matches!(unanswered.session, Renewal::Unknown(_)), "{unanswered:?}");
    assert!(matches!(unanswered.holds[..], [(_, Renewal::Unknown(_))]), "{unanswered:?}");
    proxy.pass();
}

/// Otherwise a heartbeat would take as many round trips as there are holds.
#[tokio::test(flavor = "multi_thread")]
async fn holds_with_recurring_names_are_looked_for_at_once() {
    let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
    let session = session_at(&format!("{}&form=bare", patient_url(&proxy)), LONG).await;
    let held = hold(&session, 3).await;
    let paths: Vec<String> = held.iter().map(|grant| format!("{}/", node(grant.name()))).collect();
    // The check before these names the client's own node.
    proxy.hold_requests_from("/lockkit/test-");
    let renewing = tokio::spawn({
        let (session, held) = (Arc::clone(&session), held.clone());
        async move { session.renew(&held).await }
    });
    until("all are sent", async || paths.iter().all(|path| proxy.holds(path))).await;
    proxy.pass();
    let renewals = bounded(renewing).await.unwrap();
    assert!(is_renewed(&renewals.session), "{renewals:?}");
}
