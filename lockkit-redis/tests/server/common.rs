//! Helpers that the tests share: sessions at real servers, and claims that are driven directly.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

pub(crate) use lockkit_conformance::direct::*;
use lockkit_core::{
    BootInstant, Clock, LockName,
    backend::{Backend, BackendUrl, Renewal, Renewals, Session},
};
use lockkit_redis::{RedisBackend, RedisConfig};
use lockkit_testbed::Redis;

/// The shortest ttl.
pub(crate) const SHORT: Duration = Duration::from_secs(1);

/// For servers that answer at once, however busy this machine is. A repeated request would be counted twice.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the server that all tests share that do not disturb it.
pub(crate) fn shared() -> &'static Redis {
    static SHARED: OnceLock<Redis> = OnceLock::new();
    SHARED.get_or_init(|| Redis::start().unwrap())
}

/// Returns a side key of a lock whose name needs no encoding.
pub(crate) fn side(name: &LockName, what: &str) -> String {
    format!("lockkit:{{{name}}}:{what}")
}

/// Returns a backend whose requests may take as long as the URL says, or else [`REQUEST_TIMEOUT`].
pub(crate) fn backend(url: &str) -> RedisBackend {
    let config = RedisConfig::from_url(BackendUrl::parse(url).unwrap()).unwrap();
    let has_timeout = url.contains("request_timeout=");
    RedisBackend::new(if has_timeout { config } else { config.request_timeout(REQUEST_TIMEOUT) })
}

/// Opens a session of its own, as another process would.
pub(crate) async fn session(redis: &Redis, ttl: Duration) -> Arc<dyn Session> {
    session_at(&redis.url(), ttl).await
}

pub(crate) async fn session_at(url: &str, ttl: Duration) -> Arc<dyn Session> {
    backend(url).open_session(ttl, Clock::boot()).await.unwrap()
}

/// Opens a session with a time limit that a busy machine may exceed. Tries again then, as a client would.
pub(crate) async fn quick_session(url: &str, ttl: Duration) -> Arc<dyn Session> {
    let backend = backend(url);
    let opened = async {
        loop {
            match backend.open_session(ttl, Clock::boot()).await {
                Ok(session) => return session,
                Err(error) => assert!(error.is_temporary(), "{error}"),
            }
        }
    };
    bounded(opened).await
}

/// Returns how many scripts the server has run.
pub(crate) fn scripts(redis: &Redis) -> u64 {
    redis.calls("evalsha").unwrap() + redis.calls("eval").unwrap()
}

/// Returns the renewal of the only hold of a heartbeat.
pub(crate) fn only_renewal(heartbeat: Renewals) -> Renewal {
    heartbeat.holds.into_iter().next().unwrap().1
}

/// Opens a session whose clock the test sets, in milliseconds.
pub(crate) async fn session_on_set_clock(url: &str) -> (Arc<dyn Session>, Arc<AtomicU64>) {
    let now_ms = Arc::new(AtomicU64::new(0));
    let reading = Arc::clone(&now_ms);
    let clock = Clock::new(move || BootInstant::from_start(Duration::from_millis(reading.load(SeqCst))));
    (backend(url).open_session(LONG, clock).await.unwrap(), now_ms)
}
