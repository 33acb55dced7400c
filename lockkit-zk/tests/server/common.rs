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
    Clock, Error, LockName, Metadata, Result,
    backend::{Acquired, Backend, BackendUrl, Beat, Claim, ClaimControl, Grant, Renewal, Session},
};
use lockkit_testbed::{Proxy, ZooKeeper};
use lockkit_zk::{ZkBackend, ZkConfig};
use tokio::{task::JoinHandle, time::timeout};
use zookeeper_client::{Acls, Client, CreateMode};

/// Generous bound against hangs; no test depends on its length.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// A ttl that nothing here outlives, and with beats so far apart that no ping of a client falls into a test.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// A short ttl, for tests that wait for its end or for a re-check (every 2 s then).
pub(crate) const SHORT: Duration = Duration::from_secs(4);

/// The server that the tests of one program share, where they do nothing to it.
pub(crate) fn shared() -> &'static ZooKeeper {
    static SHARED: OnceLock<ZooKeeper> = OnceLock::new();
    SHARED.get_or_init(|| ZooKeeper::start().unwrap())
}

/// A lock name that no other test uses.
pub(crate) fn fresh_name() -> LockName {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    name(&format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

/// The node of a lock whose name needs no encoding.
pub(crate) fn node(name: &LockName) -> String {
    format!("/lockkit/{name}")
}

/// The contenders for a lock, as the server has them.
pub(crate) fn queue(server: &ZooKeeper, name: &LockName) -> Vec<String> {
    server.children(&node(name)).unwrap()
}

pub(crate) fn backend(url: &str) -> ZkBackend {
    ZkBackend::new(ZkConfig::from_url(BackendUrl::parse(url).unwrap()).unwrap())
}

/// A session of its own, as another process would have it.
pub(crate) async fn session(server: &ZooKeeper, ttl: Duration) -> Arc<dyn Session> {
    session_at(&server.url(), ttl).await
}

pub(crate) async fn session_at(url: &str, ttl: Duration) -> Arc<dyn Session> {
    backend(url).open_session(ttl, Clock::boot()).await.unwrap()
}

/// Why there is no session at this URL.
pub(crate) async fn refusal(url: &str) -> Error {
    bounded(backend(url).open_session(LONG, Clock::boot())).await.err().unwrap()
}

/// The server through this proxy; requests that get lost cost little time.
pub(crate) fn url_through(proxy: &Proxy) -> String {
    format!("zk://{}/?request_timeout=500ms", proxy.endpoint())
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

    /// What its node's name holds.
    pub(crate) fn mark(&self) -> String {
        let hex = self.claim.id().to_string();
        [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
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

/// The same, and it watches its predecessor; for servers where nothing else does.
pub(crate) async fn watching(server: &ZooKeeper, session: &Arc<dyn Session>, name: &LockName) -> Waiting {
    let before = server.watches().unwrap();
    let waiting = enqueued(session, name).await;
    until("it watches", async || server.watches().unwrap() == before + 1).await;
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

pub(crate) async fn beat(session: &Arc<dyn Session>, held: &[&Grant]) -> Beat {
    let held: Vec<Grant> = held.iter().map(|&grant| grant.clone()).collect();
    bounded(session.renew(&held)).await
}

pub(crate) fn is_renewed(renewal: &Renewal) -> bool {
    matches!(renewal, Renewal::Renewed { .. })
}

/// A plain client, as other programs and operators use.
pub(crate) async fn plain(server: &ZooKeeper) -> Client {
    Client::connect(&server.endpoint()).await.unwrap()
}

/// Creates a contender as another program would; answers its path.
pub(crate) async fn contend(client: &Client, name: &LockName, prefix: &str) -> String {
    let (directory, anyone) = (node(name), Acls::anyone_all());
    client.mkdir(&directory, &CreateMode::Persistent.with_acls(anyone)).await.unwrap();
    let prefix = format!("{directory}/{prefix}");
    let options = CreateMode::EphemeralSequential.with_acls(anyone);
    let (_, number) = client.create(&prefix, b"", &options).await.unwrap();
    format!("{prefix}{number}")
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
