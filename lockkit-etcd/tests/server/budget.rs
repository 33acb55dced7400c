//! Requests per operation, from the server's own counters. Exact numbers, no times.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockkit_core::{
    LockName,
    backend::{Renewal, Session},
    limits::RECHECK_PAUSE_MAX,
};
use lockkit_testbed::{Etcd, Metrics};

use crate::common::{
    LONGEST, acquire, bounded, enqueued, fresh_name, granted, is_gave_up, key_of_grant, own_server, plain,
    release, session, try_acquire, until,
};

/// The least pause before a re-check, 7/8 of the usual one.
const RECHECK_PAUSE_LEAST: Duration = RECHECK_PAUSE_MAX.saturating_sub(Duration::from_millis(1250));

/// The requests that the server counted between two moments.
#[derive(Debug, PartialEq, Eq)]
struct Spent {
    txns: u64,
    ranges: u64,
    others: u64,
    proposals: u64,
    /// Ranges of keys that were read, also by compares and inside transactions.
    reads: u64,
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
        reads: reads(after) - reads(before),
    }
}

fn bytes_received(metrics: &Metrics) -> u64 {
    metrics.sum("etcd_network_client_grpc_received_bytes_total", &[])
}

fn reads(metrics: &Metrics) -> u64 {
    metrics.sum("etcd_mvcc_range_total", &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn uncontended_acquire_and_release_are_two_transactions() {
    const ROUNDS: u64 = 50;
    /// Besides the metadata, which is sent once: two times the key, two times the client's epoch key, and the queue.
    const BYTES_MAX: u64 = 350;
    // High revisions take more bytes.
    let etcd = Etcd::start().unwrap();
    let (session, name) = (session(&etcd, LONGEST).await, fresh_name());
    let grant = acquire(&session, &name).await;
    let metadata = plain(&etcd).await.get(key_of_grant(&grant), None).await.unwrap().kvs()[0].value().len();
    release(&session, &grant).await;
    let before = etcd.metrics().unwrap();
    for _ in 0..ROUNDS {
        let grant = acquire(&session, &name).await;
        release(&session, &grant).await;
    }
    let after = etcd.metrics().unwrap();
    let (txns, proposals, reads) = (2 * ROUNDS, 2 * ROUNDS, 3 * ROUNDS);
    assert_eq!(spent(&before, &after), Spent { txns, ranges: 0, others: 0, proposals, reads });
    let bytes = (bytes_received(&after) - bytes_received(&before)) / ROUNDS;
    assert!((1..=BYTES_MAX + metadata as u64).contains(&bytes), "{bytes} bytes, {metadata} of metadata");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handoff_is_two_transactions_and_a_read() {
    const ROUNDS: u64 = 50;
    let etcd = own_server();
    let (one, other, name) = (session(&etcd, LONGEST).await, session(&etcd, LONGEST).await, fresh_name());
    until("the sessions watch their own keys", async || etcd.metrics().unwrap().watchers() == 2).await;
    let mut holder = (one.clone(), acquire(&one, &name).await);
    // The first release may cost more, because it does not expect a waiter.
    let (mut before, mut looks) = (None, 0);
    for round in 0..=ROUNDS {
        let (session, start) = (if round % 2 == 0 { &other } else { &one }, Instant::now());
        let next = enqueued(session, &name).await;
        release(&holder.0, &holder.1).await;
        holder = (session.clone(), next.granted().await);
        looks += u64::from(start.elapsed() > BEFORE_A_LOOK);
        before.get_or_insert_with(|| etcd.metrics().unwrap());
    }
    let (before, after) = (before.unwrap(), etcd.metrics().unwrap());
    let spent = spent(&before, &after);
    assert_eq!((spent.txns, spent.proposals, spent.others), (2 * ROUNDS, 2 * ROUNDS, 0));
    // Without handoffs all of them would be slow.
    assert!(looks <= ROUNDS * 3 / 4, "{looks} of {ROUNDS} handoffs were slow");
    // One per handoff. A waiter whose handoff is slow on a busy machine reads its place: after a while, and once its
    // predecessor is gone.
    assert!(spent.ranges <= ROUNDS + 2 * looks, "{spent:?}, {looks} waiters may have looked");
    // Two per watched predecessor, which only a waiter that has looked watches.
    let watches = after.grpc_received("Watch") - before.grpc_received("Watch");
    assert!(watches <= 2 * looks, "{watches} messages about watches, {looks} waiters may have looked");
}

#[tokio::test(flavor = "multi_thread")]
async fn contention_costs_less_than_2_7_proposals_per_handoff() {
    const CLIENTS: usize = 8;
    const GRANTS_EACH: usize = 50;
    let (etcd, name) = (own_server(), fresh_name());
    let mut sessions = Vec::new();
    for _ in 0..CLIENTS {
        sessions.push(session(&etcd, LONGEST).await);
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
    let after = etcd.metrics().unwrap();
    let (spent, grants) = (spent(&before, &after), (CLIENTS * GRANTS_EACH) as u64);
    assert!(spent.proposals * 10 <= grants * 27, "{spent:?} for {grants} grants");
    // One read serves several handoffs. A waiter whose handoff is slow on a busy machine watches, and reads.
    let watches = after.grpc_received("Watch") - before.grpc_received("Watch");
    assert!(spent.ranges <= grants / 4 + watches, "{spent:?}, {watches} watches, for {grants} grants");
    assert_eq!(spent.others, 0);
}

/// Tries in vain so often; an earlier try began at `previous`. Returns before how many of the tries a busy machine
/// paused: the session forgets after a second that the lock was held, and such a try may write.
async fn tries_after_a_pause(
    session: &Arc<dyn Session>,
    name: &LockName,
    tries: u64,
    mut previous: Instant,
) -> u64 {
    const REMEMBERED: Duration = Duration::from_millis(900);
    let mut late = 0;
    for _ in 0..tries {
        let start = Instant::now();
        assert!(is_gave_up(&try_acquire(session, name).await));
        late += u64::from(previous.elapsed() > REMEMBERED);
        previous = start;
    }
    late
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_first_try_for_a_held_lock_costs_a_proposal() {
    const TRIES: u64 = 20;
    let etcd = own_server();
    let (session, other, name) = (session(&etcd, LONGEST).await, session(&etcd, LONGEST).await, fresh_name());
    let held = acquire(&other, &name).await;
    let first = Instant::now();
    assert!(is_gave_up(&try_acquire(&session, &name).await));
    let before = etcd.metrics().unwrap();
    let late = tries_after_a_pause(&session, &name, TRIES, first).await;
    let spent = spent(&before, &etcd.metrics().unwrap());
    assert_eq!((spent.txns + spent.ranges, spent.others), (TRIES, 0), "{spent:?}");
    assert!(spent.txns <= late && spent.proposals == spent.txns, "{spent:?}, {late} late tries");
    assert!(spent.reads == TRIES || late > 0, "{spent:?}");
    release(&other, &held).await;
    let grant = granted(try_acquire(&session, &name).await);
    release(&session, &grant).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_is_one_ping_and_one_lease_read_for_any_number_of_holds() {
    const HOLDS: usize = 50;
    let etcd = own_server();
    let session = session(&etcd, LONGEST).await;
    let mut held = Vec::new();
    for _ in 0..HOLDS {
        held.push(acquire(&session, &fresh_name()).await);
    }
    let before = etcd.metrics().unwrap();
    let heartbeat = bounded(session.renew(&held)).await;
    assert_eq!(heartbeat.holds.len(), HOLDS);
    let after = etcd.metrics().unwrap();
    assert_eq!(spent(&before, &after), Spent { txns: 0, ranges: 0, others: 2, proposals: 0, reads: 0 });
    assert_eq!(after.grpc_handled("LeaseTimeToLive") - before.grpc_handled("LeaseTimeToLive"), 1);
}

/// A waiter whose handoff takes longer may look at its queue itself, which it does after 100 ms.
const BEFORE_A_LOOK: Duration = Duration::from_millis(80);

/// The same of a waiter that watches its predecessor, which it does 50 ms after the deletion.
const BEFORE_A_LOOK_OF_A_WATCH: Duration = Duration::from_millis(40);

#[tokio::test(flavor = "multi_thread")]
async fn a_long_queue_costs_no_more_per_waiter_than_a_short_one() {
    const CLIENTS: usize = 4;
    const WAITERS: usize = 1000;
    /// At least so many handoffs by one look, and twice as many looks on a busy machine.
    const HANDOFFS_PER_LOOK: u64 = 16 / 2;
    let (etcd, name) = (own_server(), fresh_name());
    let mut sessions = Vec::new();
    for _ in 0..CLIENTS {
        sessions.push(session(&etcd, LONGEST).await);
    }
    let mut holder = (sessions[0].clone(), acquire(&sessions[0], &name).await);
    let (start, mut waiting) = (Instant::now(), Vec::new());
    for number in 0..WAITERS {
        let session = &sessions[number % CLIENTS];
        waiting.push((session.clone(), enqueued(session, &name).await));
    }
    let before = etcd.metrics().unwrap();
    let mut granted = vec![Instant::now(); CLIENTS];
    for (session, next) in waiting {
        release(&holder.0, &holder.1).await;
        holder = (session, next.granted().await);
        granted.push(Instant::now());
    }
    let after = etcd.metrics().unwrap();
    let (spent, waiters) = (spent(&before, &after), WAITERS as u64);
    // A waiter is the first of its client since the grant of the one before it there.
    let looks =
        granted.windows(CLIENTS + 1).filter(|turn| turn[CLIENTS] - turn[0] > BEFORE_A_LOOK).count() as u64;
    // On a busy machine, waiters wait for so long that they re-check: a transaction that only reads.
    let rechecks = waiters * (start.elapsed().as_secs_f64() / RECHECK_PAUSE_LEAST.as_secs_f64()) as u64;
    // Each waiter receives its handoff and its predecessor's deletion; the first release costs one more transaction.
    assert!(after.events() - before.events() <= 3 * waiters, "{}", after.events() - before.events());
    assert!(spent.proposals <= waiters + 1 && spent.others == 0, "{spent:?}");
    assert!(spent.txns <= waiters + 1 + rechecks, "{spent:?}, {rechecks} re-checks");
    assert!(
        spent.ranges <= waiters / HANDOFFS_PER_LOOK + looks,
        "{spent:?}, {looks} waiters may have looked"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_look_serves_the_handoffs_of_many_clients() {
    const WAITERS: usize = 8;
    let (etcd, name) = (own_server(), fresh_name());
    let first = session(&etcd, LONGEST).await;
    let mut held = (first.clone(), acquire(&first, &name).await);
    let mut waiting = Vec::new();
    for _ in 0..WAITERS {
        let session = session(&etcd, LONGEST).await;
        waiting.push((session.clone(), enqueued(&session, &name).await));
    }
    let metrics = || etcd.metrics().unwrap();
    until("all watch their predecessors", async || metrics().watchers() as usize == 1 + 2 * WAITERS).await;
    let before = metrics();
    let mut looks = 0;
    for (session, next) in waiting {
        let start = Instant::now();
        release(&held.0, &held.1).await;
        held = (session, next.granted().await);
        looks += u64::from(start.elapsed() > BEFORE_A_LOOK_OF_A_WATCH);
    }
    let spent = spent(&before, &metrics());
    assert!((1..=2 + looks).contains(&spent.ranges), "{spent:?}, {looks} waiters may have looked");
}

/// Each of them has an entry in the queue. Among themselves they need no watch and no handoff key.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_one_client_cost_one_transaction_each() {
    const WAITERS: u64 = 200;
    let etcd = own_server();
    let (session, name) = (session(&etcd, LONGEST).await, fresh_name());
    let mut held = acquire(&session, &name).await;
    let mut waiting = Vec::new();
    let (begin, start) = (Instant::now(), etcd.metrics().unwrap());
    // On a busy machine, waiters wait for so long that they re-check.
    let rechecks = || WAITERS * (begin.elapsed().as_secs_f64() / RECHECK_PAUSE_LEAST.as_secs_f64()) as u64;
    for _ in 0..WAITERS {
        waiting.push(enqueued(&session, &name).await);
    }
    let before = etcd.metrics().unwrap();
    assert!((WAITERS..=WAITERS + rechecks()).contains(&spent(&start, &before).txns));
    for next in waiting {
        release(&session, &held).await;
        held = next.granted().await;
    }
    let after = etcd.metrics().unwrap();
    let spent = spent(&before, &after);
    // The first release finds that the holder is not alone. Each of the looks shows 128 contenders.
    let (writes, ranges, rechecks) = (WAITERS + 1, WAITERS.div_ceil(128), rechecks());
    assert_eq!((spent.proposals, spent.others), (writes, 0), "{spent:?}");
    assert!((writes..=writes + rechecks).contains(&spent.txns), "{spent:?}, {rechecks} re-checks");
    assert!((ranges..=ranges + rechecks).contains(&spent.ranges), "{spent:?}, {rechecks} re-checks");
    assert_eq!(after.events() - start.events(), 0);
    assert_eq!(after.grpc_received("Watch") - start.grpc_received("Watch"), 0);
    release(&session, &held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_does_not_list_the_keys_of_waiters() {
    const WAITERS: usize = 8;
    let etcd = own_server();
    let (session, name) = (session(&etcd, LONGEST).await, fresh_name());
    let held = [acquire(&session, &name).await, acquire(&session, &fresh_name()).await];
    let mut waiting = Vec::new();
    for _ in 0..WAITERS {
        waiting.push(enqueued(&session, &name).await);
    }
    let before = etcd.metrics().unwrap();
    let heartbeat = bounded(session.renew(&held)).await;
    assert!(heartbeat.holds.iter().all(|(_, hold)| matches!(hold, Renewal::Renewed { .. })), "{heartbeat:?}");
    let spent = spent(&before, &etcd.metrics().unwrap());
    assert_eq!(spent, Spent { txns: 1, ranges: 0, others: 1, proposals: 0, reads: 2 });
    for hold in &held {
        release(&session, hold).await;
    }
    for next in waiting {
        release(&session, &next.granted().await).await;
    }
}

/// Even if a newer claim of the same client uses the key by then.
#[tokio::test(flavor = "multi_thread")]
async fn release_of_a_grant_that_has_ended_sends_nothing() {
    let etcd = own_server();
    let (session, name) = (session(&etcd, LONGEST).await, fresh_name());
    let ended = acquire(&session, &name).await;
    release(&session, &ended).await;
    let held = acquire(&session, &name).await;
    let before = etcd.metrics().unwrap();
    release(&session, &ended).await;
    let spent = spent(&before, &etcd.metrics().unwrap());
    assert_eq!(spent, Spent { txns: 0, ranges: 0, others: 0, proposals: 0, reads: 0 });
    release(&session, &held).await;
}
