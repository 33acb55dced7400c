//! A server that refuses requests for a moment: what is repeated, how fast, and what a refusal means.

use std::time::{Duration, Instant};

use lockkit_core::{
    Clock, ErrorKind,
    backend::{Acquired, Backend, Renewal},
    limits::{RETRY_PAUSE_MAX, RETRY_PAUSE_MIN},
};
use lockkit_testbed::Proxy;

use crate::{
    common::{
        LONG, acquire, backend, bounded, enqueued, fresh_name, heartbeat, inspect, is_gave_up, is_renewed,
        patient_url, refusal, release, session, session_at, shared, start, try_acquire, until, url_through,
    },
    elections::{elections, lead},
};

/// Kinds of requests and errors in ZooKeeper's protocol.
const DELETE: i32 = 2;
const SET_DATA: i32 = 5;
const LIST: i32 = 8;
const SYNC: i32 = 9;
const MULTI: i32 = 14;
const CREATE: i32 = 15;
const CREATE_CONTAINER: i32 = 19;
const MULTI_READ: i32 = 22;
const UNIMPLEMENTED: i32 = -6;
const BAD_VERSION: i32 = -103;
const THROTTLED: i32 = -127;

/// How often a request is refused before it succeeds.
const REFUSALS: u64 = 4;

/// The shortest time in which a request can be refused this often: each pause is at least twice as long as the one before
/// could be at least.
const PAUSES_MIN: Duration = RETRY_PAUSE_MIN.saturating_mul((1 << REFUSALS) - 1);

/// Refuses requests of this kind during a step, which must repeat them after pauses, and must succeed.
async fn repeated_with_pauses<T>(
    proxy: &Proxy,
    (kind, error, refusals): (i32, i32, u64),
    step: impl AsyncFnOnce() -> T,
) -> T {
    let (dropped, started) = (proxy.counts().dropped, Instant::now());
    proxy.refuse_requests(kind, error, refusals);
    let done = step().await;
    // A step may lose a reply, too.
    let refused = proxy.counts().dropped - dropped;
    assert!(refused >= refusals, "{refused} requests of kind {kind} were refused");
    assert!(started.elapsed() >= PAUSES_MIN, "kind {kind}: repeated within {:?}", started.elapsed());
    done
}

/// Otherwise every client of a server that has too much to do would send it more.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_claim_are_repeated_with_growing_pauses() {
    let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
    let (session, name) = (session_at(&url_through(&proxy), LONG).await, fresh_name());
    let granted = async || acquire(&session, &name).await;
    release(&session, &granted().await).await;
    let held = repeated_with_pauses(&proxy, (CREATE, THROTTLED, REFUSALS), granted).await;
    release(&session, &held).await;
    // The list that is sent with the create is not repeated.
    let held = repeated_with_pauses(&proxy, (LIST, THROTTLED, 1 + REFUSALS), granted).await;
    let waiting = enqueued(&session, &name).await;
    repeated_with_pauses(&proxy, (DELETE, THROTTLED, REFUSALS), async || {
        waiting.control.give_up();
        assert!(is_gave_up(&waiting.ends().await));
    })
    .await;
    release(&session, &held).await;
    // The node of an unanswered create is looked up behind a request through the leader.
    let lost = proxy.counts().dropped;
    let held = repeated_with_pauses(&proxy, (MULTI, THROTTLED, REFUSALS), async || {
        proxy.swallow_reply(1);
        let held = granted().await;
        assert_eq!(proxy.counts().dropped - lost, REFUSALS + 1, "the reply was not lost");
        held
    })
    .await;
    release(&session, &held).await;
}

/// The next pause takes a second, or almost.
#[tokio::test(flavor = "multi_thread")]
async fn claim_that_is_given_up_ends_during_a_pause() {
    const GROWN: u64 = 5;
    const ROUNDS_MAX: usize = 5;
    let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
    let (session, name) = (session_at(&url_through(&proxy), LONG).await, fresh_name());
    release(&session, &acquire(&session, &name).await).await;
    let mut took = Vec::new();
    while took.last().is_none_or(|took| *took > RETRY_PAUSE_MAX / 5) {
        assert!(took.len() < ROUNDS_MAX, "{took:?}");
        let dropped = proxy.counts().dropped;
        proxy.refuse_requests(CREATE, THROTTLED, u64::MAX);
        let claim = start(&session, &name);
        until("pauses are long", async || proxy.counts().dropped - dropped >= GROWN).await;
        let given_up = Instant::now();
        claim.control.give_up();
        assert!(is_gave_up(&claim.ends().await));
        took.push(given_up.elapsed());
        proxy.pass();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_of_a_closed_session_ends_during_a_pause() {
    const GROWN: u64 = 5;
    const ROUNDS_MAX: usize = 5;
    let mut took = Vec::new();
    while took.last().is_none_or(|took| *took > RETRY_PAUSE_MAX / 5) {
        assert!(took.len() < ROUNDS_MAX, "{took:?}");
        let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
        let (session, name) = (session_at(&url_through(&proxy), LONG).await, fresh_name());
        release(&session, &acquire(&session, &name).await).await;
        proxy.refuse_requests(CREATE, THROTTLED, u64::MAX);
        let claim = start(&session, &name);
        until("pauses are long", async || proxy.counts().dropped >= GROWN).await;
        let closing = Instant::now();
        bounded(session.close()).await.unwrap();
        assert_eq!(claim.ends().await.unwrap_err().kind(), ErrorKind::Closed);
        took.push(closing.elapsed());
    }
}

/// The leader's answer proves that the session is alive, whatever becomes of the reads behind it.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_whose_reads_are_refused_renews_its_session_alone() {
    let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
    let session = session_at(&patient_url(&proxy), LONG).await;
    let held = acquire(&session, &fresh_name()).await;
    proxy.refuse_requests(MULTI_READ, THROTTLED, 1);
    let renewals = heartbeat(&session, &[&held]).await;
    assert!(is_renewed(&renewals.session), "{renewals:?}");
    assert!(matches!(renewals.holds[..], [(_, Renewal::Unknown(_))]), "{renewals:?}");
    assert!(is_renewed(&heartbeat(&session, &[&held]).await.holds[0].1));
    release(&session, &held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_on_the_leader_is_set_again_with_growing_pauses() {
    let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
    let (session, name) = (session(shared(), LONG).await, fresh_name());
    let observer = session_at(&url_through(&proxy), LONG).await;
    let mut watch = bounded(elections(&observer).watch(&name)).await.unwrap();
    repeated_with_pauses(&proxy, (LIST, THROTTLED, REFUSALS), async || {
        let held = lead(&session, &name, "x").await;
        bounded(watch.changed()).await;
        release(&session, &held).await;
    })
    .await;
}

/// Operators in step would undo each other's marks every time.
#[tokio::test(flavor = "multi_thread")]
async fn directory_that_others_write_is_marked_again_with_growing_pauses() {
    let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
    let url = format!("{}/?form=bare", shared().url());
    let (session, name) = (session_at(&url, LONG).await, fresh_name());
    let _held = acquire(&session, &name).await;
    let holder = inspect(&url, &name).await.holder.unwrap();
    let operator = backend(&format!("{}&form=bare", patient_url(&proxy)));
    let break_lock = async || bounded(operator.admin().unwrap().break_lock(&name, &holder)).await;
    // It gives up only after the last of five.
    proxy.refuse_requests(SET_DATA, BAD_VERSION, 1 + REFUSALS);
    let error = break_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let broken = repeated_with_pauses(&proxy, (SET_DATA, BAD_VERSION, REFUSALS), break_lock).await;
    assert!(broken.unwrap());
}

/// What a read shows is current only behind a sync that was done.
#[tokio::test(flavor = "multi_thread")]
async fn try_whose_sync_is_refused_reports_no_busy_lock() {
    for form in ["curator", "single"] {
        let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
        let holding = session_at(&format!("{}/?form={form}", shared().url()), LONG).await;
        let trying = session_at(&format!("{}&form={form}", url_through(&proxy)), LONG).await;
        let name = fresh_name();
        let held = acquire(&holding, &name).await;
        assert!(is_gave_up(&try_acquire(&trying, &name).await), "{form}");
        proxy.refuse_requests(SYNC, THROTTLED, 1);
        let error = try_acquire(&trying, &name).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{form}: {error}");
        release(&holding, &held).await;
    }
}

/// A try does not wait for a server that is busy.
#[tokio::test(flavor = "multi_thread")]
async fn try_whose_create_is_refused_is_not_repeated() {
    let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
    let (session, name) = (session_at(&url_through(&proxy), LONG).await, fresh_name());
    release(&session, &acquire(&session, &name).await).await;
    proxy.refuse_requests(CREATE, THROTTLED, 1);
    let error = try_acquire(&session, &name).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(matches!(try_acquire(&session, &name).await, Ok(Acquired::Granted(_))));
}

/// Its heartbeats would lose every hold.
#[tokio::test(flavor = "multi_thread")]
async fn server_without_multi_reads_opens_no_session() {
    let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
    proxy.refuse_requests(MULTI_READ, UNIMPLEMENTED, 1);
    let error = refusal(&patient_url(&proxy)).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("use ZooKeeper 3.6 or later"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_are_persistent_where_the_server_has_no_containers() {
    let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
    proxy.refuse_requests(CREATE_CONTAINER, UNIMPLEMENTED, u64::MAX);
    let url = format!("{}&root=/{}", patient_url(&proxy), fresh_name());
    let session = bounded(backend(&url).open_session(LONG, Clock::boot())).await.unwrap();
    release(&session, &acquire(&session, &fresh_name()).await).await;
    assert!(proxy.counts().dropped > 0, "it asked for no container");
}

/// The server would remove a container, and a `Lock` of kazoo creates its directory only once.
#[tokio::test(flavor = "multi_thread")]
async fn no_container_is_asked_for_where_directories_shall_be_persistent() {
    let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
    proxy.refuse_requests(CREATE_CONTAINER, UNIMPLEMENTED, u64::MAX);
    let url = format!("{}&parents=persistent&root=/{}", patient_url(&proxy), fresh_name());
    let session = bounded(backend(&url).open_session(LONG, Clock::boot())).await.unwrap();
    release(&session, &acquire(&session, &fresh_name()).await).await;
    assert_eq!(proxy.counts().dropped, 0);
}
