//! Claims that give up, at various places in the queue and moments.

use lockkit_core::backend::Acquired;

use crate::common::{
    LONG, LONGEST, acquire, cancel_during_handoff, enqueued, fresh_name, is_gave_up, own_server, queue,
    release, session, shared, start, until,
};

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_waiter_in_the_middle_does_not_delay_the_others() {
    let (etcd, name) = (shared(), fresh_name());
    let (one, other) = (session(etcd, LONG).await, session(etcd, LONG).await);
    let held = acquire(&one, &name).await;
    let second = enqueued(&other, &name).await;
    let third = enqueued(&one, &name).await;
    let fourth = enqueued(&other, &name).await;
    third.control.give_up();
    assert!(is_gave_up(&third.ends().await));
    assert_eq!(etcd.keys(&queue(&name)).unwrap().len(), 3);
    release(&one, &held).await;
    let second = second.granted().await;
    assert!(fourth.is_waiting());
    release(&other, &second).await;
    release(&other, &fourth.granted().await).await;
    assert_eq!(etcd.keys(&queue(&name)).unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_waiter_at_the_head_neither_delays_nor_grants_the_next() {
    let (etcd, name) = (own_server(), fresh_name());
    let (one, other) = (session(&etcd, LONG).await, session(&etcd, LONG).await);
    let last = session(&etcd, LONG).await;
    let held = acquire(&one, &name).await;
    let second = enqueued(&other, &name).await;
    let third = enqueued(&last, &name).await;
    let count = || etcd.metrics().unwrap();
    until("both watch their predecessors", async || count().watchers() == 5).await;
    let reads = count().grpc_handled("Range");
    second.control.give_up();
    assert!(is_gave_up(&second.ends().await));
    until("the third has read the queue", async || count().grpc_handled("Range") > reads).await;
    until("the third watches the holder", async || count().watchers() == 4).await;
    assert!(third.is_waiting());
    release(&one, &held).await;
    release(&last, &third.granted().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_given_up_before_it_starts_writes_nothing() {
    let etcd = own_server();
    let (session, name) = (session(&etcd, LONG).await, fresh_name());
    let before = etcd.metrics().unwrap().grpc_handled("Txn");
    let claim = start(&session, &name);
    claim.control.give_up();
    // The claim may be granted before it gives up.
    match claim.ends().await {
        Ok(Acquired::Granted(grant)) => release(&session, &grant).await,
        end => assert!(is_gave_up(&end)),
    }
    assert!(etcd.metrics().unwrap().grpc_handled("Txn") <= before + 2);
    assert_eq!(etcd.keys(&queue(&name)).unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_right_at_the_wake_loses_no_grant() {
    const ROUNDS: usize = 200;
    let (etcd, name) = (shared(), fresh_name());
    let (one, other) = (session(etcd, LONGEST).await, session(etcd, LONGEST).await);
    let granted = cancel_during_handoff(&one, &other, &name, ROUNDS).await;
    println!("{granted} of {ROUNDS} claims were granted before they gave up");
    assert_eq!(etcd.keys(&queue(&name)).unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_waits_leave_no_watch_behind() {
    const WAITS: usize = 20;
    let etcd = own_server();
    let (one, other) = (session(&etcd, LONG).await, session(&etcd, LONG).await);
    let watchers = || etcd.metrics().unwrap().watchers();
    until("the sessions watch their own keys", async || watchers() == 2).await;
    let mut waiting = Vec::new();
    for _ in 0..WAITS {
        let name = fresh_name();
        acquire(&other, &name).await;
        waiting.push(enqueued(&one, &name).await);
    }
    until("every waiter watches its predecessor", async || watchers() as usize == 2 + WAITS).await;
    for waiter in &waiting {
        waiter.control.give_up();
    }
    for waiter in waiting {
        assert!(is_gave_up(&waiter.ends().await));
    }
    until("only the sessions' own watches are left", async || watchers() == 2).await;
    drop(one);
    until("the dropped session has no watch", async || watchers() == 1).await;
}
