//! Replies that are lost, and requests that arrive late.

use std::sync::Arc;

use etcd_client::KeyValue;
use lockkit_core::{
    ErrorKind, FencingToken, LockName, Metadata, Proposal,
    backend::{Grant, Renewal, Session},
};
use lockkit_testbed::{Direction, Etcd, Flow, Proxy};

use crate::common::{
    LONG, OwnServer, PendingClaim, acquire, bounded, cut, deliver_late, enqueued, fresh_name, is_gave_up,
    key_of, key_of_grant, plain, queue, release, session, start, start_claim, start_with_proxy, txns, until,
};

async fn late_copy_leaves_nothing(etcd: &Etcd, proxy: &Proxy, name: &LockName) {
    deliver_late(etcd, proxy).await;
    assert_eq!(etcd.keys(&queue(name)).unwrap(), [""; 0], "the late copy left a key");
}

/// Starts a claim whose enqueue the proxy holds.
async fn held_claim(proxy: &Proxy, session: &Arc<dyn Session>, name: &LockName, wait: bool) -> PendingClaim {
    proxy.set(Direction::Requests, Flow::Hold);
    let claim = start_claim(session, name, wait);
    until("the proxy holds the request", async || proxy.holds(&claim.claim.id().to_string())).await;
    claim
}

/// Gives up a claim with this key; the proxy holds its withdrawal.
async fn hold_withdrawal(proxy: &Proxy, claim: &PendingClaim, key: &str) {
    proxy.set(Direction::Requests, Flow::Hold);
    claim.control.give_up();
    until("the proxy holds the withdrawal", async || proxy.holds(key)).await;
}

/// Releases the only entry of a queue, without an answer.
async fn lose_reply_to_release(etcd: &Etcd, proxy: &Proxy, session: &Arc<dyn Session>, held: &Grant) {
    proxy.set(Direction::Replies, Flow::Drop);
    assert!(bounded(session.release(held)).await.is_err());
    until("the release is executed", async || etcd.keys(&queue(held.name())).unwrap().is_empty()).await;
}

/// Returns a server for one test with two clients; the first one is connected through a proxy.
async fn start_with_other() -> (OwnServer, Proxy, Arc<dyn Session>, Arc<dyn Session>, LockName) {
    let (etcd, proxy, first) = start_with_proxy().await;
    let other = session(&etcd, LONG).await;
    (etcd, proxy, first, other, fresh_name())
}

async fn entry_of(etcd: &Etcd, grant: &Grant) -> KeyValue {
    plain(etcd).await.get(key_of_grant(grant), None).await.unwrap().kvs()[0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_whose_reply_was_lost_is_found_again() {
    let (etcd, proxy, session) = start_with_proxy().await;
    let name = fresh_name();
    for wait in [true, false] {
        proxy.set(Direction::Replies, Flow::Drop);
        let claim = start_claim(&session, &name, wait);
        until("the claim is executed", async || etcd.keys(&queue(&name)).unwrap().len() == 1).await;
        cut(&proxy);
        let grant = claim.granted().await;
        assert_eq!(etcd.keys(&queue(&name)).unwrap().len(), 1);
        let created = entry_of(&etcd, &grant).await.create_revision();
        assert_eq!(grant.token(), FencingToken::new(created.unsigned_abs()));
        release(&session, &grant).await;
        assert_eq!(etcd.keys(&queue(&name)).unwrap(), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn late_enqueue_after_cancel_leaves_nothing() {
    let (etcd, proxy, session) = start_with_proxy().await;
    let name = fresh_name();
    let claim = held_claim(&proxy, &session, &name, true).await;
    claim.control.give_up();
    cut(&proxy);
    assert!(is_gave_up(&claim.ends().await));
    late_copy_leaves_nothing(&etcd, &proxy, &name).await;
    // The epoch key has been written by the withdrawal; it still ends with the session.
    bounded(session.close()).await.unwrap();
    assert_eq!(etcd.keys("").unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn late_enqueue_after_release_leaves_nothing() {
    let (etcd, proxy, session) = start_with_proxy().await;
    let grant = granted_before_a_late_copy(&proxy, &session).await;
    release(&session, &grant).await;
    late_copy_leaves_nothing(&etcd, &proxy, grant.name()).await;
    // The epoch was bumped; the next claim carries the new one.
    let grant = acquire(&session, grant.name()).await;
    release(&session, &grant).await;
}

/// Is granted a lock by the second copy of its enqueue; the first one is still under way.
async fn granted_before_a_late_copy(proxy: &Proxy, session: &Arc<dyn Session>) -> Grant {
    let claim = held_claim(proxy, session, &fresh_name(), true).await;
    cut(proxy);
    claim.granted().await
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_key_that_a_late_enqueue_creates_again_is_no_hold() {
    let (etcd, proxy, session) = start_with_proxy().await;
    let grant = granted_before_a_late_copy(&proxy, &session).await;
    assert!(etcd.delete(key_of_grant(&grant)).unwrap());
    deliver_late(&etcd, &proxy).await;
    let renewals = bounded(session.renew(std::slice::from_ref(&grant))).await;
    assert!(matches!(renewals.holds[..], [(_, Renewal::Gone)]), "{renewals:?}");
    release(&session, &grant).await;
    assert_eq!(etcd.keys(&queue(grant.name())).unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn late_enqueue_after_the_release_of_a_deleted_key_leaves_nothing() {
    let (etcd, proxy, session) = start_with_proxy().await;
    let grant = granted_before_a_late_copy(&proxy, &session).await;
    assert!(etcd.delete(key_of_grant(&grant)).unwrap());
    release(&session, &grant).await;
    late_copy_leaves_nothing(&etcd, &proxy, grant.name()).await;
}

/// The late copy has the original value and the session's lease.
#[tokio::test(flavor = "multi_thread")]
async fn late_enqueue_undoes_neither_a_pin_nor_a_proposal() {
    let (etcd, proxy, session) = start_with_proxy().await;
    for pins in [true, false] {
        let grant = granted_before_a_late_copy(&proxy, &session).await;
        let original = entry_of(&etcd, &grant).await.mod_revision();
        let proposing = Metadata::of_this_process(None).with_proposal(Proposal::new("later", 2));
        let changes = match pins {
            true => bounded(session.pins().unwrap().pin(&grant, LONG)).await,
            false => bounded(session.elections().unwrap().proclaim(&grant, &proposing)).await,
        };
        assert!(changes.unwrap());
        let changed = entry_of(&etcd, &grant).await.mod_revision();
        assert!(changed > original);
        deliver_late(&etcd, &proxy).await;
        assert_eq!(entry_of(&etcd, &grant).await.mod_revision(), changed, "the late copy put the key again");
        release(&session, &grant).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn late_enqueue_after_a_busy_try_leaves_nothing() {
    let (etcd, proxy, session, other, name) = start_with_other().await;
    let claim = held_claim(&proxy, &session, &name, false).await;
    let held = acquire(&other, &name).await;
    cut(&proxy);
    assert!(is_gave_up(&claim.ends().await));
    release(&other, &held).await;
    late_copy_leaves_nothing(&etcd, &proxy, &name).await;
}

/// A withdrawal that bumps the epoch was repeated; its first copy arrives later, and bumps the epoch again.
#[tokio::test(flavor = "multi_thread")]
async fn claim_after_a_late_epoch_bump_learns_the_epoch() {
    let (etcd, proxy, session, other, name) = start_with_other().await;
    let held = acquire(&other, &name).await;
    proxy.set(Direction::Replies, Flow::Drop);
    let claim = start(&session, &name);
    until("the enqueue is executed", async || etcd.keys(&queue(&name)).unwrap().len() == 2).await;
    let (key, before) = (key_of(&etcd, &claim.claim), txns(&etcd));
    cut(&proxy);
    until("the enqueue is repeated", async || txns(&etcd) > before).await;
    hold_withdrawal(&proxy, &claim, &key).await;
    cut(&proxy);
    assert!(is_gave_up(&claim.ends().await));
    deliver_late(&etcd, &proxy).await;
    let grant = acquire(&session, &fresh_name()).await;
    release(&session, &grant).await;
    release(&other, &held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_release_is_confirmed_and_spares_a_newer_grant() {
    let (etcd, proxy, session, other, name) = start_with_other().await;
    let first = acquire(&session, &name).await;
    let next = enqueued(&other, &name).await;
    proxy.set(Direction::Replies, Flow::Drop);
    assert_eq!(bounded(session.release(&first)).await.unwrap_err().kind(), ErrorKind::Unavailable);
    // The read for the successor was lost already; the lock is still held.
    assert!(next.is_waiting());
    cut(&proxy);
    release(&session, &first).await;
    let second = next.granted().await;

    let third = enqueued(&session, &name).await;
    release(&other, &second).await;
    let third = third.granted().await;
    // Alone, so that the release of the fourth is one transaction, and its reply is lost.
    release(&session, &third).await;
    let fourth = acquire(&session, &name).await;
    lose_reply_to_release(&etcd, &proxy, &session, &fourth).await;
    let fifth = acquire(&other, &name).await;
    cut(&proxy);
    release(&session, &fourth).await;
    assert_eq!(etcd.keys(&queue(&name)).unwrap().len(), 1, "the newer grant is still there");
    release(&other, &fifth).await;
}

/// The first one is refuted, the second one shows that the key is gone.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_release_of_a_lone_hold_takes_two_transactions() {
    let (etcd, proxy, session) = start_with_proxy().await;
    let name = fresh_name();
    let held = acquire(&session, &name).await;
    lose_reply_to_release(&etcd, &proxy, &session, &held).await;
    cut(&proxy);
    let before = txns(&etcd);
    release(&session, &held).await;
    assert_eq!(txns(&etcd) - before, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn withdrawal_is_repeated_until_answered() {
    let (etcd, proxy, session, other, name) = start_with_other().await;
    let held = acquire(&other, &name).await;
    let waiting = enqueued(&session, &name).await;
    let key = key_of(&etcd, &waiting.claim);
    // Until then it reads its place, by its key.
    until("it watches its predecessor", async || etcd.metrics().unwrap().watchers() == 3).await;
    // The first copy never arrives.
    hold_withdrawal(&proxy, &waiting, &key).await;
    assert_eq!(etcd.keys(&queue(&name)).unwrap().len(), 2);
    cut(&proxy);
    assert!(is_gave_up(&waiting.ends().await));
    assert_eq!(etcd.keys(&queue(&name)).unwrap().len(), 1);
    release(&other, &held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn key_in_doubt_is_not_reused() {
    let (etcd, proxy, session, other, name) = start_with_other().await;
    let held = acquire(&other, &name).await;
    let waiting = enqueued(&session, &name).await;
    let key = key_of(&etcd, &waiting.claim);
    // Two copies of its withdrawal are sent: one is answered, the other one arrives late.
    hold_withdrawal(&proxy, &waiting, &key).await;
    cut(&proxy);
    assert!(is_gave_up(&waiting.ends().await));
    let again = enqueued(&session, &name).await;
    deliver_late(&etcd, &proxy).await;
    assert_eq!(
        etcd.keys(&queue(&name)).unwrap().len(),
        2,
        "the late withdrawal deleted the key of the new claim"
    );
    release(&other, &held).await;
    release(&session, &again.granted().await).await;
}
