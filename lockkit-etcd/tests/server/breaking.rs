//! Holds that an operator breaks: the next waiter follows by a handoff, the holder learns of it, and nobody else does.

use std::sync::Arc;

use etcd_client::{Client, LockOptions, PutOptions};
use lockkit_core::{
    ErrorKind, LockClient, LockName,
    backend::{Admin, Contender, Loss, Renewal, Session},
};
use lockkit_etcd::EtcdBackend;
use lockkit_testbed::{Direction, Etcd, Flow, Message, Proxy};

use crate::common::{
    LONG, LONGEST, acquire, backend, bounded, cut, enqueued, fresh_name, key_of, own_server, plain, queue,
    release, session, session_at, until, url_through,
};

const GUARD: &str = "names=raw&guard=/locks/";

/// The end of the key by which a client learns of a broken hold: only the transaction that breaks it names that key.
const NEWS: &str = "/broken";

async fn holder(admin: &EtcdBackend, name: &LockName) -> Contender {
    bounded(admin.inspect(name)).await.unwrap().holder.unwrap()
}

async fn breaks(admin: &EtcdBackend, name: &LockName, holder: &Contender) -> bool {
    bounded(admin.break_lock(name, holder)).await.unwrap()
}

/// All keys but the clients' own.
fn lock_keys(etcd: &Etcd) -> Vec<String> {
    etcd.keys("").unwrap().into_iter().filter(|key| !key.contains(":clients/")).collect()
}

/// A program that has acquired this lock by the server's Lock RPC, as `etcdctl lock` and Go programs do. Its key.
async fn foreign_holder(etcd: &Etcd, queue: &str) -> (Client, String) {
    let mut client = plain(etcd).await;
    let lease = client.lease_grant(600, None).await.unwrap().id();
    let options = LockOptions::new().with_lease(lease);
    client.lock(queue.trim_end_matches('/'), Some(options)).await.unwrap();
    (client, format!("{queue}{lease:x}"))
}

/// Nothing renews these sessions, so only the watch can report a loss.
#[tokio::test(flavor = "multi_thread")]
async fn broken_holder_learns_at_once_and_keeps_its_other_holds() {
    for options in ["", "?form=single", "?names=raw&guard=/locks/"] {
        let etcd = own_server();
        let url = format!("{}/{options}", etcd.url());
        let (session, admin, name) = (session_at(&url, LONGEST).await, backend(&url), fresh_name());
        let (lost, kept) = (acquire(&session, &name).await, acquire(&session, &fresh_name()).await);
        let before = lock_keys(&etcd).len();
        assert!(breaks(&admin, &name, &holder(&admin, &name).await).await, "{options}");
        assert_eq!(bounded(session.lost()).await, Loss::Grant(lost.claim()), "{options}");
        assert_eq!(lock_keys(&etcd).len(), before / 2, "{options}");
        let renewals = bounded(session.renew(&[lost.clone(), kept.clone()])).await;
        assert!(
            matches!(renewals.holds[..], [(_, Renewal::Gone), (_, Renewal::Renewed { .. })]),
            "{renewals:?}"
        );
        let next = acquire(&session, &name).await;
        assert!(next.token() > lost.token(), "{options}");
        release(&session, &lost).await;
        for grant in [&next, &kept] {
            release(&session, grant).await;
        }
        assert_eq!(lock_keys(&etcd), [""; 0], "{options}");
        bounded(session.close()).await.unwrap();
        assert_eq!(etcd.keys("").unwrap(), [""; 0], "{options}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn guard_of_a_broken_hold_is_lost() {
    let etcd = own_server();
    let client = async || LockClient::builder(backend(&etcd.url())).ttl(LONG).build().await.unwrap();
    let (holder, operator) = (client().await, client().await);
    let guard = holder.lock("x").unwrap().acquire().await.unwrap();
    let seen = operator.inspect("x").await.unwrap().holder.unwrap();
    assert_eq!(seen.token, Some(guard.token()));
    assert!(operator.break_lock("x", &seen).await.unwrap());
    assert_eq!(bounded(guard.lost()).await.kind(), ErrorKind::Lost);
    let next = bounded(operator.lock("x").unwrap().acquire()).await.unwrap();
    assert!(next.token() > guard.token());
    assert!(!operator.break_lock("x", &seen).await.unwrap());
    next.release().await.unwrap();
}

/// The watch stream is broken meanwhile, and no heartbeat finds the loss.
#[tokio::test(flavor = "multi_thread")]
async fn compacted_news_of_a_break_are_read_from_their_key() {
    let etcd = own_server();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let (session, admin) = (session_at(&url_through(&proxy), LONGEST).await, backend(&etcd.url()));
    let name = fresh_name();
    let held = acquire(&session, &name).await;
    proxy.refuse();
    assert!(breaks(&admin, &name, &holder(&admin, &name).await).await);
    let mut other = plain(&etcd).await;
    let revision = other.put("x", "", None).await.unwrap().header().unwrap().revision();
    other.compact(revision, None).await.unwrap();
    proxy.pass();
    assert_eq!(bounded(session.lost()).await, Loss::Grant(held.claim()));
}

/// Events of deletions are dropped, so only the handoff can grant before the re-check.
#[tokio::test(flavor = "multi_thread")]
async fn next_waiter_is_granted_by_a_handoff() {
    let etcd = own_server();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let (one, other) = (session(&etcd, LONGEST).await, session_at(&url_through(&proxy), LONGEST).await);
    proxy.drop_messages(Message::Deletions, |_| true);
    let (admin, name) = (backend(&etcd.url()), fresh_name());
    let held = acquire(&one, &name).await;
    let (next, last) = (enqueued(&other, &name).await, enqueued(&one, &name).await);
    let key = key_of(&etcd, &next.claim);
    assert!(breaks(&admin, &name, &holder(&admin, &name).await).await);
    assert_eq!(handoff_of(&etcd, &key).await, key);
    let granted = next.granted().await;
    assert!(granted.token() > held.token() && last.is_waiting());
    release(&other, &granted).await;
    release(&one, &last.granted().await).await;
}

/// The key that the handoff key of the client with this claim key names.
async fn handoff_of(etcd: &Etcd, key: &str) -> String {
    let (lease, _) = key.rsplit_once('/').unwrap().1.split_once('-').unwrap();
    let found = plain(etcd).await.get(format!("lockkit/:clients/{lease}/mailbox"), None).await.unwrap();
    let value = found.kvs()[0].value_str().unwrap();
    value.split('"').find(|part| part.contains('/')).unwrap_or_default().to_owned()
}

/// The hold that an operator has seen has ended, and the same client holds the lock again, with the same key.
#[tokio::test(flavor = "multi_thread")]
async fn inspection_that_is_outdated_breaks_nobody() {
    let etcd = Etcd::start().unwrap();
    for options in ["", "?form=single", "?names=raw&guard=/locks/", "?form=rpc"] {
        let url = format!("{}/{options}", etcd.url());
        let (session, admin, name) = (session_at(&url, LONGEST).await, backend(&url), fresh_name());
        let first = acquire(&session, &name).await;
        let seen = holder(&admin, &name).await;
        let mut forged = seen.clone();
        forged.token = None;
        assert!(!breaks(&admin, &name, &forged).await, "{options}");
        release(&session, &first).await;
        assert!(!breaks(&admin, &name, &seen).await, "free: {options}");
        let second = acquire(&session, &name).await;
        assert!(!breaks(&admin, &name, &seen).await, "{options}");
        assert_eq!(holder(&admin, &name).await.token, Some(second.token()), "{options}");
        release(&session, &second).await;
    }
}

/// The same client acquires the lock again, with the same key, while the break is under way.
#[tokio::test(flavor = "multi_thread")]
async fn hold_that_began_during_the_break_is_spared() {
    let etcd = own_server();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    for options in ["", "&form=single"] {
        let url = format!("{}/?{}", etcd.url(), options.trim_start_matches('&'));
        let (session, name) = (session_at(&url, LONGEST).await, fresh_name());
        let admin = backend(&format!("{}{options}", url_through(&proxy)));
        let first = acquire(&session, &name).await;
        let seen = holder(&admin, &name).await;
        proxy.hold_requests_from(NEWS);
        let breaking = tokio::spawn({
            let (admin, name) = (admin.clone(), name.clone());
            async move { admin.break_lock(&name, &seen).await }
        });
        until("the transaction is under way", async || proxy.holds(NEWS)).await;
        release(&session, &first).await;
        let second = acquire(&session, &name).await;
        proxy.pass();
        assert!(!bounded(breaking).await.unwrap().unwrap(), "{options}");
        assert_eq!(holder(&admin, &name).await.token, Some(second.token()), "{options}");
        release(&session, &second).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_cannot_be_broken() {
    let etcd = own_server();
    let (session, admin, name) = (session(&etcd, LONGEST).await, backend(&etcd.url()), fresh_name());
    let held = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    let mut waiter = admin.inspect(&name).await.unwrap().waiters.remove(0);
    let key = key_of(&etcd, &waiting.claim);
    let created = plain(&etcd).await.get(key, None).await.unwrap().kvs()[0].create_revision();
    waiter.token = Some(lockkit_core::FencingToken::new(created.unsigned_abs()));
    assert!(!breaks(&admin, &name, &waiter).await);
    assert!(waiting.is_waiting());
    release(&session, &held).await;
    release(&session, &waiting.granted().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn break_without_a_reply_is_repeated_and_breaks_nobody_else() {
    let etcd = own_server();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let (one, other, name) = (session(&etcd, LONGEST).await, session(&etcd, LONGEST).await, fresh_name());
    let admin = backend(&url_through(&proxy));
    let held = acquire(&one, &name).await;
    let next = enqueued(&other, &name).await;
    let seen = holder(&admin, &name).await;
    // The reads of the keys are answered, the transaction is not. It is executed after the caller has its error.
    proxy.hold_requests_from(NEWS);
    let breaking = tokio::spawn({
        let (admin, name, seen) = (admin.clone(), name.clone(), seen.clone());
        async move { admin.break_lock(&name, &seen).await }
    });
    until("the transaction is under way", async || proxy.holds(NEWS)).await;
    proxy.set(Direction::Requests, Flow::Hold);
    cut(&proxy);
    let error = bounded(breaking).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(next.is_waiting());
    proxy.deliver_late();
    let granted = next.granted().await;
    assert_eq!(bounded(one.lost()).await, Loss::Grant(held.claim()));
    assert!(!breaks(&admin, &name, &seen).await);
    assert_eq!(holder(&admin, &name).await.token, Some(granted.token()));
    release(&other, &granted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_of_other_programs_can_be_broken() {
    let etcd = Etcd::start().unwrap();
    for options in ["", "?form=rpc"] {
        let url = format!("{}/{options}", etcd.url());
        let (session, admin, name) = (session_at(&url, LONGEST).await, backend(&url), fresh_name());
        let (_program, key) = foreign_holder(&etcd, &queue(&name)).await;
        let waiting = enqueued(&session, &name).await;
        until("it queues", async || etcd.keys(&queue(&name)).unwrap().len() == 2).await;
        let seen = holder(&admin, &name).await;
        assert!(key.ends_with(&seen.entry) && seen.metadata.is_none());
        assert!(breaks(&admin, &name, &seen).await, "{options}");
        assert!(!etcd.keys(&queue(&name)).unwrap().contains(&key), "{options}");
        let granted = waiting.granted().await;
        assert!(Some(granted.token()) > seen.token, "{options}");
        release(&session, &granted).await;
    }
}

/// A program that holds the guard key, or the single key, without a place in our queue.
#[tokio::test(flavor = "multi_thread")]
async fn foreign_keys_that_exclude_can_be_broken() {
    let etcd = own_server();
    for (options, folder) in [("form=single", "lockkit/"), (GUARD, "/locks/")] {
        let url = format!("{}/?{options}", etcd.url());
        let (session, admin, name) = (session_at(&url, LONGEST).await, backend(&url), fresh_name());
        let mut program = plain(&etcd).await;
        let lease = program.lease_grant(600, None).await.unwrap().id();
        let own = PutOptions::new().with_lease(lease);
        program.put(format!("{folder}{name}"), "0123456789abcdef", Some(own)).await.unwrap();
        let waiting = enqueued(&session, &name).await;
        let seen = holder(&admin, &name).await;
        assert!(breaks(&admin, &name, &seen).await, "{options}");
        let granted = waiting.granted().await;
        assert!(Some(granted.token()) > seen.token, "{options}");
        assert!(!breaks(&admin, &name, &seen).await, "{options}");
        release(&session, &granted).await;
    }
}

/// Its session is closed, and its key stays until the end of the pin.
#[tokio::test(flavor = "multi_thread")]
async fn pinned_entry_of_a_client_that_left_can_be_broken() {
    let etcd = own_server();
    let (gone, other) = (session(&etcd, LONGEST).await, session(&etcd, LONGEST).await);
    let (admin, name) = (backend(&etcd.url()), fresh_name());
    let held = acquire(&gone, &name).await;
    assert!(gone.pins().unwrap().pin(&held, LONGEST).await.unwrap());
    bounded(gone.close()).await.unwrap();
    let waiting = enqueued(&other, &name).await;
    let seen = holder(&admin, &name).await;
    assert_eq!(seen.token, Some(held.token()));
    assert!(breaks(&admin, &name, &seen).await);
    let granted = waiting.granted().await;
    release(&other, &granted).await;
    bounded(other.close()).await.unwrap();
    assert_eq!(etcd.keys("").unwrap(), [""; 0], "news for a client that is gone");
}

/// The holder uses the Lock RPC and watches nothing: its heartbeat finds the loss.
#[tokio::test(flavor = "multi_thread")]
async fn broken_holder_of_the_rpc_learns_by_its_heartbeat() {
    let etcd = Etcd::start().unwrap();
    let url = format!("{}/?form=rpc", etcd.url());
    let (one, other): (Arc<dyn Session>, _) =
        (session_at(&url, LONGEST).await, session(&etcd, LONGEST).await);
    let (admin, name) = (backend(&url), fresh_name());
    let held = acquire(&one, &name).await;
    let waiting = enqueued(&other, &name).await;
    assert!(breaks(&admin, &name, &holder(&admin, &name).await).await);
    release(&other, &waiting.granted().await).await;
    let renewals = bounded(one.renew(std::slice::from_ref(&held))).await;
    assert!(matches!(renewals.holds[..], [(_, Renewal::Gone)]), "{renewals:?}");
    release(&one, &held).await;
    assert_eq!(etcd.leases().unwrap(), 1);
}

/// Nothing can be put into a full store, but a hold can be ended.
#[tokio::test(flavor = "multi_thread")]
async fn hold_is_broken_in_a_full_store() {
    let etcd = own_server();
    let (session, admin, name) = (session(&etcd, LONGEST).await, backend(&etcd.url()), fresh_name());
    let lost = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    let seen = holder(&admin, &name).await;
    etcd.set_no_space(true).unwrap();
    assert!(breaks(&admin, &name, &seen).await);
    release(&session, &waiting.granted().await).await;
    etcd.set_no_space(false).unwrap();
    release(&session, &lost).await;
}
