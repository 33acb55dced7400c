//! A store that is full, or becomes full with a request.

use std::{sync::Arc, time::Duration};

use lockkit_conformance::direct::{acquire, assert_error, bounded, fresh_name, is_renewed, release, start};
use lockkit_core::{
    ErrorKind,
    backend::{ClaimId, Session},
};
use tokio::time::Instant;
use tonic::Code;

use super::{TTL, config, first, queue_session, session_of};
use crate::{
    EtcdConfig, Form,
    client::{
        GetOptions,
        scripted::{Call, Fate, Script},
    },
    session::{EtcdSession, entry::QueueEntry, late_bump::DELETIONS_OWED_MAX},
};

const SPACE_EXCEEDED: &str = "etcdserver: mvcc: database space exceeded";

/// Refuses what puts a key, as a store under its alarm does.
fn full(call: &Call) -> Fate {
    match call.is("Txn") && call.puts() {
        true => Fate::Refused(Code::ResourceExhausted, SPACE_EXCEEDED),
        false => Fate::Served,
    }
}

/// Returns a rule by which the store reaches its limit with the request of this number, and is full from then on.
fn reaches_its_limit(number: usize) -> impl FnMut(&Call) -> Fate + Send + 'static {
    let mut puts = 0;
    move |call| {
        let is_put = call.is("Txn") && call.puts();
        puts += usize::from(is_put);
        match is_put {
            true if puts < number => Fate::Served,
            true if puts == number => Fate::ExecutedAndRefused(Code::ResourceExhausted, SPACE_EXCEEDED),
            _ => full(call),
        }
    }
}

/// Returns the entry of a hold.
async fn held(session: &Arc<EtcdSession>) -> Arc<QueueEntry> {
    let grant = acquire(&(session.clone() as Arc<dyn Session>), &fresh_name()).await;
    session.claims.get(grant.claim()).unwrap()
}

/// Returns the forms of a lock, with the number of the request that makes the claim the holder.
fn forms() -> [(EtcdConfig, usize); 3] {
    [(config(1), 1), (config(1).form(Form::Single), 1), (config(1).guard("guards/"), 2)]
}

/// Its key would stay in front of all others while the session lives.
#[tokio::test(start_paused = true)]
async fn claim_that_fills_the_store_leaves_no_key() {
    for (config, last) in forms() {
        for number in 1..=last {
            let (script, name) = (Script::default(), fresh_name());
            let session: Arc<dyn Session> = session_of(&script, &config).await;
            script.rule(reaches_its_limit(number));
            let fault = start(&session, &name).ends().await.unwrap_err();
            assert_error(&fault, ErrorKind::Unavailable, "space exceeded");
            assert!(script.keys("lockkit/test").is_empty(), "{config:?}: {:?}", script.keys(""));
            assert!(script.keys("guards/").is_empty(), "{config:?}: {:?}", script.keys(""));
            // The store has room again.
            script.serve();
            release(&session, &acquire(&session, &name).await).await;
            assert!(is_renewed(&session.renew(&[]).await.session));
        }
    }
}

/// As that of each claim of which a request is in doubt.
#[tokio::test(start_paused = true)]
async fn key_of_a_claim_that_filled_the_store_is_not_reused() {
    let (script, name) = (Script::default(), fresh_name());
    let queued = queue_session(&script).await;
    let session: Arc<dyn Session> = queued.clone();
    script.rule(reaches_its_limit(1));
    start(&session, &name).ends().await.unwrap_err();
    let (queue, next) = (queued.layout.queue(&name).unwrap(), ClaimId::random());
    assert_eq!(queued.take_key(&queue, next), queue.key(queued.lease.id(), next));
}

/// What has a copy under way ends without the epoch bump, which would be refused, and later with it.
#[tokio::test(start_paused = true)]
async fn lost_reply_before_the_store_was_full_ends_no_session() {
    for (config, _) in forms() {
        let (script, name) = (Script::default(), fresh_name());
        let queued = session_of(&script, &config).await;
        let session: Arc<dyn Session> = queued.clone();
        script.rule(first(1, "Txn", Fate::Unanswered));
        let held = acquire(&session, &name).await;
        let key = script.keys("lockkit/test")[0].clone();
        let read = queued.server.range(&key, GetOptions::new()).await.unwrap();
        let value = read.kvs()[0].value_str().unwrap().to_owned();
        script.rule(full);
        bounded(session.release(&held)).await.unwrap();
        assert!(!queued.state.is_over() && script.keys("lockkit/test").is_empty());
        let epoch = queued.epoch.current();
        assert!(is_renewed(&session.renew(&[]).await.session));
        assert_eq!(queued.epoch.current(), epoch, "the store is still full");
        // There is room again, and the copy arrives.
        script.serve();
        script.put_leased(&key, &value, queued.keys.lease);
        assert!(is_renewed(&session.renew(&[]).await.session));
        assert!(queued.epoch.current() > epoch && script.keys("lockkit/test").is_empty());
        script.take_calls();
        session.renew(&[]).await;
        assert_eq!(script.count("Txn"), 0, "nothing is owed any more");
        release(&session, &acquire(&session, &name).await).await;
    }
}

/// Another claim may end in the full store while the bump is under way.
#[tokio::test(start_paused = true)]
async fn bump_that_is_owed_meanwhile_is_made_up_for_by_the_next_heartbeat() {
    let script = Script::default();
    let session = queue_session(&script).await;
    let (now, later) = (held(&session).await, held(&session).await);
    session.owe_bump(&now);
    let (owing, mut later) = (session.clone(), Some(later));
    script.rule(move |call| {
        if call.is("Txn")
            && let Some(entry) = later.take()
        {
            owing.owe_bump(&entry);
        }
        Fate::Served
    });
    for left in [1, 0] {
        session.bump_late(TTL).await;
        assert_eq!(script.keys("lockkit/test").len(), left);
    }
    // The rule refers to its own server.
    script.serve();
}

/// etcd refuses transactions of more than 128 operations.
#[tokio::test(start_paused = true)]
async fn what_a_late_bump_deletes_fits_into_transactions() {
    const ENDED: usize = 150;
    let script = Script::default();
    let session = queue_session(&script).await;
    let entry = held(&session).await;
    for _ in 0..ENDED {
        session.owe_bump(&entry);
    }
    let epoch = session.epoch.current();
    for transactions in [1, 1, 0] {
        script.take_calls();
        session.renew(&[]).await;
        assert_eq!(script.count("Txn"), transactions);
    }
    assert!(session.epoch.current() > epoch);
}

/// The heartbeat must end before the next one.
#[tokio::test(start_paused = true)]
async fn late_bump_without_a_reply_takes_one_step_of_a_heartbeat() {
    let script = Script::default();
    let session = session_of(&script, &config(1).request_timeout(TTL)).await;
    let entry = held(&session).await;
    session.owe_bump(&entry);
    script.rule(|call| if call.is("Txn") { Fate::Lost } else { Fate::Served });
    let since = Instant::now();
    assert!(is_renewed(&session.renew(&[]).await.session));
    assert!(since.elapsed() <= TTL / 7 + Duration::from_millis(1), "{:?}", since.elapsed());
}

/// Copies create nothing without its lease.
#[tokio::test(start_paused = true)]
async fn session_that_owes_too_many_deletions_ends() {
    let session = queue_session(&Script::default()).await;
    let entry = held(&session).await;
    for _ in 0..DELETIONS_OWED_MAX {
        session.owe_bump(&entry);
    }
    assert!(!session.state.is_over());
    session.owe_bump(&entry);
    assert!(session.state.is_over());
}
