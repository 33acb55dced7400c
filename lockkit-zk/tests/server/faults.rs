//! What servers, networks and operators do.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use lockkit_core::{
    BootInstant, Clock, ErrorKind, LockClient, TimeSource,
    backend::{Acquired, Backend, Loss, Renewal},
};
use lockkit_testbed::{Direction, Flow, Proxy, ZooKeeper};

use crate::common::{
    BEFORE_A_LOOK, HANG, LONG, SHORT, acquire, backend, beat, bounded, enqueued, fresh_name, is_entry_gone,
    is_renewed, mark, node, queue, refusal, release, session, session_at, shared, sooner_than, start, until,
    url_through, watching,
};

/// The session that owns the only node below this one.
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
    assert!(matches!(beat(&one, &[&held]).await.session, Renewal::Unknown(_)));
    server.restart().unwrap();
    until("the hold is renewed", async || is_renewed(&beat(&one, &[&held]).await.holds[0].1)).await;
    assert!(waiting.is_waiting());
    let late = late.granted().await;
    release(&one, &held).await;
    let grant = waiting.granted().await;
    assert!(grant.token() > held.token());
    release(&other, &grant).await;
    release(&other, &late).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_ended_is_told_and_ends_everything() {
    let (server, name) = (ZooKeeper::start().unwrap(), fresh_name());
    let session = session(&server, LONG).await;
    let held = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    let owner = owner_of(&server, &node(&name));
    // Its client comes back at once, and may be faster than the one that takes it over.
    until("it is ended", async || {
        server.end_session(owner).is_ok() || !server.ephemerals().unwrap().contains_key(&owner)
    })
    .await;
    assert_eq!(bounded(session.lost()).await, Loss::Session);
    assert_eq!(bounded(session.lost()).await, Loss::Session);
    assert!(is_entry_gone(&waiting.ends().await));
    let beat = beat(&session, &[&held]).await;
    assert!(matches!(beat.session, Renewal::Gone), "{beat:?}");
    assert!(matches!(beat.holds[..], [(_, Renewal::Gone)]), "{beat:?}");
    bounded(session.close()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_session_that_was_ended_is_told_before_its_next_heartbeat() {
    let server = ZooKeeper::start().unwrap();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    sooner_than(BEFORE_A_LOOK, async || {
        let session = session_at(&url_through(&proxy), LONG).await;
        let owner = owner_of(&server, "/lockkit/:clients/");
        // Its client must not come back while somebody else takes the session over to end it.
        proxy.refuse();
        server.end_session(owner).unwrap();
        proxy.pass();
        assert_eq!(bounded(session.lost()).await, Loss::Session);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_who_deletes_the_holders_node_ends_that_hold_alone() {
    let server = shared();
    for form in ["curator", "single"] {
        let url = format!("{}/?form={form}", server.url());
        let (session, other) = (session_at(&url, LONG).await, session_at(&url, LONG).await);
        let (name, kept_name) = (fresh_name(), fresh_name());
        let deleted = acquire(&session, &name).await;
        let kept = acquire(&session, &kept_name).await;
        let deleted_node = match form {
            "single" => node(&name),
            _ => format!("{}/{}", node(&name), queue(server, &name)[0]),
        };
        assert!(server.delete(&deleted_node).unwrap());
        // Of the single form, where the next one's node has the same name.
        let next = acquire(&other, &name).await;
        let beat = beat(&session, &[&deleted, &kept]).await;
        assert!(is_renewed(&beat.session), "{beat:?}");
        for (id, renewal) in beat.holds {
            assert_eq!(matches!(renewal, Renewal::Gone), id == deleted.claim(), "{form}: {renewal:?}");
        }
        release(&session, &deleted).await;
        assert!(
            is_renewed(&crate::common::beat(&other, &[&next]).await.holds[0].1),
            "the newer grant is gone"
        );
        release(&other, &next).await;
        release(&session, &kept).await;
    }
}

/// Numbers begin anew with the directory, and in the bare form so do names.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_has_the_name_of_a_deleted_one_is_neither_kept_nor_granted_nor_deleted_for_it() {
    let server = ZooKeeper::start().unwrap();
    let url = format!("{}/?form=bare", server.url());
    let (session, other, name) = (session_at(&url, LONG).await, session_at(&url, LONG).await, fresh_name());
    let deleted = acquire(&session, &name).await;
    let waiting = watching(&server, &session, &name).await;
    let before = queue(&server, &name);
    // The waiter's goes first, or the end of the holder's would be its turn.
    for number in [1, 0] {
        assert!(server.delete(&format!("{}/lock-{number:010}", node(&name))).unwrap());
    }
    assert!(is_entry_gone(&waiting.ends().await));
    assert!(server.delete(&node(&name)).unwrap());
    let next = acquire(&other, &name).await;
    assert!(before.contains(&queue(&server, &name)[0]), "the name is another one");
    let told = beat(&session, &[&deleted]).await;
    assert!(is_renewed(&told.session) && matches!(told.holds[0].1, Renewal::Gone), "{told:?}");
    release(&session, &deleted).await;
    assert!(is_renewed(&beat(&other, &[&next]).await.holds[0].1), "the newer grant is gone");
    release(&other, &next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_who_deletes_a_waiters_node_ends_its_wait() {
    let (server, name) = (shared(), fresh_name());
    let session = session(server, SHORT).await;
    let held = acquire(&session, &name).await;
    let deleted = enqueued(&session, &name).await;
    let behind = enqueued(&session, &name).await;
    let child = queue(server, &name).into_iter().find(|child| child.contains(&mark(&deleted.claim))).unwrap();
    assert!(server.delete(&format!("{}/{child}", node(&name))).unwrap());
    assert!(is_entry_gone(&deleted.ends().await));
    release(&session, &held).await;
    release(&session, &behind.granted().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_node_has_gone_is_not_granted_when_its_turn_comes() {
    let (server, name) = (ZooKeeper::start().unwrap(), fresh_name());
    // Its next look is 9 s away, so it learns nothing before it is woken.
    let session = session(&server, LONG).await;
    let held = acquire(&session, &name).await;
    let deleted = watching(&server, &session, &name).await;
    let child =
        queue(&server, &name).into_iter().find(|child| child.contains(&mark(&deleted.claim))).unwrap();
    assert!(server.delete(&format!("{}/{child}", node(&name))).unwrap());
    release(&session, &held).await;
    assert!(is_entry_gone(&deleted.ends().await));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_who_deletes_the_clients_own_node_does_no_harm() {
    let server = ZooKeeper::start().unwrap();
    let session = session(&server, LONG).await;
    for directory_too in [false, true] {
        let own = server.children("/lockkit/:clients").unwrap().remove(0);
        assert!(server.delete(&format!("/lockkit/:clients/{own}")).unwrap());
        if directory_too {
            assert!(server.delete("/lockkit/:clients").unwrap());
        }
        assert!(is_renewed(&beat(&session, &[]).await.session));
        assert_eq!(server.children("/lockkit/:clients").unwrap(), [own]);
    }
}

/// The client goes on believing in its lock no longer than the server keeps it.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_cut_off_stops_believing_before_the_next_is_granted() {
    let server = ZooKeeper::start().unwrap();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let builder = |url: &str, ttl| LockClient::builder(backend(url)).ttl(ttl);
    // What the client is sooner by is a share of its ttl.
    let cut_off = builder(&format!("zk://{}", proxy.endpoint()), 2 * SHORT).build().await.unwrap();
    let next = builder(&server.url(), LONG).build().await.unwrap();
    let name = fresh_name();
    let held = cut_off.lock(name.as_str()).unwrap().acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = next.lock(name.as_str()).unwrap();
        async move { lock.acquire().await }
    });
    until("it waits", async || queue(&server, &name).len() == 2).await;
    proxy.set(Direction::Requests, Flow::Hold);
    proxy.set(Direction::Replies, Flow::Hold);
    bounded(held.lost()).await;
    assert!(!waiting.is_finished(), "the next was granted first");
    let granted = bounded(waiting).await.unwrap().unwrap();
    assert!(granted.token() > held.token());
    proxy.pass();
    granted.release().await.unwrap();
}

/// The client crate goes on pinging.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_nobody_renews_ends_although_its_client_is_well() {
    let (server, name) = (shared(), fresh_name());
    let (silent, alive) = (session(server, SHORT).await, session(server, LONG).await);
    let held = acquire(&silent, &name).await;
    let next = enqueued(&alive, &name).await.granted().await;
    assert!(next.token() > held.token());
    assert_eq!(bounded(silent.lost()).await, Loss::Session);
    release(&alive, &next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_bounds_every_call() {
    let server = ZooKeeper::start().unwrap();
    let url = format!("{}/?request_timeout=1500ms", server.url());
    let (session, name) = (session_at(&url, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    server.pause().unwrap();
    let beat = beat(&session, &[&held]).await;
    assert!(matches!(beat.session, Renewal::Unknown(_)), "{beat:?}");
    assert!(matches!(beat.holds[..], [(_, Renewal::Unknown(_))]), "{beat:?}");
    // Long before the session is over.
    let released = tokio::time::timeout(HANG / 4, session.release(&held)).await;
    let error = released.expect("without a bound").unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Unavailable, Some(&name)));
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
async fn a_try_without_a_connection_is_unavailable_and_leaves_nothing() {
    let server = shared();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (session, name) = (session_at(&url_through(&proxy), LONG).await, fresh_name());
    release(&session, &acquire(&session, &name).await).await;
    proxy.refuse();
    until("the client has noticed", async || {
        matches!(beat(&session, &[]).await.session, Renewal::Unknown(_))
    })
    .await;
    let error = crate::common::try_acquire(&session, &name).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Unavailable, Some(&name)));
    proxy.pass();
    until("it is back", async || is_renewed(&beat(&session, &[]).await.session)).await;
    assert_eq!(queue(server, &name), [""; 0]);
}

/// A beat proves the time from the request before it on, and that one's time is when it was sent, not when it was answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_lifetime_counts_from_the_sending_of_a_beat() {
    let server = ZooKeeper::start().unwrap();
    let session = session_at(&format!("{}/?tick=1us", server.url()), LONG).await;
    let clock = Clock::boot();
    let opened = clock.now();
    server.pause().unwrap();
    let renewing = tokio::spawn({
        let session = session.clone();
        async move { session.renew(&[]).await }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let still_frozen = clock.now();
    server.resume().unwrap();
    assert!(is_renewed(&bounded(renewing).await.unwrap().session));
    match beat(&session, &[]).await.session {
        Renewal::Renewed { armed_at } => assert!(opened <= armed_at && armed_at <= still_frozen),
        other => panic!("{other:?}"),
    }
}

/// A follower that has lost its leader goes on answering them.
#[tokio::test(flavor = "multi_thread")]
async fn reads_that_are_answered_renew_no_lifetime() {
    let (server, name, clock) = (shared(), fresh_name(), Clock::boot());
    let at = |options| format!("{}/?form=bare{options}", server.url());
    let (other, session) = (session_at(&at(""), LONG).await, session_at(&at("&tick=1us"), LONG).await);
    let held = acquire(&other, &name).await;
    let waiting = enqueued(&session, &name).await;
    let enqueued_at = clock.now();
    release(&other, &held).await;
    // By a list and by a look at its node, one after the other.
    let grant = waiting.granted().await;
    assert!(grant.armed_at() <= enqueued_at, "{:?} late", grant.armed_at().since(enqueued_at));
    release(&session, &grant).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_lifetime_counts_from_the_sending_of_the_open() {
    let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
    proxy.set(Direction::Replies, Flow::Hold);
    let url = format!("zk://{}", proxy.endpoint());
    let opening = tokio::spawn(async move { session_at(&url, LONG).await });
    until("it is asked for", async || proxy.counts().to_server > 0).await;
    let asked = Clock::boot().now();
    proxy.pass();
    let session = bounded(opening).await.unwrap();
    // Less than half a tick later nothing else counts.
    let held = acquire(&session, &fresh_name()).await;
    assert!(held.armed_at() <= asked, "{:?} late", held.armed_at().since(asked));
    release(&session, &held).await;
}

/// A clock of a machine that sleeps for an hour before each look at it.
struct Sleepy(AtomicU64);

impl TimeSource for Sleepy {
    fn now(&self) -> BootInstant {
        BootInstant::from_start(Duration::from_secs(3600 * self.0.fetch_add(1, Ordering::SeqCst)))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn session_that_ends_while_it_is_opened_is_unavailable() {
    let clock = Clock::new(Sleepy(AtomicU64::new(0)));
    let opened = bounded(backend(&shared().url()).open_session(LONG, clock)).await;
    // Nobody has closed a client.
    assert_eq!(opened.err().unwrap().kind(), ErrorKind::Unavailable);
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
    assert!(is_renewed(&beat(&session, &[]).await.session));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_session_leaves_nothing_and_grants_nothing() {
    let (server, name) = (ZooKeeper::start().unwrap(), fresh_name());
    let session = session(&server, LONG).await;
    let _held = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    bounded(session.close()).await.unwrap();
    bounded(session.close()).await.unwrap();
    assert!(server.ephemerals().unwrap().is_empty());
    assert_eq!(server.watches().unwrap(), 0);
    assert_eq!(waiting.ends().await.unwrap_err().kind(), ErrorKind::Closed);
    let end = start(&session, &name).ends().await;
    assert!(!matches!(end, Ok(Acquired::Granted(_))), "{end:?}");
    assert_eq!(end.unwrap_err().kind(), ErrorKind::Closed);
}

/// Guards may outlive it, and believe in their holds until the deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_dropped_ends_when_its_lifetime_does_and_not_before() {
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
