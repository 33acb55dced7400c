//! What observers see of leaders, and what leaders change.

use std::{sync::Arc, time::Duration};

use etcd_client::PutOptions;
use lockkit_core::{
    ErrorKind, LockName, Metadata, Proposal,
    backend::{Claim, ClaimControl, Grant, LeaderEntry, LeaderWatch, Session},
};
use lockkit_testbed::{Direction, Flow};

use crate::common::{
    LONG, acquire, bounded, cut, deliver_late, fresh_name, granted, key_of_grant, own_server, plain, queue,
    release, session, session_at, shared, start_with_proxy, until,
};

/// After this time without one, a test expects no more hints of an earlier change. A late one weakens the test, and
/// does not fail it.
const QUIET: Duration = Duration::from_millis(200);

fn proposing(value: &str, number: u64) -> Metadata {
    Metadata::of_this_process(Some("test")).with_proposal(Proposal::new(value, number))
}

/// Is elected with this value; waits for it.
pub(crate) async fn elected(session: &Arc<dyn Session>, name: &LockName, value: &str) -> Grant {
    let claim = Claim::new(name.clone(), true, proposing(value, 1), &ClaimControl::new());
    granted(bounded(session.acquire(claim)).await)
}

pub(crate) async fn proclaim(session: &Arc<dyn Session>, grant: &Grant, value: &str, number: u64) -> bool {
    bounded(session.elections().unwrap().proclaim(grant, &proposing(value, number))).await.unwrap()
}

/// Reads the leader, and again if the connection is broken, as a keeper does.
async fn leader(session: &Arc<dyn Session>, name: &LockName) -> Option<LeaderEntry> {
    loop {
        match bounded(session.elections().unwrap().leader(name)).await {
            Ok(leader) => return leader,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
    }
}

pub(crate) async fn watch(session: &Arc<dyn Session>, name: &LockName) -> Box<dyn LeaderWatch> {
    bounded(session.elections().unwrap().watch(name)).await.unwrap()
}

/// Reads the leader whenever the watch wakes, and never otherwise, until its value is this one (`None`: no leader).
pub(crate) async fn sees(
    observer: &Arc<dyn Session>,
    name: &LockName,
    watch: &mut Box<dyn LeaderWatch>,
    value: Option<&str>,
) {
    while leader(observer, name).await.as_ref().map(|leader| &*leader.proposal.value) != value {
        bounded(watch.changed()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_is_the_holder_with_its_latest_proposal() {
    let etcd = shared();
    let (one, other, name) = (session(etcd, LONG).await, session(etcd, LONG).await, fresh_name());
    assert_eq!(leader(&other, &name).await, None);
    let held = acquire(&one, &name).await;
    let ordinary = leader(&other, &name).await.unwrap();
    assert_eq!((ordinary.token, &ordinary.proposal), (held.token(), &Proposal::default()));
    assert_eq!(ordinary.metadata.unwrap().label.as_deref(), Some("test"));
    release(&one, &held).await;

    let elect = elected(&one, &name, "a").await;
    let seen = leader(&other, &name).await.unwrap();
    assert_eq!((seen.token, seen.proposal), (elect.token(), Proposal::new("a", 1)));
    assert!(proclaim(&one, &elect, "b", 2).await && proclaim(&one, &elect, "b", 2).await);
    let seen = leader(&other, &name).await.unwrap();
    assert_eq!((seen.token, seen.proposal), (elect.token(), Proposal::new("b", 2)));
    // Of two proclamations under way, the earlier one may come last.
    assert!(proclaim(&one, &elect, "a", 1).await);
    assert_eq!(leader(&other, &name).await.unwrap().proposal, Proposal::new("b", 2));
    // Still attached to its lease.
    let key = key_of_grant(&elect);
    assert!(etcd.leased().unwrap().contains(&(key.to_owned(), true)));
    release(&one, &elect).await;
    assert!(!proclaim(&one, &elect, "c", 3).await);
    assert_eq!(leader(&other, &name).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn proclamation_of_a_deposed_leader_is_refused() {
    let etcd = own_server();
    let (one, other, name) = (session(&etcd, LONG).await, session(&etcd, LONG).await, fresh_name());
    let old = elected(&one, &name, "old").await;
    etcd.delete(key_of_grant(&old)).unwrap();
    let new = elected(&other, &name, "new").await;
    assert!(!proclaim(&one, &old, "late", 2).await);
    let seen = leader(&one, &name).await.unwrap();
    assert_eq!((seen.token, &*seen.proposal.value), (new.token(), "new"));
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_wakes_on_every_change_of_the_leader() {
    let etcd = own_server();
    let (observer, one, name) = (session(&etcd, LONG).await, session(&etcd, LONG).await, fresh_name());
    let mut watch = watch(&observer, &name).await;
    let wakes = async |watch: &mut Box<dyn LeaderWatch>, value| {
        bounded(watch.changed()).await;
        sees(&observer, &name, watch, value).await;
        // Until nothing is left of what has woken it.
        while tokio::time::timeout(QUIET, watch.changed()).await.is_ok() {}
    };
    wakes(&mut watch, None).await;
    let elect = elected(&one, &name, "a").await;
    wakes(&mut watch, Some("a")).await;
    assert!(proclaim(&one, &elect, "b", 2).await);
    wakes(&mut watch, Some("b")).await;
    release(&one, &elect).await;
    wakes(&mut watch, None).await;
    let _elect = elected(&one, &name, "c").await;
    wakes(&mut watch, Some("c")).await;
    // As it expires: the server ends the lease.
    one.close().await.unwrap();
    wakes(&mut watch, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_copy_of_an_older_proclamation_does_not_undo_a_newer_one() {
    let (etcd, proxy, one) = start_with_proxy().await;
    let name = fresh_name();
    let elect = elected(&one, &name, "first").await;
    proxy.set(Direction::Requests, Flow::Hold);
    let lost = tokio::spawn({
        let (one, elect) = (one.clone(), elect.clone());
        async move { one.elections().unwrap().proclaim(&elect, &proposing("second", 2)).await }
    });
    until("it is under way", async || proxy.holds("second")).await;
    cut(&proxy);
    assert_eq!(bounded(lost).await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    for (value, number) in [("second", 2), ("third", 3)] {
        // The connection may still be the broken one.
        while one.elections().unwrap().proclaim(&elect, &proposing(value, number)).await.is_err() {}
    }
    deliver_late(&etcd, &proxy).await;
    assert_eq!(leader(&one, &name).await.unwrap().proposal, Proposal::new("third", 3));
}

/// The reply to the first request is lost, so the repeated one must find that it was executed.
#[tokio::test(flavor = "multi_thread")]
async fn proclamation_whose_reply_was_lost_is_found_again() {
    let (etcd, proxy, one) = start_with_proxy().await;
    let name = fresh_name();
    let elect = elected(&one, &name, "first").await;
    let seen_by = session(&etcd, LONG).await;
    proxy.set(Direction::Replies, Flow::Drop);
    let (elections, second) = (one.elections().unwrap(), proposing("second", 2));
    assert!(bounded(elections.proclaim(&elect, &second)).await.is_err());
    assert_eq!(leader(&seen_by, &name).await.unwrap().proposal.value, "second");
    cut(&proxy);
    let version =
        async || plain(&etcd).await.get(key_of_grant(&elect), None).await.unwrap().kvs()[0].version();
    let before = version().await;
    while elections.proclaim(&elect, &second).await.is_err() {}
    assert_eq!(version().await, before, "it was put again");
    assert!(proclaim(&one, &elect, "third", 3).await);
    assert_eq!(leader(&seen_by, &name).await.unwrap().proposal.value, "third");
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_verbatim_with_raw_names() {
    let etcd = own_server();
    let one = session_at(&format!("{}/?names=raw", etcd.url()), LONG).await;
    let name = fresh_name();
    let held = acquire(&one, &name).await;
    let ordinary = leader(&one, &name).await.unwrap();
    assert_eq!((ordinary.token, ordinary.proposal), (held.token(), Proposal::default()));
    assert!(ordinary.metadata.is_some());
    release(&one, &held).await;
    let elect = elected(&one, &name, "10.0.0.1:80").await;
    let stored = plain(&etcd).await.get(key_of_grant(&elect), None).await.unwrap();
    assert_eq!(stored.kvs()[0].value(), b"10.0.0.1:80");
    assert_eq!(leader(&one, &name).await.unwrap().proposal, Proposal::new("10.0.0.1:80", 1));
    assert!(proclaim(&one, &elect, "", 2).await);
    let seen = leader(&one, &name).await.unwrap();
    assert_eq!((&*seen.proposal.value, seen.metadata), ("", None));
    assert!(seen.proposal.number > 1);
    release(&one, &elect).await;

    let mut other = plain(&etcd).await;
    let lease = other.lease_grant(60, None).await.unwrap().id();
    let key = format!("{name}/{lease:x}");
    for (value, proposal) in [("", Proposal::default()), ("go", Proposal::new("go", 2))] {
        other.put(key.clone(), value, Some(PutOptions::new().with_lease(lease))).await.unwrap();
        assert_eq!(leader(&one, &name).await.unwrap().proposal, proposal);
    }
    other.put(key, vec![0xff], None).await.unwrap();
    let error = bounded(one.elections().unwrap().leader(&name)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected);
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_holder_proposes_nothing_with_encoded_names() {
    let etcd = own_server();
    let (one, name) = (session(&etcd, Duration::from_secs(60)).await, fresh_name());
    plain(&etcd).await.put(format!("{}1f", queue(&name)), vec![0xff], None).await.unwrap();
    let seen = leader(&one, &name).await.unwrap();
    assert_eq!((seen.proposal, seen.metadata), (Proposal::default(), None));
}
