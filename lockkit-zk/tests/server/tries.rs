//! Tries at locks that were busy a moment ago, which read before they create a node.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use lockkit_core::{BootInstant, Clock, ErrorKind, TimeSource, backend::Backend};
use lockkit_testbed::{Proxy, ZooKeeper, ZooKeeperEnsemble};

use crate::{
    budget::spent,
    common::{
        LONG, acquire, backend, fresh_name, granted, is_gave_up, plain, queue, release, session, session_at,
        shared, try_acquire, url_through,
    },
};

/// The try's own server still shows the holder; its leader does not.
#[tokio::test(flavor = "multi_thread")]
async fn try_at_a_late_follower_is_granted_what_was_released_before() {
    let ensemble = ZooKeeperEnsemble::start().unwrap();
    let (leader, follower) = (ensemble.leader().unwrap(), ensemble.follower().unwrap());
    let (at_leader, to_follower) = (ensemble.member(leader), ensemble.member(follower));
    for form in ["curator", "bare", "single"] {
        let url = |server: &ZooKeeper| format!("{}/?form={form}", server.url());
        let (holding, trying) =
            (session_at(&url(at_leader), LONG).await, session_at(&url(to_follower), LONG).await);
        let name = fresh_name();
        let held = acquire(&holding, &name).await;
        // The second only reads.
        for _ in 0..2 {
            assert!(is_gave_up(&try_acquire(&trying, &name).await), "{form}");
        }
        // Connected before the delay: a new connection would be as new as the leader.
        let reader = plain(to_follower).await;
        ensemble.delay(follower, Duration::from_secs(1));
        release(&holding, &held).await;
        let path = crate::common::node(&name);
        let is_shown = match form {
            "single" => reader.check_stat(&path).await.unwrap().is_some(),
            _ => !reader.list_children(&path).await.unwrap().is_empty(),
        };
        assert!(is_shown, "{form}: the follower is not late");
        let next = granted(try_acquire(&trying, &name).await);
        assert!(next.token() > held.token());
        ensemble.heal();
        release(&trying, &next).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn try_whose_read_is_not_answered_fails_and_leaves_nothing() {
    let server = shared();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (holding, trying, name) =
        (session(server, LONG).await, session_at(&url_through(&proxy), LONG).await, fresh_name());
    let held = acquire(&holding, &name).await;
    assert!(is_gave_up(&try_acquire(&trying, &name).await));
    for nth in [1, 2] {
        proxy.swallow_reply(nth);
        let error = try_acquire(&trying, &name).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert_eq!(queue(server, &name).len(), 1);
    }
    release(&holding, &held).await;
    release(&trying, &granted(try_acquire(&trying, &name).await)).await;
}

/// A clock that can be set forward.
struct ShiftedClock(Clock, Arc<AtomicU64>);

impl TimeSource for ShiftedClock {
    fn now(&self) -> BootInstant {
        self.0.now().after(Duration::from_secs(self.1.load(SeqCst)))
    }
}

/// A read cannot tell a contender from a node that only looks like one, so reads alone must not refuse a lock for ever.
#[tokio::test(flavor = "multi_thread")]
async fn node_decides_again_a_minute_after_the_last_one_did() {
    let (server, ahead) = (ZooKeeper::start().unwrap(), Arc::new(AtomicU64::new(0)));
    let clock = Clock::new(ShiftedClock(Clock::boot(), Arc::clone(&ahead)));
    let trying = backend(&server.url()).open_session(LONG, clock).await.unwrap();
    let (holding, name) = (session(&server, LONG).await, fresh_name());
    let held = acquire(&holding, &name).await;
    // Create, list and delete; or sync and list.
    for (after, packets) in [(0, 3), (40, 2), (70, 3), (71, 2)] {
        ahead.store(after, SeqCst);
        let spent = spent(&server, async || assert!(is_gave_up(&try_acquire(&trying, &name).await))).await;
        assert_eq!(spent, (packets, packets), "after {after} s");
    }
    release(&holding, &held).await;
}
