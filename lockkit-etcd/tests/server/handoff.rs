//! Handoffs: a release writes the handoff key of the next client, which is faster than its watch on the predecessor.

use std::sync::Arc;

use lockkit_core::{LockName, backend::Session};
use lockkit_testbed::{Direction, Etcd, Flow, Proxy};

use crate::common::{
    LONG, acquire, cut, enqueued, fresh_name, is_entry_gone, is_gave_up, key_of, name, own_server, plain,
    queue, release, session, session_at, until, url_through,
};

/// Returns whether the handoff key of the client with this claim key, below `prefix`, names that claim.
async fn has_handoff(etcd: &Etcd, prefix: &str, key: &str) -> bool {
    let (lease, _) = key.rsplit_once('/').unwrap().1.split_once('-').unwrap();
    let handoff_key = format!("{prefix}:clients/{lease}/mailbox");
    let found = plain(etcd).await.get(handoff_key, None).await.unwrap();
    found.kvs()[0].value_str().unwrap().contains(key)
}

/// Returns whether the release of a lock writes a handoff for the next client. Each client has its own name of the
/// lock.
async fn releases_by_handoff(
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
    has_handoff(etcd, prefix, &key).await
}

/// etcd 3.7 omits leases from reads of keys only (etcd #22209).
#[tokio::test(flavor = "multi_thread")]
async fn handoff_works_when_reads_omit_leases() {
    let etcd = own_server();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let (holder, waiter) = (session_at(&url_through(&proxy), LONG).await, session(&etcd, LONG).await);
    let lock = fresh_name();
    proxy.hide_leases();
    assert!(releases_by_handoff(&etcd, (&holder, &lock), (&waiter, &lock), "lockkit/").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn handoff_works_across_prefixes() {
    let etcd = own_server();
    let prefixed = session(&etcd, LONG).await;
    let raw = session_at(&format!("{}/?names=raw", etcd.url()), LONG).await;
    // One lock with two names.
    let both = |lock: LockName| (name(&format!("lockkit/{lock}")), lock);
    let (its, own) = both(fresh_name());
    assert!(releases_by_handoff(&etcd, (&prefixed, &own), (&raw, &its), "").await, "to the raw one");
    let (its, own) = both(fresh_name());
    assert!(
        releases_by_handoff(&etcd, (&raw, &its), (&prefixed, &own), "lockkit/").await,
        "from the raw one"
    );
}

/// The handoff to the second client names those behind it, as they were then. The third one comes back with the same
/// key.
#[tokio::test(flavor = "multi_thread")]
async fn contender_that_has_left_since_the_look_is_passed_over() {
    let (etcd, lock) = (own_server(), fresh_name());
    let mut sessions = Vec::new();
    for _ in 0..4 {
        sessions.push(session(&etcd, LONG).await);
    }
    let held = acquire(&sessions[0], &lock).await;
    let second = enqueued(&sessions[1], &lock).await;
    let third = enqueued(&sessions[2], &lock).await;
    let fourth = enqueued(&sessions[3], &lock).await;
    let key = key_of(&etcd, &fourth.claim);
    release(&sessions[0], &held).await;
    let held = second.granted().await;
    let third_key = key_of(&etcd, &third.claim);
    third.control.give_up();
    assert!(is_gave_up(&third.ends().await));
    let last = enqueued(&sessions[2], &lock).await;
    assert_eq!(etcd.keys(&queue(&lock)).unwrap().last(), Some(&third_key));
    release(&sessions[1], &held).await;
    let held = fourth.granted().await;
    assert!(has_handoff(&etcd, "lockkit/", &key).await);
    release(&sessions[3], &held).await;
    release(&sessions[2], &last.granted().await).await;
}

/// The handoff comes while the withdrawal is under way, whose reply is lost.
#[tokio::test(flavor = "multi_thread")]
async fn claim_granted_during_its_withdrawal_hands_the_lock_off() {
    let etcd = own_server();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let (one, other) = (session(&etcd, LONG).await, session_at(&url_through(&proxy), LONG).await);
    let lock = fresh_name();
    let held = acquire(&one, &lock).await;
    let leaving = enqueued(&other, &lock).await;
    let next = enqueued(&one, &lock).await;
    let (key, next_key) = (key_of(&etcd, &leaving.claim), key_of(&etcd, &next.claim));
    proxy.set(Direction::Requests, Flow::Hold);
    leaving.control.give_up();
    until("the withdrawal is under way", async || proxy.holds(&key)).await;
    let received = proxy.counts().to_client;
    release(&one, &held).await;
    until("the handoff has come", async || proxy.counts().to_client > received + key.len() as u64).await;
    cut(&proxy);
    assert!(is_gave_up(&leaving.ends().await));
    release(&one, &next.granted().await).await;
    assert!(has_handoff(&etcd, "lockkit/", &next_key).await);
}

/// The holder knows it as its successor. Only the reply to the handoff shows that it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_waiter_of_the_same_client_is_not_granted() {
    let (etcd, lock) = (own_server(), fresh_name());
    let (one, other) = (session(&etcd, LONG).await, session(&etcd, LONG).await);
    let held = acquire(&one, &lock).await;
    let second = enqueued(&one, &lock).await;
    let deleted = enqueued(&one, &lock).await;
    release(&one, &held).await;
    let held = second.granted().await;
    assert!(etcd.delete(&key_of(&etcd, &deleted.claim)).unwrap());
    release(&one, &held).await;
    let next = acquire(&other, &lock).await;
    assert!(is_entry_gone(&deleted.ends().await));
    release(&other, &next).await;
}

/// As after a restore from a backup that has keys, and not their leases.
#[tokio::test(flavor = "multi_thread")]
async fn successor_whose_lease_does_not_exist_does_not_fail_a_release() {
    let (etcd, lock) = (own_server(), fresh_name());
    let (one, other) = (session(&etcd, LONG).await, session(&etcd, LONG).await);
    let held = acquire(&one, &lock).await;
    let waiting = enqueued(&other, &lock).await;
    let key = key_of(&etcd, &waiting.claim);
    let (lease, rest) = key.strip_prefix(&queue(&lock)).unwrap().split_once('-').unwrap();
    assert!(i64::from_str_radix(lease, 16).is_ok(), "{key}");
    release(&one, &held).await;
    let held = waiting.granted().await;
    let successor = format!("{}7-{rest}", queue(&lock));
    etcd.put(&successor, "").unwrap();
    release(&other, &held).await;
    assert_eq!(etcd.keys(&queue(&lock)).unwrap(), [successor]);
}
