//! Requests per operation, read from the server's own counters. Exact numbers, no times.

use lockkit_testbed::{Etcd, Metrics};

use crate::common::{
    LONG, acquire, enqueued, fresh_name, granted, is_gave_up, release, session, try_acquire,
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
    let spent = spent(&before.unwrap(), &etcd.metrics().unwrap());
    assert_eq!(spent, Spent { txns: 2 * ROUNDS, ranges: ROUNDS, others: 0, proposals: 2 * ROUNDS });
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
    assert!(spent.ranges <= grants + grants / 10, "{spent:?} for {grants} grants");
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
