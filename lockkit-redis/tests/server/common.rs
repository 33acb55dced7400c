//! What the tests share: sessions at real servers, claims that are driven by hand, and raw scripts.

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
    backend::{Acquired, Backend, BackendUrl, Beat, Claim, ClaimControl, Grant, Renewal, Session},
};
use lockkit_redis::{RedisBackend, RedisConfig};
use lockkit_testbed::Redis;
use tokio::{task::JoinHandle, time::timeout};

/// Generous bound against hangs; no test depends on its length.
pub(crate) const HANG: Duration = Duration::from_secs(30);

/// A ttl that nothing here outlives.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The shortest ttl that there is.
pub(crate) const SHORT: Duration = Duration::from_secs(1);

/// The server that the tests of one program share, where they do nothing to it.
pub(crate) fn shared() -> &'static Redis {
    static SHARED: OnceLock<Redis> = OnceLock::new();
    SHARED.get_or_init(|| Redis::start().unwrap())
}

/// A lock name that no other test uses.
pub(crate) fn fresh_name() -> LockName {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    name(&format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

/// A key beside a lock whose name needs no encoding.
pub(crate) fn side(name: &LockName, what: &str) -> String {
    format!("lockkit:{{{name}}}:{what}")
}

pub(crate) fn backend(url: &str) -> RedisBackend {
    RedisBackend::new(RedisConfig::from_url(BackendUrl::parse(url).unwrap()).unwrap())
}

/// A session of its own, as another process would have it.
pub(crate) async fn session(redis: &Redis, ttl: Duration) -> Arc<dyn Session> {
    session_at(&redis.url(), ttl).await
}

pub(crate) async fn session_at(url: &str, ttl: Duration) -> Arc<dyn Session> {
    backend(url).open_session(ttl, Clock::boot()).await.unwrap()
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

/// What a beat says of its only hold.
pub(crate) fn verdict(beat: Beat) -> Renewal {
    beat.holds.into_iter().next().unwrap().1
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

#[track_caller]
pub(crate) fn assert_rising<T: PartialOrd + Debug>(values: &[T]) {
    assert!(values.windows(2).all(|pair| pair[0] < pair[1]), "not strictly rising: {values:?}");
}
