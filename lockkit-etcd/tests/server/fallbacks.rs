//! The ways in which a waiter is granted the lock, each one while the others fail. Each grants long before the next
//! slower one would.

use std::{sync::Arc, time::Duration};

use etcd_client::WatchOptions;
use lockkit_core::{
    backend::{ClaimId, Grant, Session},
    limits::RETRY_PAUSE_MAX,
};
use lockkit_testbed::{Etcd, Message, Proxy};

use crate::common::{
    LONG, PendingClaim, acquire, bounded, cut, earliest_recheck, enqueued, fresh_name, latest_recheck, plain,
    queue, release, session, session_at, sooner_than, until, url_through,
};

/// Part of the `RangeRequest` of a waiter for its own key and its predecessor: descending, by creation, keys only, up to
/// a create revision.
const POSITION: &str = "(\u{2}0\u{2}@\u{1}h";

/// A ttl with a re-check every 2 s; a session that is not renewed has time for two.
const SHORT: Duration = Duration::from_secs(6);

/// Delay that a busy machine may add to a wait, in the best of several rounds.
const SLACK: Duration = Duration::from_secs(1);

/// A server with two clients; the other one is connected through a proxy.
struct Setting {
    etcd: Etcd,
    proxy: Proxy,
    one: Arc<dyn Session>,
    other: Arc<dyn Session>,
}

impl Setting {
    async fn start() -> Self {
        let etcd = Etcd::start().unwrap();
        let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
        let one = session(&etcd, LONG).await;
        let other = session_at(&url_through(&proxy), LONG).await;
        Self { etcd, proxy, one, other }
    }

    /// Takes a lock with the first client, and waits for it with the other one.
    async fn held_and_waited_for(&self) -> (Grant, PendingClaim) {
        self.watches(0).await;
        let name = fresh_name();
        (acquire(&self.one, &name).await, enqueued(&self.other, &name).await)
    }

    /// Waits with the other client for a lock that another program holds under the returned key. That program sends no
    /// handoff.
    async fn behind_a_foreign_key(&self) -> (String, PendingClaim) {
        // None of an earlier round.
        self.watches(0).await;
        let name = fresh_name();
        let foreign = format!("{}foreign", queue(&name));
        self.etcd.put(&foreign, "").unwrap();
        (foreign, enqueued(&self.other, &name).await)
    }

    /// Waits until this many predecessors are watched, in addition to the two clients' own keys.
    async fn watches(&self, predecessors: u64) {
        let watchers = || self.etcd.metrics().unwrap().watchers();
        until("the predecessors are watched", async || watchers() == 2 + predecessors).await;
    }

    async fn ends_with_a_grant(&self, waiting: PendingClaim) {
        release(&self.other, &waiting.granted().await).await;
    }

    /// Compacts the history up to now, so that watches of it are cancelled.
    async fn compact(&self) {
        let mut plain = plain(&self.etcd).await;
        let revision = plain.put("x", "", None).await.unwrap().header().unwrap().revision();
        plain.compact(revision, None).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn handoff_during_a_broken_stream_is_read_later() {
    let setting = Setting::start().await;
    sooner_than(earliest_recheck(LONG), async || {
        let (held, waiting) = setting.held_and_waited_for().await;
        // Before, it would look at the queue in any case.
        setting.watches(1).await;
        setting.proxy.refuse();
        release(&setting.one, &held).await;
        setting.proxy.pass();
        // The watch of the predecessor resumes too; drop its event.
        setting.proxy.drop_messages(Message::Deletions, |_| true);
        setting.ends_with_a_grant(waiting).await;
        setting.proxy.pass();
    })
    .await;
}

/// Both handoffs are written by consecutive revisions.
#[tokio::test(flavor = "multi_thread")]
async fn handoff_right_behind_one_that_was_received_is_read_later() {
    let setting = Setting::start().await;
    sooner_than(earliest_recheck(LONG), async || {
        let (first, waiting) = setting.held_and_waited_for().await;
        let name = fresh_name();
        let second = acquire(&setting.one, &name).await;
        let last = enqueued(&setting.other, &name).await;
        setting.watches(2).await;
        release(&setting.one, &first).await;
        let first = waiting.granted().await;
        setting.proxy.refuse();
        release(&setting.one, &second).await;
        setting.proxy.pass();
        setting.proxy.drop_messages(Message::Deletions, |_| true);
        setting.ends_with_a_grant(last).await;
        setting.proxy.pass();
        release(&setting.other, &first).await;
    })
    .await;
}

/// The server cancels both watches, in any order. If that of the predecessor comes first, the waiter reads the queue.
/// The proxy holds that read, so what grants is the handoff.
#[tokio::test(flavor = "multi_thread")]
async fn compacted_handoff_is_read_from_its_key() {
    const ROUNDS: usize = 20;
    let (setting, mut rounds, mut by_handoff) = (Setting::start().await, 0, false);
    while rounds < ROUNDS && !by_handoff {
        let (held, waiting) = setting.held_and_waited_for().await;
        setting.watches(1).await;
        setting.proxy.refuse();
        release(&setting.one, &held).await;
        setting.compact().await;
        setting.proxy.pass();
        setting.proxy.hold_requests_from(POSITION);
        until("it is granted, or reads the queue", async || {
            !waiting.is_waiting() || setting.proxy.holds(POSITION)
        })
        .await;
        (rounds, by_handoff) = (rounds + 1, !setting.proxy.holds(POSITION));
        cut(&setting.proxy);
        setting.ends_with_a_grant(waiting).await;
    }
    assert!(by_handoff, "the handoff granted in none of {ROUNDS} rounds");
}

/// While its own client holds the lock, a waiter watches nobody. Then another client holds it, and dies.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_watches_who_is_between_it_and_an_earlier_claim_of_its_client() {
    let setting = Setting::start().await;
    sooner_than(earliest_recheck(LONG), async || {
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
async fn compacted_watch_makes_its_waiter_read_the_queue() {
    let setting = Setting::start().await;
    sooner_than(earliest_recheck(LONG), async || {
        let (foreign, waiting) = setting.behind_a_foreign_key().await;
        setting.watches(1).await;
        setting.proxy.refuse();
        setting.etcd.delete(&foreign).unwrap();
        setting.compact().await;
        setting.proxy.pass();
        setting.ends_with_a_grant(waiting).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_watch_resumes_where_it_stopped() {
    let setting = Setting::start().await;
    sooner_than(earliest_recheck(LONG), async || {
        let (foreign, waiting) = setting.behind_a_foreign_key().await;
        setting.watches(1).await;
        setting.proxy.refuse();
        setting.etcd.delete(&foreign).unwrap();
        setting.proxy.pass();
        setting.ends_with_a_grant(waiting).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_that_starts_after_the_deletion_reports_it() {
    let setting = Setting::start().await;
    sooner_than(earliest_recheck(LONG), async || {
        // The first request that names the predecessor is the watch.
        setting.proxy.hold_requests_from("/foreign");
        let (foreign, waiting) = setting.behind_a_foreign_key().await;
        until("its watch is under way", async || setting.proxy.holds("/foreign")).await;
        setting.etcd.delete(&foreign).unwrap();
        setting.proxy.pass();
        setting.ends_with_a_grant(waiting).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_without_a_handoff_is_granted_by_its_watch() {
    let setting = Setting::start().await;
    sooner_than(earliest_recheck(LONG), async || {
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
    sooner_than(latest_recheck(SHORT) + SLACK, async || {
        let waiter = session_at(&url_through(&setting.proxy), SHORT).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn reopened_stream_receives_no_event_twice() {
    let setting = Setting::start().await;
    for _ in 0..3 {
        let (held, waiting) = setting.held_and_waited_for().await;
        release(&setting.one, &held).await;
        setting.ends_with_a_grant(waiting).await;
    }
    setting.watches(0).await;
    setting.proxy.refuse();
    let metrics = || setting.etcd.metrics().unwrap();
    until("its watch has ended", async || metrics().watchers() == 1).await;
    let before = metrics();
    setting.proxy.pass();
    setting.watches(0).await;
    // A handoff, after all events that a watch from the past would receive.
    let (held, waiting) = setting.held_and_waited_for().await;
    release(&setting.one, &held).await;
    setting.ends_with_a_grant(waiting).await;
    // That handoff, and the deletion of the predecessor, which the waiter may watch by then.
    assert!(metrics().events() - before.events() <= 2, "{}", metrics().events() - before.events());
}

/// If it asked for the compacted history again, it would be cancelled again, and all its watches with it.
#[tokio::test(flavor = "multi_thread")]
async fn stream_reopened_after_a_compaction_stays_open() {
    const ROUNDS_MAX: usize = 3;
    const REFUSALS: u64 = 10;
    let setting = Setting::start().await;
    setting.watches(0).await;
    setting.proxy.refuse();
    setting.etcd.put("y", "").unwrap();
    setting.compact().await;
    let watches = || setting.etcd.metrics().unwrap().grpc_received("Watch");
    let before = watches();
    setting.proxy.pass();
    until("its watch was refused, and opened again", async || watches() >= before + 2).await;
    let mut plain = plain(&setting.etcd).await;
    let (mut rounds, mut stayed_open) = (0, false);
    // Repeated, because a busy machine may break a stream.
    while rounds < ROUNDS_MAX && !stayed_open {
        let before = watches();
        for _ in 0..REFUSALS {
            // The server cancels all watches of compacted history at once, so this refusal would cancel such a watch of
            // the client too.
            let forgotten = Some(WatchOptions::new().with_start_revision(1));
            let mut refused = plain.watch("x", forgotten).await.unwrap();
            while !bounded(refused.message()).await.unwrap().unwrap().canceled() {}
        }
        (rounds, stayed_open) = (rounds + 1, watches() == before + REFUSALS);
    }
    assert!(stayed_open, "opened again in each of {ROUNDS_MAX} rounds");
}

/// The proxy accepts and resets connections at once, so each of them looks open to the client.
#[tokio::test(flavor = "multi_thread")]
async fn stream_that_breaks_at_once_is_reopened_with_pauses() {
    const WATCHED: Duration = Duration::from_secs(2);
    // Five pauses, and several connections before each.
    const CONNECTIONS_MAX: u64 = 30;
    let setting = Setting::start().await;
    setting.watches(0).await;
    let accepted = || setting.proxy.counts().accepted;
    let before = accepted();
    setting.proxy.refuse();
    tokio::time::sleep(WATCHED).await;
    let made = accepted() - before;
    assert!((1..=CONNECTIONS_MAX).contains(&made), "{made} connections in {WATCHED:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_that_worked_is_reopened_after_a_short_pause() {
    const BREAKS: usize = 6;
    let setting = Setting::start().await;
    let watches = || setting.etcd.metrics().unwrap().grpc_received("Watch");
    let break_stream = async || {
        setting.watches(0).await;
        let before = watches();
        setting.proxy.reset();
        until("the next stream is open", async || watches() > before).await;
    };
    for _ in 0..BREAKS {
        break_stream().await;
    }
    // Pauses that only grew would be longer by now.
    sooner_than(RETRY_PAUSE_MAX / 2, break_stream).await;
}
