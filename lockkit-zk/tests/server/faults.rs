//! Faults of servers and networks, and actions of operators.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockkit_core::{
    BootInstant, Clock, ErrorKind, LockClient,
    backend::{Acquired, Backend, Loss, Renewal},
};
use lockkit_testbed::{Direction, Flow, Proxy, ZooKeeper};

use crate::common::{
    BEFORE_A_RECHECK, HANG, LONG, SHORT, acquire, backend, bounded, enqueued, fresh_name, heartbeat,
    is_entry_gone, is_gave_up, is_renewed, node, own_server, patient_url, queue, refusal, release, session,
    session_at, shared, sooner_than, start, through_proxy, try_acquire, until, url_through,
};

/// Returns the session that owns the only node below this path.
fn owner_of(server: &ZooKeeper, below: &str) -> i64 {
    let ephemerals = server.ephemerals().unwrap();
    let (session, _) =
        ephemerals.iter().find(|(_, paths)| paths.iter().any(|path| path.starts_with(below))).unwrap();
    *session
}

#[tokio::test(flavor = "multi_thread")]
async fn holder_and_waiter_survive_a_restart_of_the_server() {
    let mut server = ZooKeeper::start().unwrap();
    let (one, other, name) = (session(&server, LONG).await, session(&server, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let waiting = enqueued(&other, &name).await;
    server.kill().unwrap();
    let late = start(&other, &fresh_name());
    assert!(matches!(heartbeat(&one, &[&held]).await.session, Renewal::Unknown(_)));
    server.restart().unwrap();
    until("the hold is renewed", async || is_renewed(&heartbeat(&one, &[&held]).await.holds[0].1)).await;
    assert!(waiting.is_waiting());
    let late = late.granted().await;
    release(&one, &held).await;
    let grant = waiting.granted().await;
    assert!(grant.token() > held.token());
    release(&other, &grant).await;
    release(&other, &late).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_session_is_reported_and_ends_holds_and_waits() {
    let (server, name) = (own_server(), fresh_name());
    let session = session(&server, LONG).await;
    let held = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    let owner = owner_of(&server, &node(&name));
    // Its client reconnects at once, perhaps before the client that takes the session over to end it.
    until("it is ended", async || {
        server.end_session(owner).is_ok() || !server.ephemerals().unwrap().contains_key(&owner)
    })
    .await;
    // If the client comes back to a server that closes it without an answer, only its next ping finds the end.
    let lost = tokio::time::timeout(LONG, session.lost()).await;
    assert_eq!(lost.expect("the end is not reported"), Loss::Session);
    assert_eq!(bounded(session.lost()).await, Loss::Session);
    assert!(is_entry_gone(&waiting.ends().await));
    let heartbeat = heartbeat(&session, &[&held]).await;
    assert!(matches!(heartbeat.session, Renewal::Gone), "{heartbeat:?}");
    assert!(matches!(heartbeat.holds[..], [(_, Renewal::Gone)]), "{heartbeat:?}");
    bounded(session.close()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn end_of_idle_session_is_reported_before_its_next_heartbeat() {
    let server = own_server();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    sooner_than(BEFORE_A_RECHECK, async || {
        let session = session_at(&url_through(&proxy), LONG).await;
        let owner = owner_of(&server, "/lockkit/:clients/");
        // Its client must not reconnect while another one takes the session over to end it.
        proxy.refuse();
        server.end_session(owner).unwrap();
        proxy.pass();
        assert_eq!(bounded(session.lost()).await, Loss::Session);
    })
    .await;
}

/// The client relies on its lock no longer than the server keeps it.
#[tokio::test(flavor = "multi_thread")]
async fn disconnected_holder_loses_its_lock_before_the_next_grant() {
    let server = own_server();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let builder = |url: &str, ttl| LockClient::builder(backend(url)).ttl(ttl);
    // The margin is a share of the ttl.
    let cut_off = builder(&format!("zk://{}", proxy.endpoint()), 2 * SHORT).build().await.unwrap();
    let next = builder(&server.url(), LONG).build().await.unwrap();
    let name = fresh_name();
    let held = Arc::new(cut_off.lock(name.as_str()).unwrap().acquire().await.unwrap());
    let waiting = tokio::spawn({
        let (lock, other) = (next.lock(name.as_str()).unwrap(), Arc::clone(&held));
        async move {
            let granted = lock.acquire().await.unwrap();
            // The state of the other hold at this moment.
            (other.is_held(), granted)
        }
    });
    until("it waits", async || queue(&server, &name).len() == 2).await;
    proxy.set(Direction::Requests, Flow::Hold);
    proxy.set(Direction::Replies, Flow::Hold);
    bounded(held.lost()).await;
    let (were_two, granted) = bounded(waiting).await.unwrap();
    assert!(!were_two, "the next was granted first");
    assert!(granted.token() > held.token());
    proxy.pass();
    granted.release().await.unwrap();
}

/// The client crate keeps pinging.
#[tokio::test(flavor = "multi_thread")]
async fn session_without_heartbeats_ends_while_its_client_still_pings() {
    let (server, name) = (shared(), fresh_name());
    let (silent, alive) = (session(server, SHORT).await, session(server, LONG).await);
    let held = acquire(&silent, &name).await;
    let next = enqueued(&alive, &name).await.granted().await;
    assert!(next.token() > held.token());
    assert_eq!(bounded(silent.lost()).await, Loss::Session);
    release(&alive, &next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_to_a_frozen_server_end_in_time() {
    let server = own_server();
    let url = format!("{}/?request_timeout=4s", server.url());
    let (session, name) = (session_at(&url, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    server.pause().unwrap();
    let heartbeat = heartbeat(&session, &[&held]).await;
    assert!(matches!(heartbeat.session, Renewal::Unknown(_)), "{heartbeat:?}");
    assert!(matches!(heartbeat.holds[..], [(_, Renewal::Unknown(_))]), "{heartbeat:?}");
    // The first may end early, with the connection that the client gives up. The second waits for another one.
    for _ in 0..2 {
        // Well before the session is over.
        let released = tokio::time::timeout(HANG / 2, session.release(&held)).await;
        let error = released.expect("without a bound").unwrap_err();
        assert_eq!((error.kind(), error.lock()), (ErrorKind::Unavailable, Some(&name)));
    }
    let pending = start(&session, &fresh_name());
    let error = bounded(session.close()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    for claim in [waiting, pending] {
        assert_eq!(claim.ends().await.unwrap_err().kind(), ErrorKind::Closed);
    }
    server.resume().unwrap();
    bounded(session.close()).await.unwrap();
    assert!(server.ephemerals().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn try_without_connection_is_unavailable_and_leaves_nothing() {
    let (server, name) = (shared(), fresh_name());
    let (proxy, session) = through_proxy(server).await;
    release(&session, &acquire(&session, &name).await).await;
    // A new connection comes into being, and remains silent.
    proxy.hold_new();
    proxy.reset();
    until("the client has noticed", async || {
        matches!(heartbeat(&session, &[]).await.session, Renewal::Unknown(_))
    })
    .await;
    let error = crate::common::try_acquire(&session, &name).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Unavailable, Some(&name)));
    proxy.pass();
    until("it is back", async || is_renewed(&heartbeat(&session, &[]).await.session)).await;
    assert_eq!(queue(server, &name), [""; 0]);
}

/// A heartbeat proves the lease since the sending, not the answer, of the request before it.
#[tokio::test(flavor = "multi_thread")]
async fn lease_counts_from_the_sending_of_a_heartbeat() {
    let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
    let session = session_at(&format!("{}&tick=1us", patient_url(&proxy)), LONG).await;
    let clock = Clock::boot();
    let opened = clock.now();
    proxy.set(Direction::Requests, Flow::Hold);
    let renewing = tokio::spawn({
        let session = session.clone();
        async move { session.renew(&[]).await }
    });
    // Requests name a node, pings do not.
    until("the heartbeat is sent", async || proxy.holds("/")).await;
    let still_held = clock.now();
    proxy.pass();
    assert!(is_renewed(&bounded(renewing).await.unwrap().session));
    match heartbeat(&session, &[]).await.session {
        Renewal::Renewed { armed_at } => assert!(opened <= armed_at && armed_at <= still_held),
        other => panic!("{other:?}"),
    }
}

/// A follower that has lost its leader still answers reads, and a leader that has lost its quorum also syncs.
#[tokio::test(flavor = "multi_thread")]
async fn answered_reads_do_not_renew_the_lease() {
    let (server, name, clock) = (shared(), fresh_name(), Clock::boot());
    let at = |options| format!("{}/?form=bare{options}", server.url());
    let (other, session) = (session_at(&at(""), LONG).await, session_at(&at("&tick=1us"), LONG).await);
    let (held, busy) = (acquire(&other, &name).await, fresh_name());
    let busy_hold = acquire(&other, &busy).await;
    assert!(is_gave_up(&try_acquire(&session, &busy).await));
    let waiting = enqueued(&session, &name).await;
    let enqueued_at = clock.now();
    // By reads behind a sync, because the lock was busy a moment ago.
    for _ in 0..3 {
        assert!(is_gave_up(&try_acquire(&session, &busy).await));
    }
    release(&other, &held).await;
    // By a list and a read of its node, one after the other.
    let grant = waiting.granted().await;
    assert!(grant.armed_at() <= enqueued_at, "{:?} late", grant.armed_at().since(enqueued_at));
    release(&session, &grant).await;
    release(&other, &busy_hold).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn first_lease_counts_from_the_sending_of_the_open() {
    let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
    proxy.set(Direction::Replies, Flow::Hold);
    let url = patient_url(&proxy);
    let opening = tokio::spawn(async move { session_at(&url, LONG).await });
    until("it is asked for", async || proxy.counts().to_server > 0).await;
    let asked = Clock::boot().now();
    proxy.pass();
    let session = bounded(opening).await.unwrap();
    // Within half a tick, nothing else counts.
    let held = acquire(&session, &fresh_name()).await;
    assert!(held.armed_at() <= asked, "{:?} late", held.armed_at().since(asked));
    release(&session, &held).await;
}

/// The machine sleeps for an hour before each reading of its clock.
#[tokio::test(flavor = "multi_thread")]
async fn session_that_ends_while_it_is_opened_is_unavailable() {
    let hours = AtomicU64::new(0);
    let next = move || Duration::from_secs(3600 * hours.fetch_add(1, Ordering::SeqCst));
    let clock = Clock::new(move || BootInstant::from_start(next()));
    let opened = bounded(backend(&shared().url()).open_session(LONG, clock)).await;
    // `Closed` would be wrong: nobody has closed the client.
    assert_eq!(opened.err().unwrap().kind(), ErrorKind::Unavailable);
}

/// The answer comes byte by byte: a client gives up a connection that is silent, and its requests with it.
#[tokio::test(flavor = "multi_thread")]
async fn session_whose_own_node_is_not_confirmed_is_unavailable() {
    const OWN_NODES: &str = "/lockkit/:clients";
    let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
    proxy.hold_requests_from(OWN_NODES);
    let url = url_through(&proxy);
    let opening = tokio::spawn(async move { refusal(&url).await });
    until("its own node is under way", async || proxy.holds(OWN_NODES)).await;
    // The reason is asked for over another connection, where a first byte alone would be taken for another protocol.
    proxy.hold_new();
    proxy.set(Direction::Replies, Flow::Trickle { bytes: 1, every: Duration::from_secs(1) });
    proxy.set(Direction::Requests, Flow::Pass);
    assert_eq!(opening.await.unwrap().kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_server_is_unavailable() {
    for endpoint in ["127.0.0.1:1", "no-such-host.invalid:2181"] {
        let url = format!("zk://{endpoint}");
        let error = refusal(&url).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let backend = backend(&url);
        let error = bounded(backend.admin().unwrap().inspect(&fresh_name())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_of_several_is_enough() {
    let server = shared();
    let url = format!("zk://127.0.0.1:1,{},127.0.0.1:2", server.endpoint());
    let (session, name) = (session_at(&url, LONG).await, fresh_name());
    release(&session, &acquire(&session, &name).await).await;
    assert!(is_renewed(&heartbeat(&session, &[]).await.session));
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_session_leaves_nothing_and_grants_nothing() {
    let (server, name) = (own_server(), fresh_name());
    let session = session(&server, LONG).await;
    let _held = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    bounded(session.close()).await.unwrap();
    bounded(session.close()).await.unwrap();
    assert!(server.ephemerals().unwrap().is_empty());
    // They go with the connection, just after the answer.
    until("no watch is left", async || server.watches().unwrap() == 0).await;
    assert_eq!(waiting.ends().await.unwrap_err().kind(), ErrorKind::Closed);
    let end = start(&session, &name).ends().await;
    assert!(!matches!(end, Ok(Acquired::Granted(_))), "{end:?}");
    assert_eq!(end.unwrap_err().kind(), ErrorKind::Closed);
}

/// Its guards may outlive it, and rely on their holds until the deadline.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_session_ends_with_its_lease_and_not_before() {
    let (server, name, clock) = (shared(), fresh_name(), Clock::boot());
    let (dropped, other) = (session(server, SHORT).await, session(server, LONG).await);
    let asked = clock.now();
    let held = acquire(&dropped, &name).await;
    let ttl = dropped.ttl();
    drop(dropped);
    let next = acquire(&other, &name).await;
    assert!(clock.now() >= held.armed_at().after(ttl), "{:?} after the claim", clock.now().since(asked));
    release(&other, &next).await;
}
