//! All faults at once: broken connections, lost replies, late requests, claims that give up. No lease ends, so
//! exclusion, rising tokens and clean queues must hold.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockkit_core::{
    FencingToken, LockName,
    backend::{Acquired, Session},
};
use lockkit_testbed::{Direction, Flow, Proxy};

use crate::common::{
    LONGEST, assert_rising, cut, fresh_name, is_gave_up, own_server, queue, release, session_at, start_claim,
    until, url_through,
};

const SESSIONS: usize = 4;
const CLAIMS_PER_SESSION: usize = 60;

/// What the holders of one lock record.
#[derive(Debug)]
struct Lock {
    name: LockName,
    held: AtomicBool,
    tokens: Mutex<Vec<FencingToken>>,
}

#[tokio::test(flavor = "multi_thread")]
async fn exclusion_order_and_clean_queues_survive_a_bad_network() {
    let etcd = own_server();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let locks = [(); 2].map(|()| {
        Arc::new(Lock { name: fresh_name(), held: AtomicBool::default(), tokens: Mutex::default() })
    });
    let (mut proxies, mut users) = (Vec::new(), Vec::new());
    for _ in 0..SESSIONS {
        let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
        let session = session_at(&url_through(&proxy), LONGEST).await;
        // Two users of each session.
        for _ in 0..2 {
            users.push(tokio::spawn(use_locks(session.clone(), locks.clone(), random.fork())));
        }
        proxies.push(proxy);
    }
    let breaking = tokio::spawn(break_connections(proxies, random.fork()));
    for user in users {
        // Each of its claims and releases is bounded.
        user.await.unwrap();
    }
    breaking.abort();
    for lock in &locks {
        let tokens = lock.tokens.lock().unwrap().clone();
        println!("{} grants of {}", tokens.len(), lock.name);
        assert_rising(&tokens);
        until("the queue is empty", async || etcd.keys(&queue(&lock.name)).unwrap().is_empty()).await;
    }
}

async fn use_locks(session: Arc<dyn Session>, locks: [Arc<Lock>; 2], mut random: fastrand::Rng) {
    let pause = |random: &mut fastrand::Rng| Duration::from_micros(random.u64(0..5_000));
    for _ in 0..CLAIMS_PER_SESSION / 2 {
        let lock = &locks[random.usize(0..2)];
        let claim = start_claim(&session, &lock.name, random.f32() < 0.8);
        if random.f32() < 0.3 {
            tokio::time::sleep(pause(&mut random)).await;
            claim.control.give_up();
        }
        match claim.ends().await {
            Ok(Acquired::Granted(grant)) => {
                assert!(!lock.held.swap(true, Ordering::SeqCst), "two holders of {}", lock.name);
                lock.tokens.lock().unwrap().push(grant.token());
                tokio::time::sleep(pause(&mut random)).await;
                lock.held.store(false, Ordering::SeqCst);
                release(&session, &grant).await;
            }
            // A try fails while the server is unreachable.
            end => assert!(is_gave_up(&end) || end.is_err(), "{end:?}"),
        }
    }
}

async fn break_connections(proxies: Vec<Proxy>, mut random: fastrand::Rng) {
    loop {
        let proxy = &proxies[random.usize(0..proxies.len())];
        let while_broken = Duration::from_millis(random.u64(0..60));
        match random.u8(0..4) {
            0 => {}
            1 => proxy.refuse(),
            2 => proxy.set(Direction::Replies, Flow::Drop),
            _ => proxy.set(Direction::Requests, Flow::Hold),
        }
        tokio::time::sleep(while_broken).await;
        cut(proxy);
        // Held requests arrive late, among newer ones.
        tokio::time::sleep(Duration::from_millis(random.u64(0..60))).await;
        proxy.deliver_late();
    }
}
