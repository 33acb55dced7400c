//! The watch stream of a session: it breaks, its history is compacted, its login expires.

use std::time::{Duration, Instant};

use etcd_client::WatchOptions;
use lockkit_core::limits::RETRY_PAUSE_MAX;
use lockkit_testbed::{Etcd, Message, Proxy};

use crate::{
    common::{
        LONG, PASSWORD, acquire, bounded, enqueued, fresh_name, own_server, plain, plain_as, queue, release,
        session, session_at, start_with_proxy, until, with_login,
    },
    elections::{elected, proclaim, sees, watch},
    setting::Setting,
};

/// Lifetime of a login; long enough to log in and to use it once, on a busy machine.
const LOGIN: Duration = Duration::from_secs(2);

/// Part of the `RangeRequest` of a waiter for its own key and its predecessor: descending, by creation, keys only, up to
/// a create revision.
const POSITION: &str = "(\u{2}0\u{2}@\u{1}h";

/// Checks that a waiter is granted the lock when its predecessor is deleted while its watch is broken.
async fn deletion_is_noticed_after(meanwhile: impl AsyncFn(&Setting)) {
    Setting::before_a_recheck(async |setting| {
        let (foreign, waiting) = setting.behind_a_foreign_key().await;
        setting.watches(1).await;
        setting.proxy.refuse();
        setting.etcd.delete(&foreign).unwrap();
        meanwhile(setting).await;
        setting.proxy.pass();
        setting.ends_with_a_grant(waiting).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_watch_resumes_where_it_stopped() {
    deletion_is_noticed_after(async |_| {}).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_that_starts_after_the_deletion_reports_it() {
    Setting::before_a_recheck(async |setting| {
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
async fn handoff_during_a_broken_stream_is_read_later() {
    Setting::before_a_recheck(async |setting| {
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
    Setting::before_a_recheck(async |setting| {
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
        // At the server, too: the next round counts its watches.
        setting.proxy.reset();
        setting.proxy.pass();
        setting.ends_with_a_grant(waiting).await;
    }
    assert!(by_handoff, "the handoff granted in none of {ROUNDS} rounds");
}

#[tokio::test(flavor = "multi_thread")]
async fn compacted_watch_makes_its_waiter_read_the_queue() {
    deletion_is_noticed_after(async |setting| setting.compact().await).await;
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
    // Five pauses, and a connection or two before each; without pauses there are 29, as connecting has pauses of its own.
    const CONNECTIONS_MAX: u64 = 15;
    let setting = Setting::start().await;
    setting.watches(0).await;
    let accepted = || setting.proxy.counts().accepted;
    let before = accepted();
    setting.proxy.refuse();
    tokio::time::sleep(WATCHED).await;
    let made = accepted() - before;
    assert!(made <= CONNECTIONS_MAX, "{made} connections in {WATCHED:?}");
    until("there is a new connection", async || accepted() > before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_that_worked_is_reopened_after_a_short_pause() {
    const BREAKS: usize = 6;
    const ROUNDS_MAX: usize = 20;
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
    // Pauses that only grew would be longer by now. Repeated, because a busy machine may delay the next stream.
    let (short, mut took) = (RETRY_PAUSE_MAX / 2, Vec::new());
    while took.last().is_none_or(|last| *last >= short) {
        assert!(took.len() < ROUNDS_MAX, "never in less than {short:?}: {took:?}");
        let start = Instant::now();
        break_stream().await;
        took.push(start.elapsed());
    }
}

/// Checks that a waiter whose login has ended watches the foreign key before it.
async fn watches_after_its_login_has_ended(etcd: &Etcd, url: &str, end_login: impl AsyncFnOnce()) {
    let (session, name) = (session_at(url, LONG).await, fresh_name());
    let foreign = format!("{}foreign", queue(&name));
    etcd.put(&foreign, "").unwrap();
    end_login().await;
    let waiting = enqueued(&session, &name).await;
    until("the predecessor is watched", async || etcd.metrics().unwrap().watchers() == 2).await;
    etcd.delete(&foreign).unwrap();
    release(&session, &waiting.granted().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn predecessors_are_watched_after_the_server_has_forgotten_the_login() {
    let (etcd, url) = with_login(Etcd::start());
    watches_after_its_login_has_ended(&etcd, &url, async || etcd.expire_logins("app", PASSWORD).unwrap())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn predecessors_are_watched_after_the_token_has_ended() {
    let (etcd, url) = with_login(Etcd::start_with_jwt(LOGIN));
    let token_ends = async || {
        // Its token is younger than the session's.
        let plain = plain_as("app", &etcd).await;
        until("the token has ended", async || plain.kv_client().get("x", None).await.is_err()).await;
    };
    watches_after_its_login_has_ended(&etcd, &url, token_ends).await;
}

/// The session sends no requests by itself, but must still receive handoffs and the deletion of its epoch key.
#[tokio::test(flavor = "multi_thread")]
async fn stream_that_breaks_after_the_login_expired_is_reopened() {
    let (etcd, _) = with_login(Etcd::start());
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let _session = session_at(&format!("etcd://app:{PASSWORD}@{}", proxy.endpoint()), LONG).await;
    let watchers = || etcd.metrics().unwrap().watchers();
    until("the session watches its own keys", async || watchers() == 1).await;
    proxy.refuse();
    until("the watch has ended", async || watchers() == 0).await;
    etcd.expire_logins("app", PASSWORD).unwrap();
    proxy.pass();
    until("the session watches its own keys again", async || watchers() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_wakes_after_its_stream_broke_and_its_history_was_compacted() {
    let (etcd, proxy, observer) = start_with_proxy().await;
    let (one, name) = (session(&etcd, LONG).await, fresh_name());
    let mut watch = watch(&observer, &name).await;
    let elect = elected(&one, &name, "a").await;
    sees(&observer, &name, &mut watch, Some("a")).await;
    for compacted in [false, true] {
        let value = format!("while it was cut off, {compacted}");
        proxy.refuse();
        assert!(proclaim(&one, &elect, &value, 2).await);
        if compacted {
            etcd.compact().unwrap();
        }
        proxy.pass();
        bounded(watch.changed()).await;
        sees(&observer, &name, &mut watch, Some(&value)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_watch_is_cancelled_at_the_server() {
    let etcd = own_server();
    let (observer, name) = (session(&etcd, LONG).await, fresh_name());
    let watchers = |count: u64| {
        let etcd = &etcd;
        until("as many watches are open", async move || etcd.metrics().unwrap().watchers() == count)
    };
    let watch = watch(&observer, &name).await;
    watchers(2).await;
    drop(watch);
    watchers(1).await;
}
