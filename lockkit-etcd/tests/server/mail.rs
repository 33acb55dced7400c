//! How a released lock reaches the client that is next: by a mail of its own, not by the slower watch on a predecessor.

use std::sync::Arc;

use lockkit_core::{LockName, backend::Session};
use lockkit_testbed::{Direction, Etcd, Flow, Proxy};

use crate::common::{
    LONG, acquire, cut, enqueued, fresh_name, is_gave_up, key_of, name, plain, release, session, session_at,
    until, url_through,
};

/// Whether the client that has this key, and whose own keys lie below `prefix`, has a mail for it.
async fn has_mail(etcd: &Etcd, prefix: &str, key: &str) -> bool {
    let (lease, _) = key.rsplit_once('/').unwrap().1.split_once('-').unwrap();
    let mailbox = format!("{prefix}:clients/{lease}/mailbox");
    let found = plain(etcd).await.get(mailbox, None).await.unwrap();
    found.kvs()[0].value_str().unwrap().contains(key)
}

/// Whether the next client learns by mail that this one releases the lock, which each of them calls by another name.
async fn releases_by_mail(
    etcd: &Etcd,
    (from, lock): (&Arc<dyn Session>, &LockName),
    (to, same_lock): (&Arc<dyn Session>, &LockName),
    prefix: &str,
) -> bool {
    let held = acquire(from, lock).await;
    let next = enqueued(to, same_lock).await;
    let key = key_of(etcd, &next.claim);
    release(from, &held).await;
    release(to, &next.granted().await).await;
    has_mail(etcd, prefix, &key).await
}

/// As etcd 3.7 reads keys without their values (etcd #22209).
#[tokio::test(flavor = "multi_thread")]
async fn next_client_gets_mail_where_reads_answer_keys_without_leases() {
    let etcd = Etcd::start().unwrap();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let (holder, waiter) = (session_at(&url_through(&proxy), LONG).await, session(&etcd, LONG).await);
    let lock = fresh_name();
    proxy.hide_leases();
    assert!(releases_by_mail(&etcd, (&holder, &lock), (&waiter, &lock), "lockkit/").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn next_client_gets_mail_where_its_own_keys_lie_below_another_prefix() {
    let etcd = Etcd::start().unwrap();
    let prefixed = session(&etcd, LONG).await;
    let raw = session_at(&format!("{}/?names=raw", etcd.url()), LONG).await;
    // One lock with two names.
    let both = |lock: LockName| (name(&format!("lockkit/{lock}")), lock);
    let (its, own) = both(fresh_name());
    assert!(releases_by_mail(&etcd, (&prefixed, &own), (&raw, &its), "").await, "to the raw one");
    let (its, own) = both(fresh_name());
    assert!(releases_by_mail(&etcd, (&raw, &its), (&prefixed, &own), "lockkit/").await, "from the raw one");
}

/// The mail comes while the withdrawal is on its way, whose reply gets lost.
#[tokio::test(flavor = "multi_thread")]
async fn claim_that_was_granted_while_it_withdraws_passes_the_lock_on_by_mail() {
    let etcd = Etcd::start().unwrap();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let (one, other) = (session(&etcd, LONG).await, session_at(&url_through(&proxy), LONG).await);
    let lock = fresh_name();
    let held = acquire(&one, &lock).await;
    let leaving = enqueued(&other, &lock).await;
    let next = enqueued(&one, &lock).await;
    let (key, next_key) = (key_of(&etcd, &leaving.claim), key_of(&etcd, &next.claim));
    proxy.set(Direction::Requests, Flow::Hold);
    leaving.control.give_up();
    until("the withdrawal is on its way", async || proxy.holds(&key)).await;
    let heard = proxy.counts().to_client;
    release(&one, &held).await;
    until("the mail has come", async || proxy.counts().to_client > heard + key.len() as u64).await;
    cut(&proxy);
    assert!(is_gave_up(&leaving.ends().await));
    release(&one, &next.granted().await).await;
    assert!(has_mail(&etcd, "lockkit/", &next_key).await);
}
