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
    BootInstant, Clock, LockName, TimeSource,
    backend::{Backend, BackendUrl, Renewal, Renewals, Session},
};
use lockkit_redis::{RedisBackend, RedisConfig};
use lockkit_testbed::Redis;

/// The shortest ttl.
pub(crate) const SHORT: Duration = Duration::from_secs(1);

/// Returns the server that all tests share that do not disturb it.
pub(crate) fn shared() -> &'static Redis {
    static SHARED: OnceLock<Redis> = OnceLock::new();
    SHARED.get_or_init(|| Redis::start().unwrap())
}

/// Returns a side key of a lock whose name needs no encoding.
pub(crate) fn side(name: &LockName, what: &str) -> String {
    format!("lockkit:{{{name}}}:{what}")
}

pub(crate) fn backend(url: &str) -> RedisBackend {
    RedisBackend::new(RedisConfig::from_url(BackendUrl::parse(url).unwrap()).unwrap())
}

/// Opens a session of its own, as another process would.
pub(crate) async fn session(redis: &Redis, ttl: Duration) -> Arc<dyn Session> {
    session_at(&redis.url(), ttl).await
}

pub(crate) async fn session_at(url: &str, ttl: Duration) -> Arc<dyn Session> {
    backend(url).open_session(ttl, Clock::boot()).await.unwrap()
}

/// Returns how many scripts the server has run.
pub(crate) fn scripts(redis: &Redis) -> u64 {
    redis.calls("evalsha").unwrap() + redis.calls("eval").unwrap()
}

/// Returns the renewal of the only hold of a heartbeat.
pub(crate) fn only_renewal(heartbeat: Renewals) -> Renewal {
    heartbeat.holds.into_iter().next().unwrap().1
}

/// A clock that the test sets, in milliseconds.
pub(crate) struct SetClock(pub(crate) Arc<AtomicU64>);

impl TimeSource for SetClock {
    fn now(&self) -> BootInstant {
        BootInstant::from_start(Duration::from_millis(self.0.load(SeqCst)))
    }
}
