//! Requests that are repeated, and what a heartbeat sends.

use std::{sync::Arc, time::Duration};

use lockkit_conformance::direct::{acquire, bounded, fresh_name, is_renewed, release};
use lockkit_core::{
    ErrorKind, Metadata, Proposal,
    backend::{Claim, ClaimControl, Grant, Renewal, Session},
};
use tokio::time::Instant;
use tonic::Code;

use super::{REQUEST, TTL, busy, config, first, foreign, queue_session, server, session, session_of, times};
use crate::{
    client::{
        GetOptions, Txn,
        scripted::{Fate, Script},
    },
    lease::Lease,
};

const SILENT_LEADER: Fate = Fate::Refused(Code::Unavailable, "etcdserver: request timed out");
const STALE: Fate = Fate::Refused(Code::Unauthenticated, "etcdserver: invalid auth token");
const LEARNER: Fate = Fate::Refused(Code::FailedPrecondition, "etcdserver: rpc not supported for learner");
const NO_LEADER: Fate = Fate::Refused(Code::Unavailable, "etcdserver: no leader");

/// A connection that was refused fails the next request too.
#[tokio::test(start_paused = true)]
async fn request_that_was_not_sent_is_sent_three_times_at_once() {
    for fate in [Fate::NotSent, NO_LEADER, LEARNER] {
        let script = Script::default();
        let server = server(&script, 1);
        script.rule(first(2, "Range", fate.clone()));
        let since = Instant::now();
        server.range("x", GetOptions::new()).await.unwrap();
        assert_eq!(times(&script, "Range", since), [Duration::ZERO; 3]);
        script.rule(first(4, "Range", fate));
        let fault = server.range("x", GetOptions::new()).await.unwrap_err();
        assert_eq!((fault.kind(), script.count("Range")), (ErrorKind::Unavailable, 3));
    }
}

/// One of several may only be slower to connect than the dead ones are to refuse.
#[tokio::test(start_paused = true)]
async fn request_to_several_endpoints_is_retried_for_half_of_its_time() {
    let script = Script::default();
    let server = server(&script, 2);
    script.rule(|_| Fate::NotSent);
    let since = Instant::now();
    server.range("x", GetOptions::new()).await.unwrap_err();
    assert!(since.elapsed() >= REQUEST / 2 && since.elapsed() < REQUEST, "{:?}", since.elapsed());
    let times = times(&script, "Range", since);
    assert!((30..200).contains(&times.len()), "{}", times.len());
}

#[tokio::test(start_paused = true)]
async fn stale_login_is_renewed_at_once_and_then_with_pauses() {
    let script = Script::default();
    let server = server(&script, 1);
    script.rule(first(3, "Range", STALE));
    let since = Instant::now();
    server.range("x", GetOptions::new()).await.unwrap();
    assert_eq!(script.count("Authenticate"), 3);
    let times = times(&script, "Range", since);
    assert_eq!(times[1], Duration::ZERO);
    assert!(times[2] - times[1] >= Duration::from_millis(50) && times[3] > times[2], "{times:?}");
}

/// A later request uses the login that an earlier one has renewed.
#[tokio::test(start_paused = true)]
async fn login_that_fails_is_not_counted() {
    let script = Script::default();
    let server = server(&script, 1);
    script.rule(|call| match &*call.method {
        "Authenticate" => Fate::Refused(Code::ResourceExhausted, "etcdserver: too many requests"),
        _ => STALE,
    });
    let before = server.login();
    server.range("x", GetOptions::new()).await.unwrap_err();
    assert_eq!(server.login(), before);
    script.serve();
    server.log_in_after(before).await.unwrap();
    server.log_in_after(before).await.unwrap();
    assert_eq!(server.login(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn heartbeat_step_is_sent_to_other_members_while_one_is_silent() {
    const STEP: Duration = Duration::from_secs(4);
    for (endpoints, sent, answered) in [(2, vec![0, 1, 2, 3], true), (1, vec![0], false)] {
        let script = Script::default();
        let server = server(&script, endpoints);
        script.rule(first(3, "Range", Fate::Lost));
        let since = Instant::now();
        let read = || server.range("x", GetOptions::new());
        let answer = server.repeat(STEP, read).await;
        assert_eq!(answer.is_ok(), answered);
        assert_eq!(
            times(&script, "Range", since),
            sent.into_iter().map(Duration::from_secs).collect::<Vec<_>>()
        );
    }
}

/// Another member may serve it.
#[tokio::test(start_paused = true)]
async fn first_failure_of_a_heartbeat_step_is_not_its_outcome() {
    let script = Script::default();
    let server = server(&script, 2);
    script.rule(first(1, "Range", SILENT_LEADER));
    let since = Instant::now();
    server.repeat(Duration::from_secs(4), || server.range("x", GetOptions::new())).await.unwrap();
    assert_eq!(since.elapsed(), Duration::ZERO);
}

/// Both halves at the same time, each within its step.
#[tokio::test(start_paused = true)]
async fn heartbeat_without_replies_takes_one_step() {
    for (request, step) in [(REQUEST, REQUEST), (TTL, TTL / 7)] {
        let script = Script::default();
        let session: Arc<dyn Session> = session_of(&script, &config(1).request_timeout(request)).await;
        let held = acquire(&session, &fresh_name()).await;
        script.rule(|_| Fate::Lost);
        let since = Instant::now();
        let renewals = session.renew(std::slice::from_ref(&held)).await;
        assert!(matches!(renewals.session, Renewal::Unknown(_)), "{renewals:?}");
        assert!(since.elapsed() <= step + Duration::from_millis(1), "{:?}", since.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn ping_is_repeated_with_pauses_within_its_step() {
    let script = Script::default();
    let session = session(&script).await;
    script.rule(busy("LeaseKeepAlive"));
    let since = Instant::now();
    assert!(matches!(session.renew(&[]).await.session, Renewal::Unknown(_)));
    let pings = times(&script, "LeaseKeepAlive", since);
    assert!((10..=61).contains(&pings.len()), "{}", pings.len());
}

/// It confirms nothing: the member may not know of the latest grants, or not of their end.
#[tokio::test(start_paused = true)]
async fn list_of_a_member_that_lags_behind_is_ignored() {
    let script = Script::default();
    let session = queue_session(&script).await;
    let list = || session.lease.keys(&session.server);
    assert_eq!(list().await.unwrap().len(), 2);
    session.server.saw(session.server.highest_revision() + 1);
    assert_eq!(list().await.unwrap().len(), 0);
}

/// A list that is older than what a read has shown is stale, too.
#[tokio::test(start_paused = true)]
async fn each_read_and_each_transaction_shows_how_far_the_store_is() {
    let (script, name) = (Script::default(), fresh_name());
    let session = queue_session(&script).await;
    let before = session.server.highest_revision();
    script.put(&foreign(&name), "");
    session.server.range(foreign(&name), GetOptions::new()).await.unwrap();
    assert_eq!(session.server.highest_revision(), before + 1);
    script.delete(&foreign(&name));
    session.server.txn(Txn::new()).await.unwrap();
    assert_eq!(session.server.highest_revision(), before + 2);
}

/// etcd refuses transactions of more than 128 operations.
#[tokio::test(start_paused = true)]
async fn heartbeat_of_many_holds_with_guards_fits_into_transactions() {
    const HOLDS: usize = 65;
    let script = Script::default();
    let session: Arc<dyn Session> = session_of(&script, &config(1).guard("guards/")).await;
    let mut held = Vec::new();
    for _ in 0..HOLDS {
        held.push(acquire(&session, &fresh_name()).await);
    }
    // The list shows nothing, so all are read by name.
    script.rule(first(9, "LeaseTimeToLive", Fate::Refused(Code::OutOfRange, "message length too large")));
    let renewals = session.renew(&held).await;
    assert!(renewals.holds.iter().all(|(_, renewal)| is_renewed(renewal)), "{renewals:?}");
}

/// The lost request may have written the record.
#[tokio::test(start_paused = true)]
async fn record_whose_reply_was_lost_keeps_its_lease() {
    let script = Script::default();
    let (session, name) = (session(&script).await, fresh_name());
    let held = acquire(&session, &name).await;
    let records = session.records().unwrap();
    script.rule(first(1, "Txn", Fate::Unanswered));
    records.write(&held, "kept", TTL).await.unwrap_err();
    assert_eq!(records.read(&name).await.unwrap().as_deref(), Some("kept"));
    // It may still be written.
    let leases = script.leases();
    script.rule(first(1, "Txn", Fate::Lost));
    records.write(&held, "late", TTL).await.unwrap_err();
    assert_eq!(script.leases(), leases + 1);
    // Refused: it was not written, and its lease goes.
    let leases = script.leases();
    script.rule(busy("Txn"));
    records.write(&held, "refused", TTL).await.unwrap_err();
    assert_eq!(script.leases(), leases);
}

async fn proclaim(session: &Arc<dyn Session>, grant: &Grant, number: u64) -> lockkit_core::Result<bool> {
    let mut metadata = Metadata::of_this_process(None);
    metadata.proposal = Some(Proposal::new(format!("value {number}"), number));
    session.elections().unwrap().proclaim(grant, &metadata).await
}

#[tokio::test(start_paused = true)]
async fn each_proclamation_is_one_transaction_and_the_same_one_may_be_sent_again() {
    let script = Script::default();
    let (session, name) = (session(&script).await, fresh_name());
    let held = acquire(&session, &name).await;
    for number in 1..4 {
        script.take_calls();
        assert!(proclaim(&session, &held, number).await.unwrap());
        assert_eq!(script.count("Txn"), 1);
    }
    script.rule(busy("Txn"));
    proclaim(&session, &held, 4).await.unwrap_err();
    script.serve();
    assert!(proclaim(&session, &held, 4).await.unwrap());
    let leader = session.elections().unwrap().leader(&name).await.unwrap().unwrap();
    assert_eq!(leader.proposal.value, "value 4");
    release(&session, &held).await;
}

/// Whatever an operator or another program has put there.
#[tokio::test(start_paused = true)]
async fn what_others_have_put_is_replaced() {
    let script = Script::default();
    let (session, name) = (session(&script).await, fresh_name());
    let held = acquire(&session, &name).await;
    let own = script.keys("lockkit/test")[0].clone();
    script.put(&own, "of an operator");
    assert!(proclaim(&session, &held, 1).await.unwrap());
    let leader = session.elections().unwrap().leader(&name).await.unwrap().unwrap();
    assert_eq!(leader.proposal.value, "value 1");
    let (records, changing) = (session.records().unwrap(), script.clone());
    let (mut is_changed, record) = (false, format!("lockkit/:records/{name}"));
    script.rule(move |call| {
        if call.is("Txn") && !std::mem::replace(&mut is_changed, true) {
            changing.put(&record, "of an operator");
        }
        Fate::Served
    });
    assert!(records.write(&held, "ours", TTL).await.unwrap());
    assert_eq!(records.read(&name).await.unwrap().as_deref(), Some("ours"));
}

/// The first look may be stale; after a compare that failed, only the leader is asked.
#[tokio::test(start_paused = true)]
async fn second_look_behind_a_hold_asks_the_leader() {
    let script = Script::default();
    let (session, name) = (session(&script).await, fresh_name());
    script.put(&super::foreign(&name), "");
    let first = lockkit_conformance::direct::enqueued(&session, &name).await;
    script.delete(&super::foreign(&name));
    let first = first.granted().await;
    let successor = super::of_another_client(&name);
    script.put(&successor, "");
    script.take_calls();
    let deleting = script.clone();
    let mut looked = false;
    script.rule(move |call| {
        if call.is("Txn") && !std::mem::replace(&mut looked, true) {
            deleting.delete(&successor);
        }
        Fate::Served
    });
    release(&session, &first).await;
    let looks: Vec<bool> = script
        .take_calls()
        .iter()
        .filter(|call| call.is("Range"))
        .map(|call| call.is_serializable())
        .collect();
    assert_eq!(looks, [true, false]);
    assert!(script.keys("lockkit/test").is_empty());
}

/// The reply to the request of a lease starts nothing: its sending does.
#[tokio::test(start_paused = true)]
async fn session_is_set_up_by_a_lease_its_keys_and_then_their_watch() {
    let script = Script::default();
    let session = queue_session(&script).await;
    let methods: Vec<String> = script.take_calls().into_iter().map(|call| call.method).collect();
    assert_eq!(methods, ["LeaseGrant", "Txn", "Watch"]);
    // The first enqueue compares the epoch, and a heartbeat knows that a member lags behind.
    assert_eq!((session.epoch.current(), session.server.highest_revision()), (1, 1));
    let another: Lease = session.lease.another(&session.server, Duration::from_millis(2_001)).await.unwrap();
    assert_eq!(another.ttl(), Duration::from_secs(3));
}

/// The claim has no key yet, and no other one may be blocked by it.
#[tokio::test(start_paused = true)]
async fn claim_that_gave_up_before_its_enqueue_sends_nothing() {
    let script = Script::default();
    let (session, control) = (session(&script).await, ClaimControl::new());
    let claim = Claim::new(fresh_name(), true, Metadata::of_this_process(None), &control);
    control.give_up();
    script.take_calls();
    bounded(session.acquire(claim)).await.unwrap();
    assert!(script.take_calls().is_empty());
}

/// The first reply ends the outage.
#[tokio::test(start_paused = true)]
async fn request_after_an_outage_does_not_wait_for_its_turn() {
    let script = Script::default();
    let server = server(&script, 1);
    script.rule(first(6, "Range", Fate::NotSent));
    for _ in 0..2 {
        server.range("x", GetOptions::new()).await.unwrap_err();
    }
    server.range("x", GetOptions::new()).await.unwrap();
    let since = Instant::now();
    server.range("x", GetOptions::new()).await.unwrap();
    assert_eq!(since.elapsed(), Duration::ZERO);
}

/// Half of its time is left for the request itself.
#[tokio::test(start_paused = true)]
async fn requests_of_an_outage_wait_for_their_turn_for_half_of_their_time() {
    const REQUESTS: usize = 50;
    let script = Script::default();
    let server = server(&script, 1);
    script.rule(|_| Fate::NotSent);
    server.range("x", GetOptions::new()).await.unwrap_err();
    let since = Instant::now();
    let all = (0..REQUESTS).map(|_| server.range("x", GetOptions::new()));
    let failed = futures_util::future::join_all(all).await;
    assert!(failed.iter().all(Result::is_err));
    assert!(since.elapsed() <= REQUEST / 2 + Duration::from_millis(1), "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn either_half_of_a_heartbeat_shows_that_the_lease_has_ended() {
    for lost in ["LeaseKeepAlive", "LeaseTimeToLive"] {
        let script = Script::default();
        let queue = queue_session(&script).await;
        let session: Arc<dyn Session> = queue.clone();
        let held = acquire(&session, &fresh_name()).await;
        script.mute_watches();
        queue.lease.revoke(&queue.server).await.unwrap();
        script.rule(move |call| if call.is(lost) { Fate::Lost } else { Fate::Served });
        let renewals = session.renew(&[held]).await;
        assert!(matches!(renewals.session, Renewal::Gone), "{lost} {renewals:?}");
        assert!(matches!(renewals.holds[0].1, Renewal::Gone), "{lost} {renewals:?}");
    }
}

/// A copy may be executed at any later time, under a claim that uses the key again.
#[tokio::test(start_paused = true)]
async fn key_of_an_unanswered_proclamation_is_not_reused() {
    for fate in [Fate::Served, Fate::Unanswered] {
        let is_reused = matches!(fate, Fate::Served);
        let script = Script::default();
        let (session, name) = (session(&script).await, fresh_name());
        let held = acquire(&session, &name).await;
        let key = script.keys("lockkit/test")[0].clone();
        script.rule(first(1, "Txn", fate));
        assert_eq!(proclaim(&session, &held, 1).await.is_ok(), is_reused);
        release(&session, &held).await;
        let again = acquire(&session, &name).await;
        assert_eq!(script.keys("lockkit/test")[0] == key, is_reused);
        release(&session, &again).await;
    }
}

/// It shows no more than a refused connection does: all others still wait for their turn.
#[tokio::test(start_paused = true)]
async fn request_without_an_answer_does_not_end_an_outage() {
    let script = Script::default();
    let server = server(&script, 1);
    for fault in [first(3, "Range", Fate::NotSent), first(1, "Range", SILENT_LEADER)] {
        script.rule(fault);
        server.range("x", GetOptions::new()).await.unwrap_err();
    }
    let since = Instant::now();
    server.range("x", GetOptions::new()).await.unwrap();
    assert!(since.elapsed() > Duration::ZERO);
}
