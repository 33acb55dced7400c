//! Locks shared with programs that lock by creating one key (`form=single`, and `guard=` in addition to a queue). The other
//! program is a plain client that does what the `Lock` of the packages etcd3 (Python and Node.js) and aetcd does: a
//! lease, a transaction that puts the key if it is absent, and a transaction that deletes it if it has the value of this program.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp};
use lockkit_core::{
    LockName,
    backend::{Acquired, Admin, Renewal, Session},
};
use lockkit_testbed::{Direction, Etcd, Flow, Message, Proxy};
use tokio::time::timeout;

use crate::common::{
    LONG, LONGEST, PendingClaim, acquire, backend, bounded, cut, earliest_recheck, enqueued, fresh_name,
    is_entry_gone, is_gave_up, own_server, plain, release, session_at, start_claim, try_acquire, until,
    url_through,
};

/// A ttl with a re-check every 2 s.
const SHORT: Duration = Duration::from_secs(6);

/// The options of a form that shares `/locks/NAME` with the package etcd3 for Python.
const GUARD: &str = "names=raw&guard=/locks/";
const SINGLE: &str = "form=single";

/// The holder of a key in another program.
struct Foreign {
    client: Client,
    key: String,
    lease: i64,
}

impl Foreign {
    async fn new(etcd: &Etcd, key: &str) -> Self {
        let mut client = plain(etcd).await;
        let lease = client.lease_grant(600, None).await.unwrap().id();
        Self { client, key: key.to_owned(), lease }
    }

    /// Returns the create revision, which is the token that such a program has; `None` if the key exists.
    async fn try_lock(&mut self) -> Option<u64> {
        let put = TxnOp::put(&*self.key, "0123456789abcdef", Some(PutOptions::new().with_lease(self.lease)));
        let absent = Compare::create_revision(&*self.key, CompareOp::Equal, 0);
        let answer = self.client.txn(Txn::new().when([absent]).and_then([put])).await.unwrap();
        answer.succeeded().then(|| answer.header().unwrap().revision().unsigned_abs())
    }

    async fn unlock(&mut self) {
        let own = Compare::value(&*self.key, CompareOp::Equal, "0123456789abcdef");
        let delete = TxnOp::delete(&*self.key, None);
        assert!(self.client.txn(Txn::new().when([own]).and_then([delete])).await.unwrap().succeeded());
    }
}

async fn session_with(etcd: &Etcd, options: &str) -> Arc<dyn Session> {
    session_at(&format!("{}/?{options}", etcd.url()), LONGEST).await
}

/// The key that this form creates for a lock.
fn key_of(options: &str, name: &LockName) -> String {
    if options == GUARD { format!("/locks/{name}") } else { format!("lockkit/{name}") }
}

/// Returns all keys that are not the clients' own.
fn lock_keys(etcd: &Etcd) -> Vec<String> {
    etcd.keys("").unwrap().into_iter().filter(|key| !key.contains(":clients/")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_program_and_client_exclude_each_other() {
    let etcd = own_server();
    for options in [SINGLE, GUARD] {
        let (session, name) = (session_with(&etcd, options).await, fresh_name());
        let mut foreign = Foreign::new(&etcd, &key_of(options, &name)).await;
        let held = acquire(&session, &name).await;
        assert_eq!(foreign.try_lock().await, None, "{options}");
        release(&session, &held).await;
        assert_eq!(lock_keys(&etcd), [""; 0], "{options}");

        let token = foreign.try_lock().await.expect("the key was released");
        assert!(token > held.token().get(), "{options}");
        assert!(is_gave_up(&try_acquire(&session, &name).await));
        assert_eq!(lock_keys(&etcd), [&*foreign.key], "the try has left something: {options}");
        let waiting = enqueued(&session, &name).await;
        foreign.unlock().await;
        let granted = timeout(earliest_recheck(LONGEST), waiting.granted()).await;
        let next = granted.expect("the deletion was reported");
        assert!(next.token().get() > token, "{options}");
        release(&session, &next).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_name_is_the_key_of_the_other_program() {
    let etcd = own_server();
    for (options, lock, key) in [
        ("form=single&names=raw", "/locks/x", "/locks/x"),
        ("form=single&names=raw", "x", "x"),
        ("names=raw&guard=/locks/", "x", "/locks/x"),
        ("names=raw&guard=", "a/b", "a/b"),
    ] {
        let (session, name) = (session_with(&etcd, options).await, LockName::new(lock).unwrap());
        let held = acquire(&session, &name).await;
        assert_eq!(Foreign::new(&etcd, key).await.try_lock().await, None, "{options} {lock}");
        release(&session, &held).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_that_gives_up_behind_a_foreign_key_leaves_nothing() {
    let etcd = own_server();
    for options in [SINGLE, GUARD] {
        let (session, name) = (session_with(&etcd, options).await, fresh_name());
        let mut foreign = Foreign::new(&etcd, &key_of(options, &name)).await;
        foreign.try_lock().await.unwrap();
        let waiting = enqueued(&session, &name).await;
        waiting.control.give_up();
        assert!(is_gave_up(&waiting.ends().await));
        assert_eq!(lock_keys(&etcd), [&*foreign.key], "{options}");
        foreign.unlock().await;
    }
}

/// The deletion of the foreign key is not reported.
#[tokio::test(flavor = "multi_thread")]
async fn recheck_finds_a_key_whose_deletion_was_not_reported() {
    let etcd = own_server();
    for options in [SINGLE, GUARD] {
        let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
        proxy.drop_messages(Message::Events, |_| true);
        let session = session_at(&format!("{}&{options}", url_through(&proxy)), SHORT).await;
        let name = fresh_name();
        let mut foreign = Foreign::new(&etcd, &key_of(options, &name)).await;
        foreign.try_lock().await.unwrap();
        let waiting = enqueued(&session, &name).await;
        foreign.unlock().await;
        until("the waiter has looked", async || {
            bounded(session.renew(&[])).await;
            !waiting.is_waiting()
        })
        .await;
        release(&session, &waiting.granted().await).await;
    }
}

/// An idle waiter must not write: a transaction that may write goes through the log of every server.
#[tokio::test(flavor = "multi_thread")]
async fn recheck_behind_a_foreign_key_writes_nothing() {
    let etcd = own_server();
    for options in [SINGLE, GUARD] {
        let session = session_at(&format!("{}/?{options}", etcd.url()), SHORT).await;
        let name = fresh_name();
        let mut foreign = Foreign::new(&etcd, &key_of(options, &name)).await;
        foreign.try_lock().await.unwrap();
        let waiting = enqueued(&session, &name).await;
        let before = etcd.metrics().unwrap();
        until("it has re-checked", async || {
            bounded(session.renew(&[])).await;
            etcd.metrics().unwrap().grpc_handled("Txn") > before.grpc_handled("Txn")
        })
        .await;
        assert_eq!(etcd.metrics().unwrap().proposals(), before.proposals(), "{options}");
        foreign.unlock().await;
        release(&session, &waiting.granted().await).await;
        // The end of its lease would be a proposal of the next round.
        bounded(session.close()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn release_spares_the_key_of_another_program() {
    let etcd = own_server();
    for options in [SINGLE, GUARD] {
        let (session, name) = (session_with(&etcd, options).await, fresh_name());
        let mut foreign = Foreign::new(&etcd, &key_of(options, &name)).await;
        let held = acquire(&session, &name).await;
        assert!(etcd.delete(&foreign.key).unwrap());
        foreign.try_lock().await.unwrap();
        let heartbeat = bounded(session.renew(std::slice::from_ref(&held))).await;
        assert!(matches!(heartbeat.holds[..], [(_, Renewal::Gone)]), "{options}: {heartbeat:?}");
        assert!(matches!(heartbeat.session, Renewal::Renewed { .. }), "{options}: {heartbeat:?}");
        release(&session, &held).await;
        assert_eq!(lock_keys(&etcd), [&*foreign.key], "{options}");
        foreign.unlock().await;
    }
}

/// Two claims of one session have the same lease and the same key: only the create revision distinguishes them.
#[tokio::test(flavor = "multi_thread")]
async fn hold_is_not_confirmed_by_a_later_claim_of_its_session() {
    let etcd = own_server();
    let (session, name) = (session_with(&etcd, SINGLE).await, fresh_name());
    let lost = acquire(&session, &name).await;
    assert!(etcd.delete(&key_of(SINGLE, &name)).unwrap());
    let held = acquire(&session, &name).await;
    let renewals = bounded(session.renew(&[lost.clone(), held.clone()])).await;
    assert!(matches!(renewals.holds[..], [(_, Renewal::Gone), (_, Renewal::Renewed { .. })]), "{renewals:?}");
    release(&session, &lost).await;
    assert_eq!(lock_keys(&etcd), [key_of(SINGLE, &name)]);
    release(&session, &held).await;
}

/// A claim behind a foreign key that is released: the claim creates the key, and the reply is lost.
async fn created_without_reply(etcd: &Etcd, options: &str) -> (Proxy, Arc<dyn Session>, PendingClaim) {
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let session = session_at(&format!("{}&{options}", url_through(&proxy)), LONG).await;
    loop {
        let name = fresh_name();
        let mut foreign = Foreign::new(etcd, &key_of(options, &name)).await;
        foreign.try_lock().await.unwrap();
        let waiting = enqueued(&session, &name).await;
        proxy.swallow_reply(1);
        foreign.unlock().await;
        let is_lost = || proxy.counts().dropped == 1;
        until("the reply is lost, or arrives", async || is_lost() || !waiting.is_waiting()).await;
        if is_lost() {
            return (proxy, session, waiting);
        }
        // The proxy does not recognize a reply that comes before the end of its request.
        proxy.pass();
        release(&session, &waiting.granted().await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_reply_to_the_create_is_found_by_its_value() {
    let etcd = own_server();
    for options in [SINGLE, GUARD] {
        let (_proxy, session, waiting) = created_without_reply(&etcd, options).await;
        let held = waiting.granted().await;
        let heartbeat = bounded(session.renew(std::slice::from_ref(&held))).await;
        assert!(matches!(heartbeat.holds[..], [(_, Renewal::Renewed { .. })]), "{options}: {heartbeat:?}");
        release(&session, &held).await;
        assert_eq!(lock_keys(&etcd), [""; 0], "{options}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_that_gives_up_before_the_reply_leaves_nothing() {
    let etcd = own_server();
    for options in [SINGLE, GUARD] {
        let (proxy, _session, waiting) = created_without_reply(&etcd, options).await;
        // No second copy of the create may arrive before the claim has given up.
        proxy.hold_new();
        waiting.control.give_up();
        proxy.pass();
        match waiting.ends().await {
            Ok(Acquired::Granted(grant)) => panic!("{grant:?}"),
            end => assert!(is_gave_up(&end)),
        }
        assert_eq!(lock_keys(&etcd), [""; 0], "{options}");
    }
}

/// A copy of the create arrives after its claim has ended.
#[tokio::test(flavor = "multi_thread")]
async fn late_create_after_the_end_of_its_claim_leaves_nothing() {
    let etcd = own_server();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let session = session_at(&format!("{}&{SINGLE}", url_through(&proxy)), LONG).await;
    let name = fresh_name();
    proxy.set(Direction::Requests, Flow::Hold);
    let claim = start_claim(&session, &name, true);
    until("the proxy holds the request", async || proxy.holds(&claim.claim.id().to_string())).await;
    claim.control.give_up();
    cut(&proxy);
    assert!(is_gave_up(&claim.ends().await));
    let txns = || etcd.metrics().unwrap().grpc_handled("Txn");
    let before = txns();
    proxy.deliver_late();
    until("the late copy was answered", async || txns() > before).await;
    assert_eq!(lock_keys(&etcd), [""; 0]);
    let held = acquire(&session, &name).await;
    release(&session, &held).await;
}

/// First in the queue, behind a foreign guard key.
#[tokio::test(flavor = "multi_thread")]
async fn first_waiter_whose_entry_was_deleted_ends() {
    let etcd = own_server();
    let session = session_at(&format!("{}/?{GUARD}", etcd.url()), SHORT).await;
    let name = fresh_name();
    let mut foreign = Foreign::new(&etcd, &key_of(GUARD, &name)).await;
    foreign.try_lock().await.unwrap();
    let waiting = enqueued(&session, &name).await;
    let entry = etcd.keys(&format!("{name}/")).unwrap().remove(0);
    assert!(etcd.delete(&entry).unwrap());
    foreign.unlock().await;
    assert!(is_entry_gone(&waiting.ends().await));
    assert_eq!(lock_keys(&etcd), [""; 0]);
}

/// The holder's entry in the queue is deleted, its guard key is not.
#[tokio::test(flavor = "multi_thread")]
async fn release_deletes_the_guard_of_a_hold_without_an_entry() {
    let etcd = own_server();
    let (session, name) = (session_with(&etcd, GUARD).await, fresh_name());
    let held = acquire(&session, &name).await;
    let entry = etcd.keys(&format!("{name}/")).unwrap().remove(0);
    assert!(etcd.delete(&entry).unwrap());
    release(&session, &held).await;
    assert_eq!(lock_keys(&etcd), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_passes_the_guard_on_and_tokens_rise() {
    let etcd = own_server();
    let name = fresh_name();
    let (one, other) = (session_with(&etcd, GUARD).await, session_with(&etcd, GUARD).await);
    let mut foreign = Foreign::new(&etcd, &key_of(GUARD, &name)).await;
    let mut held = (one.clone(), acquire(&one, &name).await);
    for round in 0..6 {
        let next = if round % 2 == 0 { &other } else { &one };
        let waiting = enqueued(next, &name).await;
        assert_eq!(foreign.try_lock().await, None);
        release(&held.0, &held.1).await;
        let granted = waiting.granted().await;
        assert!(granted.token() > held.1.token());
        assert_eq!(etcd.keys(&foreign.key).unwrap().len(), 1, "granted without its guard");
        held = (next.clone(), granted);
    }
    release(&held.0, &held.1).await;
    assert_eq!(lock_keys(&etcd), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn inspection_shows_the_foreign_holder_before_our_waiters() {
    let etcd = own_server();
    for (options, waiters) in [(SINGLE, 0), (GUARD, 1)] {
        let (session, name) = (session_with(&etcd, options).await, fresh_name());
        let mut foreign = Foreign::new(&etcd, &key_of(options, &name)).await;
        let token = foreign.try_lock().await.unwrap();
        let waiting = enqueued(&session, &name).await;
        let admin = backend(&format!("{}/?{options}", etcd.url()));
        let seen = admin.inspect(&name).await.unwrap();
        let holder = seen.holder.unwrap();
        assert_eq!((holder.entry, holder.metadata), (foreign.key.clone(), None), "{options}");
        assert_eq!((holder.token.unwrap().get(), seen.waiters.len()), (token, waiters), "{options}");
        foreign.unlock().await;
        let held = waiting.granted().await;
        let seen = admin.inspect(&name).await.unwrap();
        let label = seen.holder.and_then(|holder| holder.metadata).and_then(|metadata| metadata.label);
        assert_eq!((label.as_deref(), seen.waiters.len()), (Some("test"), 0), "{options}");
        release(&session, &held).await;
    }
}

/// Every handoff deletes this key, so a watch that nobody needs would report them all. Other watches stay open for 0.5 s.
#[tokio::test(flavor = "multi_thread")]
async fn watch_of_a_single_key_is_cancelled_at_once() {
    const ROUNDS: usize = 10;
    const AT_ONCE: Duration = Duration::from_millis(400);
    let (etcd, name) = (own_server(), fresh_name());
    let session = session_with(&etcd, SINGLE).await;
    let mut foreign = Foreign::new(&etcd, &key_of(SINGLE, &name)).await;
    foreign.try_lock().await.unwrap();
    let watchers = || etcd.metrics().unwrap().watchers();
    let mut took = Vec::new();
    // Repeated, because a busy machine may delay a cancel.
    while took.last().is_none_or(|last| *last >= AT_ONCE) {
        assert!(took.len() < ROUNDS, "never in less than {AT_ONCE:?}: {took:?}");
        let waiting = enqueued(&session, &name).await;
        until("the key is watched", async || watchers() == 2).await;
        let gave_up = Instant::now();
        waiting.control.give_up();
        until("only the session's own watch is left", async || watchers() == 1).await;
        took.push(gave_up.elapsed());
        assert!(is_gave_up(&waiting.ends().await));
    }
}
