//! What the tests share: sessions at real servers, claims that are driven by hand, and a plain client for what other
//! programs and operators do.

use std::{
    fmt::Debug,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lockkit_core::{
    Clock, LockName, Metadata, Result,
    backend::{Acquired, Backend, BackendUrl, Claim, ClaimControl, Grant, Session},
};
use lockkit_etcd::{EtcdBackend, EtcdConfig};
use lockkit_testbed::{Etcd, Proxy};
use tokio::{task::JoinHandle, time::timeout};

/// Generous bound against hangs; no test depends on its length.
pub(crate) const HANG: Duration = Duration::from_secs(30);

/// A ttl that nothing here outlives.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The server that the tests of one program share, where they do nothing to it.
pub(crate) fn shared() -> &'static Etcd {
    static SHARED: OnceLock<Etcd> = OnceLock::new();
    SHARED.get_or_init(|| Etcd::start().unwrap())
}

/// A lock name that no other test uses.
pub(crate) fn fresh_name() -> LockName {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    name(&format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

/// The beginning of the keys of a lock whose name needs no encoding.
pub(crate) fn queue(name: &LockName) -> String {
    format!("lockkit/{name}/")
}

pub(crate) fn backend(url: &str) -> EtcdBackend {
    EtcdBackend::new(EtcdConfig::from_url(BackendUrl::parse(url).unwrap()).unwrap())
}

/// A session of its own, as another process would have it.
pub(crate) async fn session(etcd: &Etcd, ttl: Duration) -> Arc<dyn Session> {
    session_at(&etcd.url(), ttl).await
}

pub(crate) async fn session_at(url: &str, ttl: Duration) -> Arc<dyn Session> {
    backend(url).open_session(ttl, Clock::boot()).await.unwrap()
}

/// The server through this proxy; requests that get lost cost little time.
pub(crate) fn url_through(proxy: &Proxy) -> String {
    format!("etcd://{}/?request_timeout=500ms", proxy.endpoint())
}

/// Clients lose their connections and make new ones, which work; what they have sent stays under way.
pub(crate) fn cut(proxy: &Proxy) {
    proxy.leave();
    proxy.pass();
}

/// A claim on its way.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) control: ClaimControl,
    pub(crate) claim: Claim,
    task: JoinHandle<Result<Acquired>>,
}

impl Waiting {
    /// How the claim ends.
    pub(crate) async fn ends(self) -> Result<Acquired> {
        bounded(self.task).await.unwrap()
    }

    /// The grant that the claim ends with.
    pub(crate) async fn granted(self) -> Grant {
        granted(self.ends().await)
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.task.is_finished()
    }
}

pub(crate) fn granted(end: Result<Acquired>) -> Grant {
    match end {
        Ok(Acquired::Granted(grant)) => grant,
        other => panic!("not granted but {other:?}"),
    }
}

/// Starts a claim that waits.
pub(crate) fn start(session: &Arc<dyn Session>, name: &LockName) -> Waiting {
    start_claim(session, name, true)
}

pub(crate) fn start_claim(session: &Arc<dyn Session>, name: &LockName, wait: bool) -> Waiting {
    let control = ClaimControl::new();
    let claim = Claim::new(name.clone(), wait, Metadata::of_this_process(Some("test")), &control);
    let (session, sent) = (Arc::clone(session), claim.clone());
    let task = tokio::spawn(async move { session.acquire(sent).await });
    Waiting { control, claim, task }
}

/// Starts a claim, and returns when it is known to wait behind another.
pub(crate) async fn enqueued(session: &Arc<dyn Session>, name: &LockName) -> Waiting {
    let waiting = start(session, name);
    until("the claim is queued", async || waiting.control.was_contended()).await;
    assert!(waiting.is_waiting());
    waiting
}

pub(crate) async fn acquire(session: &Arc<dyn Session>, name: &LockName) -> Grant {
    start(session, name).granted().await
}

pub(crate) async fn try_acquire(session: &Arc<dyn Session>, name: &LockName) -> Result<Acquired> {
    start_claim(session, name, false).ends().await
}

/// Releases as a keeper does: until it is confirmed.
pub(crate) async fn release(session: &Arc<dyn Session>, grant: &Grant) {
    let confirmed = async {
        while session.release(grant).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    bounded(confirmed).await;
}

/// The key of a claim, as the store has it.
pub(crate) fn key_of(etcd: &Etcd, claim: &Claim) -> String {
    let id = claim.id().to_string();
    etcd.keys("").unwrap().into_iter().find(|key| key.ends_with(&id)).unwrap()
}

/// The lease of a session, from its epoch key; for servers with one session.
pub(crate) fn lease_of_only_session(etcd: &Etcd) -> i64 {
    let keys = etcd.keys("lockkit/:clients/").unwrap();
    let lease = keys[0].strip_prefix("lockkit/:clients/").unwrap().split('/').next().unwrap();
    i64::from_str_radix(lease, 16).unwrap()
}

/// A plain client, as other programs and operators use.
pub(crate) async fn plain(etcd: &Etcd) -> etcd_client::Client {
    etcd_client::Client::connect([etcd.endpoint()], None).await.unwrap()
}

/// Looks again and again until it is so.
pub(crate) async fn until(what: &str, so: impl AsyncFn() -> bool) {
    let look = async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(timeout(HANG, look).await.is_ok(), "it never came about that {what}");
}

pub(crate) async fn bounded<T>(work: impl Future<Output = T>) -> T {
    timeout(HANG, work).await.unwrap_or_else(|_| panic!("a wait without an end"))
}

pub(crate) fn is_gave_up(end: &Result<Acquired>) -> bool {
    matches!(end, Ok(Acquired::GaveUp))
}

pub(crate) fn is_entry_gone(end: &Result<Acquired>) -> bool {
    matches!(end, Ok(Acquired::EntryGone))
}

#[track_caller]
pub(crate) fn assert_rising<T: PartialOrd + Debug>(values: &[T]) {
    assert!(values.windows(2).all(|pair| pair[0] < pair[1]), "not strictly rising: {values:?}");
}
