//! The ways in which a waiter is granted the lock, each one while the others fail. Each grants long before the next
//! slower one would.

use std::time::Duration;

use lockkit_core::backend::ClaimId;
use lockkit_testbed::Message;

use crate::{
    common::{
        LONG, LONGEST, acquire, bounded, enqueued, fresh_name, latest_recheck, queue, release, session,
        session_at, sooner_than, url_through,
    },
    setting::Setting,
};

/// Delay that a busy machine may add to a wait, in the best of several rounds: before a second re-check.
const SLACK: Duration = Duration::from_secs(5);

/// While its own client holds the lock, a waiter watches nobody. Then another client holds it, and dies.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_watches_who_is_between_it_and_an_earlier_claim_of_its_client() {
    Setting::before_a_recheck(async |setting| {
        let dying = session(&setting.etcd, LONG).await;
        let name = fresh_name();
        let held = acquire(&setting.other, &name).await;
        let between = enqueued(&dying, &name).await;
        let waiting = enqueued(&setting.other, &name).await;
        release(&setting.other, &held).await;
        between.granted().await;
        bounded(dying.close()).await.unwrap();
        setting.ends_with_a_grant(waiting).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_without_a_handoff_is_granted_by_its_watch() {
    Setting::before_a_recheck(async |setting| {
        // None of an earlier round.
        setting.watches(0).await;
        let name = fresh_name();
        // A client that dies: its key is deleted without a handoff.
        let died = format!("{}af-8-{}", queue(&name), ClaimId::random());
        setting.etcd.put(&died, "").unwrap();
        let waiting = enqueued(&setting.other, &name).await;
        setting.watches(1).await;
        setting.etcd.delete(&died).unwrap();
        setting.ends_with_a_grant(waiting).await;
        assert_eq!(setting.etcd.keys(&queue(&name)).unwrap(), [""; 0]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_without_events_is_granted_by_its_recheck() {
    let setting = Setting::start().await;
    setting.proxy.drop_messages(Message::Events, |_| true);
    sooner_than(latest_recheck(LONGEST) + SLACK, async || {
        let waiter = session_at(&url_through(&setting.proxy), LONGEST).await;
        let name = fresh_name();
        let held = acquire(&setting.one, &name).await;
        let waiting = enqueued(&waiter, &name).await;
        // Its own keys, and its predecessor. Before, it would look at the queue in any case.
        setting.watches(2).await;
        let dropped = setting.proxy.counts().dropped;
        release(&setting.one, &held).await;
        let grant = waiting.granted().await;
        assert!(setting.proxy.counts().dropped > dropped, "nothing was dropped");
        release(&waiter, &grant).await;
    })
    .await;
}
