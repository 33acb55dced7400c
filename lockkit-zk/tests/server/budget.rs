//! Packets per operation, read from the server's own counters. Exact numbers, no times.

use lockkit_testbed::ZooKeeper;

use crate::common::{
    LONG, acquire, beat, fresh_name, is_gave_up, is_renewed, release, session, try_acquire, watching,
};

/// Packets that the server has received and sent so far.
fn packets(server: &ZooKeeper) -> (u64, u64) {
    let metrics = server.metrics().unwrap();
    (metrics.packets_received(), metrics.packets_sent())
}

/// What the looks themselves cost.
fn cost_of_a_look(server: &ZooKeeper) -> (u64, u64) {
    let (before, after) = (packets(server), packets(server));
    (after.0 - before.0, after.1 - before.1)
}

/// The packets that this costs.
async fn spent(server: &ZooKeeper, work: impl AsyncFnOnce()) -> (u64, u64) {
    let look = cost_of_a_look(server);
    let before = packets(server);
    work().await;
    let after = packets(server);
    (after.0 - before.0 - look.0, after.1 - before.1 - look.1)
}

#[tokio::test(flavor = "multi_thread")]
async fn uncontended_acquire_and_release_are_three_packets() {
    const ROUNDS: u64 = 50;
    let server = ZooKeeper::start().unwrap();
    let (session, name) = (session(&server, LONG).await, fresh_name());
    // The directory is made once.
    release(&session, &acquire(&session, &name).await).await;
    let spent = spent(&server, async || {
        for _ in 0..ROUNDS {
            release(&session, &acquire(&session, &name).await).await;
        }
    })
    .await;
    assert_eq!(spent, (3 * ROUNDS, 3 * ROUNDS));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_is_five_packets_in_and_six_out() {
    const ROUNDS: u64 = 25;
    let server = ZooKeeper::start().unwrap();
    let (one, other, name) = (session(&server, LONG).await, session(&server, LONG).await, fresh_name());
    let mut holder = (&one, acquire(&one, &name).await);
    let mut total = (0, 0);
    for round in 0..ROUNDS {
        let next = if round % 2 == 0 { &other } else { &one };
        // The looks of this are not counted: create, list and watch are in and out before them.
        let before = packets(&server);
        let look = cost_of_a_look(&server);
        let waiting = crate::common::start(next, &name);
        crate::common::until("it is queued", async || waiting.control.was_contended()).await;
        let mut looks = 0;
        while server.watches().unwrap() == 0 {
            looks += 1;
        }
        release(holder.0, &holder.1).await;
        holder = (next, waiting.granted().await);
        let after = packets(&server);
        // Every word is a look; those of `cost_of_a_look` are two.
        let words = looks + 1 + 2 + 1;
        total.0 += after.0 - before.0 - words * look.0;
        total.1 += after.1 - before.1 - words * look.1;
    }
    release(holder.0, &holder.1).await;
    assert_eq!(total, (5 * ROUNDS, 6 * ROUNDS));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beat_is_one_request_however_much_is_held() {
    let server = ZooKeeper::start().unwrap();
    let session = session(&server, LONG).await;
    let mut held = Vec::new();
    for count in [0_u64, 1, 10] {
        while (held.len() as u64) < count {
            held.push(acquire(&session, &fresh_name()).await);
        }
        let held: Vec<_> = held.iter().collect();
        let spent = spent(&server, async || {
            let beat = beat(&session, &held).await;
            assert!(is_renewed(&beat.session) && beat.holds.iter().all(|(_, renewal)| is_renewed(renewal)));
        })
        .await;
        assert_eq!(spent, (1, 1), "{count} held");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_try_is_three_packets_and_leaves_nothing() {
    const ROUNDS: u64 = 20;
    let server = ZooKeeper::start().unwrap();
    let (one, other, name) = (session(&server, LONG).await, session(&server, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let spent = spent(&server, async || {
        for _ in 0..ROUNDS {
            assert!(is_gave_up(&try_acquire(&other, &name).await));
        }
    })
    .await;
    assert_eq!(spent, (3 * ROUNDS, 3 * ROUNDS));
    assert_eq!(crate::common::queue(&server, &name).len(), 1);
    release(&one, &held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_wakes_one_waiter() {
    const WAITERS: usize = 20;
    let server = ZooKeeper::start().unwrap();
    let (session, name) = (session(&server, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let mut waiting = Vec::new();
    for _ in 0..WAITERS {
        waiting.push(watching(&server, &session, &name).await);
    }
    let mut waiting = waiting.into_iter();
    let next = waiting.next().unwrap();
    let spent = spent(&server, async || {
        release(&session, &held).await;
        let grant = next.granted().await;
        assert_eq!(server.watches().unwrap(), WAITERS as u64 - 1);
        drop(grant);
    })
    .await;
    // Delete and check, their answers and one event; and the look at the watches.
    let look = cost_of_a_look(&server);
    assert_eq!(spent, (2 + look.0, 3 + look.1));
}
