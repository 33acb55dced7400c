//! Each of the ways in which a waiter learns that it is next, where the others fail: it comes long before the next one
//! would have come.

use std::{sync::Arc, time::Duration};

use etcd_client::WatchOptions;
use lockkit_core::{
    backend::{ClaimId, Grant, Session},
    limits::RETRY_PAUSE_MAX,
};
use lockkit_testbed::{Etcd, Message, Proxy};

use crate::common::{
    LONG, Waiting, acquire, bounded, earliest_recheck, enqueued, fresh_name, latest_recheck, plain, queue,
    release, session, session_at, sooner_than, until, url_through,
};

/// A ttl with a re-check every 2 s; whoever is not renewed has time for a second one.
const SHORT: Duration = Duration::from_secs(6);

/// What a machine may add to a wait of seconds, in the best of some rounds.
const SLACK: Duration = Duration::from_secs(1);

/// A server, a client of it, and another one that is reached through a proxy.
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

    /// A lock that the first client holds, and the other one waits for.
    async fn held_and_waited_for(&self) -> (Grant, Waiting) {
        let name = fresh_name();
        (acquire(&self.one, &name).await, enqueued(&self.other, &name).await)
    }

    /// A lock that another program holds under this key, and the client behind the proxy waits for. Nobody sends mail
    /// for it.
    async fn behind_a_foreign_key(&self) -> (String, Waiting) {
        let name = fresh_name();
        let foreign = format!("{}foreign", queue(&name));
        self.etcd.put(&foreign, "").unwrap();
        (foreign, enqueued(&self.other, &name).await)
    }

    /// Every predecessor is watched, beside the keys of the two clients.
    async fn watches(&self, predecessors: u64) {
        let watchers = || self.etcd.metrics().unwrap().watchers();
        until("the predecessors are watched", async || watchers() == 2 + predecessors).await;
    }

    async fn ends_with_a_grant(&self, waiting: Waiting) {
        release(&self.other, &waiting.granted().await).await;
    }

    /// The revision of the mail that is the latest at the server.
    async fn mailed_at(&self) -> u64 {
        let mut plain = plain(&self.etcd).await;
        let mut latest = 0;
        for key in self.etcd.keys("lockkit/:clients/").unwrap() {
            let found = plain.get(key, None).await.unwrap();
            let mails = found.kvs().iter().filter(|kv| !kv.value().is_empty());
            latest = latest.max(mails.map(etcd_client::KeyValue::mod_revision).max().unwrap_or_default());
        }
        u64::try_from(latest).unwrap()
    }

    /// Forgets what has happened up to now, which watches of it ask for in vain.
    async fn compact(&self) {
        let mut plain = plain(&self.etcd).await;
        let revision = plain.put("x", "", None).await.unwrap().header().unwrap().revision();
        plain.compact(revision, None).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_that_came_while_the_stream_was_broken_is_read_later() {
    let setting = Setting::start().await;
    sooner_than(earliest_recheck(LONG), async || {
        let (held, waiting) = setting.held_and_waited_for().await;
        setting.proxy.refuse();
        release(&setting.one, &held).await;
        setting.proxy.pass();
        // The predecessor's watch goes on too.
        setting.proxy.drop_messages(Message::Deletions, |_| true);
        setting.ends_with_a_grant(waiting).await;
        setting.proxy.pass();
    })
    .await;
}

/// The server ends both watches, in any order: that of the predecessor makes its waiter look, and a look has a later
/// revision than the mail, and so a higher token.
#[tokio::test(flavor = "multi_thread")]
async fn mail_whose_history_was_compacted_is_read_at_its_place() {
    const ROUNDS: usize = 20;
    let (setting, mut rounds, mut by_mail) = (Setting::start().await, 0, false);
    while rounds < ROUNDS && !by_mail {
        let (held, waiting) = setting.held_and_waited_for().await;
        setting.watches(1).await;
        setting.proxy.refuse();
        release(&setting.one, &held).await;
        let mailed_at = setting.mailed_at().await;
        setting.compact().await;
        setting.proxy.pass();
        let grant = waiting.granted().await;
        release(&setting.other, &grant).await;
        (rounds, by_mail) = (rounds + 1, grant.token().get() == mailed_at);
    }
    assert!(by_mail, "in none of {ROUNDS} rounds was the mail what the grant came by");
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_whose_history_was_compacted_makes_its_waiter_look() {
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
async fn watch_that_was_broken_goes_on_where_it_was() {
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
async fn watch_that_begins_after_its_predecessor_has_gone_sees_it_go() {
    let setting = Setting::start().await;
    sooner_than(earliest_recheck(LONG), async || {
        // The first request that names the predecessor is the one that watches it.
        setting.proxy.hold_at("/foreign");
        let (foreign, waiting) = setting.behind_a_foreign_key().await;
        until("its watch is on the way", async || setting.proxy.holds("/foreign")).await;
        setting.etcd.delete(&foreign).unwrap();
        setting.proxy.pass();
        setting.ends_with_a_grant(waiting).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_that_gets_no_mail_is_granted_by_its_watch() {
    let setting = Setting::start().await;
    sooner_than(earliest_recheck(LONG), async || {
        let name = fresh_name();
        // A client that ends without a word: its key is deleted, and nobody gets mail.
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
async fn waiter_that_is_told_nothing_looks_in_time() {
    let setting = Setting::start().await;
    setting.proxy.drop_messages(Message::Events, |_| true);
    sooner_than(latest_recheck(SHORT) + SLACK, async || {
        let waiter = session_at(&url_through(&setting.proxy), SHORT).await;
        let name = fresh_name();
        let held = acquire(&setting.one, &name).await;
        let waiting = enqueued(&waiter, &name).await;
        let dropped = setting.proxy.counts().dropped;
        release(&setting.one, &held).await;
        let grant = waiting.granted().await;
        assert!(setting.proxy.counts().dropped > dropped, "nothing was dropped");
        release(&waiter, &grant).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_that_is_opened_again_is_sent_nothing_twice() {
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
    // A mail that is behind everything that a watch from the past would be sent.
    let (held, waiting) = setting.held_and_waited_for().await;
    release(&setting.one, &held).await;
    setting.ends_with_a_grant(waiting).await;
    // That mail, and the end of the predecessor, which the waiter may watch by then.
    assert!(metrics().events() - before.events() <= 2, "{}", metrics().events() - before.events());
}

/// Otherwise it would ask for what is forgotten again and again, and every other watch of it would end with it.
#[tokio::test(flavor = "multi_thread")]
async fn stream_that_is_opened_again_after_a_compaction_stays_open() {
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
    // A busy machine may break a stream.
    while rounds < ROUNDS_MAX && !stayed_open {
        let before = watches();
        for _ in 0..REFUSALS {
            // The server refuses such watches all at once: with this one goes that of a client that asks the same.
            let forgotten = Some(WatchOptions::new().with_start_revision(1));
            let mut refused = plain.watch("x", forgotten).await.unwrap();
            while !bounded(refused.message()).await.unwrap().unwrap().canceled() {}
        }
        (rounds, stayed_open) = (rounds + 1, watches() == before + REFUSALS);
    }
    assert!(stayed_open, "opened again in each of {ROUNDS_MAX} rounds");
}

/// Connections are taken and reset at once: each of them opens, as far as a client can see.
#[tokio::test(flavor = "multi_thread")]
async fn stream_that_breaks_at_once_is_opened_again_with_pauses() {
    const WATCHED: Duration = Duration::from_secs(2);
    // Five pauses, and some connections at once before each.
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
async fn stream_that_lived_is_opened_again_after_a_short_pause() {
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
    // By then growing pauses would have reached this.
    sooner_than(RETRY_PAUSE_MAX / 2, break_stream).await;
}
