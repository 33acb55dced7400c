//! Requests per operation, read from the server's own counters. Exact numbers, no times.

use lockkit_testbed::{Etcd, Metrics};

use crate::common::{
    LONG, acquire, bounded, enqueued, fresh_name, granted, is_gave_up, release, session, try_acquire,
};

/// What the server counted between two moments.
#[derive(Debug, PartialEq, Eq)]
struct Spent {
    txns: u64,
    ranges: u64,
    others: u64,
    proposals: u64,
}

fn spent(before: &Metrics, after: &Metrics) -> Spent {
    let handled = |method| after.grpc_handled(method) - before.grpc_handled(method);
    let others = ["Put", "DeleteRange", "LeaseGrant", "LeaseRevoke", "LeaseTimeToLive", "Compact", "Lock"];
    let pings = after.grpc_received("LeaseKeepAlive") - before.grpc_received("LeaseKeepAlive");
    Spent {
        txns: handled("Txn"),
        ranges: handled("Range"),
        others: others.into_iter().map(handled).sum::<u64>() + pings,
        proposals: after.proposals() - before.proposals(),
    }
}

/// One read for each hand-over, and now and then a look by a waiter whose mail took long on a busy machine.
fn with_some_looks(hand_overs: u64) -> u64 {
    hand_overs + hand_overs / 10
}

#[tokio::test(flavor = "multi_thread")]
async fn uncontended_acquire_and_release_are_two_transactions() {
    const ROUNDS: u64 = 50;
    let etcd = Etcd::start().unwrap();
    let (session, name) = (session(&etcd, LONG).await, fresh_name());
    let before = etcd.metrics().unwrap();
    for _ in 0..ROUNDS {
        let grant = acquire(&session, &name).await;
        release(&session, &grant).await;
    }
    let spent = spent(&before, &etcd.metrics().unwrap());
    assert_eq!(spent, Spent { txns: 2 * ROUNDS, ranges: 0, others: 0, proposals: 2 * ROUNDS });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_is_two_transactions_and_a_read() {
    const ROUNDS: u64 = 50;
    let etcd = Etcd::start().unwrap();
    let (one, other, name) = (session(&etcd, LONG).await, session(&etcd, LONG).await, fresh_name());
    let mut holder = (one.clone(), acquire(&one, &name).await);
    // The first release does not know yet that somebody waits, and may cost more.
    let mut before = None;
    for round in 0..=ROUNDS {
        let session = if round % 2 == 0 { &other } else { &one };
        let next = enqueued(session, &name).await;
        release(&holder.0, &holder.1).await;
        holder = (session.clone(), next.granted().await);
        before.get_or_insert_with(|| etcd.metrics().unwrap());
    }
    let (before, after) = (before.unwrap(), etcd.metrics().unwrap());
    let spent = spent(&before, &after);
    assert_eq!((spent.txns, spent.proposals, spent.others), (2 * ROUNDS, 2 * ROUNDS, 0));
    assert!(spent.ranges <= with_some_looks(ROUNDS), "{spent:?}");
    // Two for each predecessor that is watched: those whose mail took long on a busy machine.
    let watches = after.grpc_received("Watch") - before.grpc_received("Watch");
    assert!(watches < ROUNDS + ROUNDS / 2, "{watches} messages about watches");
}

#[tokio::test(flavor = "multi_thread")]
async fn contention_costs_less_than_2_7_proposals_per_hand_over() {
    const CLIENTS: usize = 8;
    const GRANTS_EACH: usize = 50;
    let (etcd, name) = (Etcd::start().unwrap(), fresh_name());
    let mut sessions = Vec::new();
    for _ in 0..CLIENTS {
        sessions.push(session(&etcd, LONG).await);
    }
    let before = etcd.metrics().unwrap();
    let tasks = sessions.into_iter().map(|session| {
        let name = name.clone();
        tokio::spawn(async move {
            for _ in 0..GRANTS_EACH {
                let grant = acquire(&session, &name).await;
                release(&session, &grant).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let spent = spent(&before, &etcd.metrics().unwrap());
    let grants = (CLIENTS * GRANTS_EACH) as u64;
    assert!(spent.proposals * 10 <= grants * 27, "{spent:?} for {grants} grants");
    assert!(spent.ranges <= with_some_looks(grants), "{spent:?} for {grants} grants");
    assert_eq!(spent.others, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn tries_for_a_held_lock_cost_no_proposals_but_the_first() {
    const TRIES: u64 = 20;
    let etcd = Etcd::start().unwrap();
    let (session, other, name) = (session(&etcd, LONG).await, session(&etcd, LONG).await, fresh_name());
    let held = acquire(&other, &name).await;
    assert!(is_gave_up(&try_acquire(&session, &name).await));
    let before = etcd.metrics().unwrap();
    for _ in 0..TRIES {
        assert!(is_gave_up(&try_acquire(&session, &name).await));
    }
    let spent = spent(&before, &etcd.metrics().unwrap());
    assert_eq!(spent, Spent { txns: 0, ranges: TRIES, others: 0, proposals: 0 });
    release(&other, &held).await;
    let grant = granted(try_acquire(&session, &name).await);
    release(&session, &grant).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beat_is_one_ping_and_one_look_whatever_is_held() {
    const HOLDS: usize = 50;
    let etcd = Etcd::start().unwrap();
    let session = session(&etcd, LONG).await;
    let mut held = Vec::new();
    for _ in 0..HOLDS {
        held.push(acquire(&session, &fresh_name()).await);
    }
    let before = etcd.metrics().unwrap();
    let beat = bounded(session.renew(&held)).await;
    assert_eq!(beat.holds.len(), HOLDS);
    let after = etcd.metrics().unwrap();
    assert_eq!(spent(&before, &after), Spent { txns: 0, ranges: 0, others: 2, proposals: 0 });
    assert_eq!(after.grpc_handled("LeaseTimeToLive") - before.grpc_handled("LeaseTimeToLive"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_queue_costs_no_more_per_waiter_than_a_short_one() {
    const CLIENTS: usize = 4;
    const WAITERS: usize = 200;
    let (etcd, name) = (Etcd::start().unwrap(), fresh_name());
    let mut sessions = Vec::new();
    for _ in 0..CLIENTS {
        sessions.push(session(&etcd, LONG).await);
    }
    let mut holder = (sessions[0].clone(), acquire(&sessions[0], &name).await);
    let mut waiting = Vec::new();
    for number in 0..WAITERS {
        let session = &sessions[number % CLIENTS];
        waiting.push((session.clone(), enqueued(session, &name).await));
    }
    let before = etcd.metrics().unwrap();
    for (session, next) in waiting {
        release(&holder.0, &holder.1).await;
        holder = (session, next.granted().await);
    }
    let after = etcd.metrics().unwrap();
    let (spent, waiters) = (spent(&before, &after), WAITERS as u64);
    // Each is told of its mail and of its predecessor's end; the first release costs one transaction more.
    assert!(after.events() - before.events() <= 3 * waiters, "{}", after.events() - before.events());
    assert!(spent.txns <= waiters + 1 && spent.others == 0, "{spent:?}");
    assert!(spent.ranges <= with_some_looks(waiters), "{spent:?}");
}

/// Also when a newer claim of the same client has the key by then.
#[tokio::test(flavor = "multi_thread")]
async fn release_of_a_grant_that_has_ended_sends_nothing() {
    let etcd = Etcd::start().unwrap();
    let (session, name) = (session(&etcd, LONG).await, fresh_name());
    let ended = acquire(&session, &name).await;
    release(&session, &ended).await;
    let held = acquire(&session, &name).await;
    let before = etcd.metrics().unwrap();
    release(&session, &ended).await;
    let spent = spent(&before, &etcd.metrics().unwrap());
    assert_eq!(spent, Spent { txns: 0, ranges: 0, others: 0, proposals: 0 });
    release(&session, &held).await;
}
