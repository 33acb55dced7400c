//! Claims through the Lock RPC at a scripted server, with a paused clock.

use std::{sync::Arc, time::Duration};

use lockkit_conformance::direct::{
    PendingClaim, acquire, bounded, fresh_name, granted, is_gave_up, is_renewed, release, start, try_acquire,
};
use lockkit_core::{
    Clock, ErrorKind, LockName,
    backend::{ClaimId, Renewal, Session},
};
use tokio::time::Instant;
use tonic::Code;

use super::{RpcClaim, RpcSession};
use crate::{
    call::Server,
    client::{
        Client,
        scripted::{Fate, Script},
    },
    lease::Lease,
    session::tests::{REQUEST, TTL, after_requests, busy, config, first, foreign, server, times},
};

async fn open(script: &Script) -> Arc<RpcSession> {
    let layout = config(1).form(crate::Form::Rpc).layout();
    Arc::new(RpcSession::open(server(script, 1), layout, TTL, Clock::tokio()).await.unwrap())
}

pub(super) async fn scripted() -> (Script, Arc<dyn Session>) {
    let script = Script::default();
    let session = open(&script).await;
    (script, session)
}

/// Starts a claim behind a foreign key; its RPC is not answered.
fn unanswered_waiter(script: &Script, session: &Arc<dyn Session>, name: &LockName) -> PendingClaim {
    script.put(&foreign(name), "");
    script.rule(|call| if call.is("Lock") { Fate::Unanswered } else { Fate::Served });
    start(session, name)
}

async fn gives_up_at_once(waiting: PendingClaim) {
    let since = Instant::now();
    waiting.control.give_up();
    assert!(is_gave_up(&waiting.ends().await));
    assert_eq!(since.elapsed(), Duration::ZERO);
}

/// Nobody renews its lease any more, so its key goes with that. A close has nothing left to revoke.
#[tokio::test(start_paused = true)]
async fn claim_whose_withdrawal_is_refused_is_neither_renewed_nor_revoked_again() {
    let (script, session) = scripted().await;
    script.rule(|call| match &*call.method {
        "Lock" => Fate::Unanswered,
        "LeaseRevoke" => Fate::Refused(Code::PermissionDenied, "etcdserver: permission denied"),
        _ => Fate::Served,
    });
    let waiting = start(&session, &fresh_name());
    after_requests(&script, "Lock", 1).await;
    assert!(is_renewed(&session.renew(&[]).await.session));
    assert_eq!(script.count("LeaseKeepAlive"), 1);
    gives_up_at_once(waiting).await;
    session.renew(&[]).await;
    assert_eq!(script.count("LeaseKeepAlive"), 1);
    script.take_calls();
    bounded(session.close()).await.unwrap();
    assert_eq!(script.count("LeaseRevoke"), 0);
}

#[tokio::test(start_paused = true)]
async fn withdrawal_is_retried_with_growing_pauses() {
    let (script, session) = scripted().await;
    let name = fresh_name();
    let waiting = unanswered_waiter(&script, &session, &name);
    after_requests(&script, "Lock", 1).await;
    script.rule(busy("LeaseRevoke"));
    let since = Instant::now();
    waiting.control.give_up();
    after_requests(&script, "LeaseRevoke", 9).await;
    assert!(since.elapsed() > Duration::from_secs(3), "{:?}", since.elapsed());
    script.serve();
    assert!(is_gave_up(&waiting.ends().await));
    assert_eq!((script.leases(), script.keys("lockkit/")), (0, vec![foreign(&name)]));
}

/// Each such withdrawal would keep a task, and the place of a waiter. Its key, renewed by heartbeats, would block others.
#[tokio::test(start_paused = true)]
async fn withdrawal_that_is_never_answered_ends_and_its_lease_is_not_renewed() {
    let script = Script::default();
    let queue = open(&script).await;
    let session: Arc<dyn Session> = queue.clone();
    let waiting = unanswered_waiter(&script, &session, &fresh_name());
    after_requests(&script, "Lock", 1).await;
    session.renew(&[]).await;
    assert_eq!(script.count("LeaseKeepAlive"), 1);
    script.rule(busy("LeaseRevoke"));
    waiting.control.give_up();
    after_requests(&script, "LeaseRevoke", 1).await;
    session.renew(&[]).await;
    assert_eq!(script.count("LeaseKeepAlive"), 1);
    tokio::time::sleep(TTL).await;
    assert!(waiting.is_waiting());
    tokio::time::sleep(2 * REQUEST).await;
    assert!(is_gave_up(&waiting.ends().await));
    assert!(queue.table().is_empty());
}

/// Without a leader no lease expires, and a new leader gives each lease its whole ttl again.
#[tokio::test(start_paused = true)]
async fn withdrawal_that_an_outage_prevents_is_answered_after_it() {
    let script = Script::default();
    let queue = open(&script).await;
    let session: Arc<dyn Session> = queue.clone();
    let waiting = unanswered_waiter(&script, &session, &fresh_name());
    after_requests(&script, "Lock", 1).await;
    script.rule(|_| Fate::Lost);
    waiting.control.give_up();
    let since = Instant::now();
    while since.elapsed() < TTL + 3 * REQUEST {
        session.renew(&[]).await;
        tokio::time::sleep(TTL / 3).await;
    }
    // The first answer comes long after the outage has begun.
    script.rule(busy("LeaseRevoke"));
    session.renew(&[]).await;
    tokio::time::sleep(TTL / 2).await;
    assert!(waiting.is_waiting() && queue.table().len() == 1);
    script.serve();
    assert!(is_gave_up(&waiting.ends().await));
    assert_eq!(script.leases(), 0);
}

/// Every heartbeat would look at it, and the close would revoke its lease.
#[tokio::test(start_paused = true)]
async fn release_that_is_never_answered_is_forgotten_when_the_lease_must_have_expired() {
    let script = Script::default();
    let queue = open(&script).await;
    let session: Arc<dyn Session> = queue.clone();
    let held = acquire(&session, &fresh_name()).await;
    script.rule(busy("LeaseRevoke"));
    session.release(&held).await.unwrap_err();
    // As a heartbeat that was about to be sent when the release began.
    session.renew(&[held]).await;
    assert_eq!(script.count("LeaseKeepAlive"), 0);
    // A heartbeat that was under way may have renewed it.
    tokio::time::sleep(TTL + REQUEST / 2).await;
    session.renew(&[]).await;
    assert_eq!(queue.table().len(), 1);
    tokio::time::sleep(2 * REQUEST).await;
    session.renew(&[]).await;
    assert!(queue.table().is_empty());
}

/// Its reply is lost then. The claim starts again with another lease.
#[tokio::test(start_paused = true)]
async fn rpc_of_the_first_claim_may_be_silent_for_a_second() {
    let (script, session) = scripted().await;
    let name = fresh_name();
    script.take_calls();
    script.rule(first(1, "Lock", Fate::Unanswered));
    let since = Instant::now();
    let held = acquire(&session, &name).await;
    let leases = times(&script, "LeaseGrant", since);
    // A first look after 0.1 s, a second one a second later, and the pause of a retry.
    let bounds = Duration::from_millis(1_150)..=Duration::from_millis(1_210);
    assert!(leases.len() == 2 && bounds.contains(&leases[1]), "{leases:?}");
    release(&session, &held).await;
    assert_eq!(script.leases(), 0);
}

/// A queued claim may be silent for as long as it waits.
#[tokio::test(start_paused = true)]
async fn rpc_of_a_waiter_may_be_silent_for_ever() {
    let (script, session) = scripted().await;
    let name = fresh_name();
    script.take_calls();
    let waiting = unanswered_waiter(&script, &session, &name);
    tokio::time::sleep(TTL * 10).await;
    assert!(waiting.is_waiting() && script.count("Lock") == 1);
    // A look after each re-check pause.
    assert!((50..=75).contains(&script.count("Txn")), "{}", script.count("Txn"));
    waiting.control.give_up();
    assert!(is_gave_up(&waiting.ends().await));
}

#[tokio::test(start_paused = true)]
async fn try_ends_at_the_time_limit_of_a_request() {
    let (script, session) = scripted().await;
    script.rule(|call| if call.is("Lock") { Fate::Lost } else { Fate::Served });
    let since = Instant::now();
    let error = bounded(try_acquire(&session, &fresh_name())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        (REQUEST..REQUEST + Duration::from_millis(10)).contains(&since.elapsed()),
        "{:?}",
        since.elapsed()
    );
    assert_eq!(script.leases(), 0);
    script.serve();
    release(&session, &granted(try_acquire(&session, &fresh_name()).await)).await;
}

/// A try that another claim has overtaken sees that at its next look.
#[tokio::test(start_paused = true)]
async fn overtaken_try_ends_after_a_tenth_of_a_second() {
    let (script, session) = scripted().await;
    let name = fresh_name();
    let (overtaking, key) = (script.clone(), foreign(&name));
    script.rule(move |call| {
        if call.is("LeaseGrant") {
            overtaking.put(&key, "");
        }
        if call.is("Lock") { Fate::Unanswered } else { Fate::Served }
    });
    let since = Instant::now();
    assert!(is_gave_up(&try_acquire(&session, &name).await));
    assert_eq!(since.elapsed(), Duration::from_millis(100));
    assert_eq!(script.leases(), 0);
}

#[tokio::test(start_paused = true)]
async fn claim_that_gives_up_between_two_attempts_ends_at_once() {
    let (script, session) = scripted().await;
    script.rule(busy("LeaseGrant"));
    let waiting = start(&session, &fresh_name());
    after_requests(&script, "LeaseGrant", 8).await;
    gives_up_at_once(waiting).await;
}

/// Nothing would revoke its lease.
#[tokio::test(start_paused = true)]
async fn closed_session_takes_no_claim() {
    let script = Script::default();
    let session = open(&script).await;
    let lease = Lease::grant(&session.server, TTL, Clock::tokio()).await.unwrap();
    let entry = Arc::new(RpcClaim::new(lease, b"x/1".to_vec()));
    session.enter(ClaimId::random(), &entry).unwrap();
    assert_eq!(session.table().len(), 1);
    session.close().await.unwrap();
    session.enter(ClaimId::random(), &entry).unwrap_err();
    assert!(session.table().is_empty());
}

/// etcd refuses transactions of more than 128 operations.
#[tokio::test(start_paused = true)]
async fn heartbeat_of_more_holds_than_fit_into_a_transaction_renews_all() {
    const HOLDS: usize = 205;
    let (script, session) = scripted().await;
    let mut held = Vec::new();
    for _ in 0..HOLDS {
        held.push(acquire(&session, &fresh_name()).await);
    }
    script.take_calls();
    let renewals = session.renew(&held).await;
    assert!(renewals.holds.iter().all(|(_, renewal)| is_renewed(renewal)), "{renewals:?}");
    let read: usize =
        script.take_calls().iter().filter(|call| call.is("Txn")).map(|call| call.operations()).sum();
    assert_eq!(read, HOLDS);
    bounded(session.close()).await.unwrap();
    assert_eq!(script.leases(), 0);
}

#[tokio::test(start_paused = true)]
async fn only_waiters_and_the_holds_of_a_heartbeat_are_renewed() {
    let (script, session) = scripted().await;
    let held = [acquire(&session, &fresh_name()).await, acquire(&session, &fresh_name()).await];
    // The other one is being released.
    session.renew(&held[..1]).await;
    assert_eq!(script.count("LeaseKeepAlive"), 1);
    session.close().await.unwrap();
    script.take_calls();
    assert_eq!(session.release(&held[0]).await.unwrap_err().kind(), ErrorKind::Closed);
    assert!(script.take_calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn claim_whose_lease_has_ended_starts_again() {
    let (script, session) = scripted().await;
    script.rule(first(1, "Lock", Fate::Refused(Code::NotFound, "etcdserver: requested lease not found")));
    let held = acquire(&session, &fresh_name()).await;
    assert_eq!(script.count("Lock"), 2);
    release(&session, &held).await;
}

#[tokio::test(start_paused = true)]
async fn claim_behind_another_notes_that_before_its_first_look() {
    let (script, session) = scripted().await;
    let name = fresh_name();
    let waiting = unanswered_waiter(&script, &session, &name);
    after_requests(&script, "Lock", 1).await;
    assert!(waiting.control.was_contended() && script.count("Txn") == 0);
    waiting.control.give_up();
    assert!(is_gave_up(&waiting.ends().await));
}

#[tokio::test(start_paused = true)]
async fn claim_that_gives_up_during_a_look_ends_at_once() {
    let (script, session) = scripted().await;
    script.rule(|call| match &*call.method {
        "Lock" => Fate::Unanswered,
        "Txn" => Fate::Lost,
        _ => Fate::Served,
    });
    let waiting = start(&session, &fresh_name());
    after_requests(&script, "Txn", 1).await;
    gives_up_at_once(waiting).await;
}

#[tokio::test(start_paused = true)]
async fn look_that_confirms_is_retried_with_growing_pauses() {
    let (script, session) = scripted().await;
    script.rule(busy("Txn"));
    let since = Instant::now();
    let waiting = start(&session, &fresh_name());
    after_requests(&script, "Txn", 9).await;
    assert!(since.elapsed() > Duration::from_secs(3), "{:?}", since.elapsed());
    script.serve();
    release(&session, &waiting.granted().await).await;
}

/// The RPC was late: its key came behind that of another claim, after a look that had found no key.
#[tokio::test(start_paused = true)]
async fn claim_that_finds_itself_behind_another_is_not_silent_any_more() {
    let script = Script::default();
    let (queue, name) = (open(&script).await, fresh_name());
    let session: Arc<dyn Session> = queue.clone();
    script.rule(|call| if call.is("Lock") { Fate::Lost } else { Fate::Served });
    let waiting = start(&session, &name);
    after_requests(&script, "Txn", 1).await;
    let own =
        queue.table().values().map(|entry| String::from_utf8(entry.key.clone()).unwrap()).next().unwrap();
    script.put(&foreign(&name), "");
    script.put(&own, "");
    after_requests(&script, "Txn", 1).await;
    script.take_calls();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(script.take_calls().is_empty() && waiting.is_waiting());
    waiting.control.give_up();
    assert!(is_gave_up(&waiting.ends().await));
}

/// The read of its key may fail at the same time.
#[tokio::test(start_paused = true)]
async fn hold_whose_lease_has_ended_is_gone() {
    let script = Script::default();
    let queue = open(&script).await;
    let session: Arc<dyn Session> = queue.clone();
    let held = acquire(&session, &fresh_name()).await;
    let entry = queue.table().values().next().unwrap().clone();
    entry.lease.revoke(&queue.server).await.unwrap();
    script.rule(|call| if call.is("Txn") { Fate::Lost } else { Fate::Served });
    let renewals = session.renew(&[held]).await;
    assert!(matches!(renewals.holds[0].1, Renewal::Gone), "{renewals:?}");
}

/// Its key would be the last one in the queue then.
#[tokio::test(start_paused = true)]
async fn waiter_whose_look_is_refused_does_not_start_again() {
    let (script, session) = scripted().await;
    let name = fresh_name();
    let waiting = unanswered_waiter(&script, &session, &name);
    after_requests(&script, "Lock", 1).await;
    script.take_calls();
    script.rule(busy("Txn"));
    tokio::time::sleep(TTL).await;
    assert!(script.count("Txn") > 1 && waiting.is_waiting());
    assert_eq!((script.count("Lock"), script.count("LeaseRevoke")), (0, 0));
    gives_up_at_once(waiting).await;
}

/// Also where a request may take longer.
#[tokio::test(start_paused = true)]
async fn heartbeat_without_replies_ends_before_the_next_one() {
    let (script, long) = (Script::default(), config(1).form(crate::Form::Rpc).request_timeout(TTL));
    let slow = Server::over(Client::scripted(&script), &long);
    let opened = RpcSession::open(slow, long.layout(), TTL, Clock::tokio()).await;
    let session: Arc<dyn Session> = Arc::new(opened.unwrap());
    let held = acquire(&session, &fresh_name()).await;
    script.rule(|_| Fate::Lost);
    for holds in [&[held][..], &[]] {
        let since = Instant::now();
        let renewals = session.renew(holds).await;
        assert!(matches!(renewals.session, Renewal::Unknown(_)), "{renewals:?}");
        assert!(since.elapsed() < TTL / 3, "{:?}", since.elapsed());
    }
}

/// It lives for one more ttl, and so does its lock.
#[tokio::test(start_paused = true)]
async fn close_that_does_not_revoke_every_lease_fails() {
    let (script, session) = scripted().await;
    let _held = [acquire(&session, &fresh_name()).await, acquire(&session, &fresh_name()).await];
    script.rule(first(1, "LeaseRevoke", Fate::Refused(Code::Unavailable, "etcdserver: request timed out")));
    bounded(session.close()).await.unwrap_err();
    assert_eq!(script.leases(), 1);
}
