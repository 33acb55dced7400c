//! What the tests share: sessions at real servers, claims that are driven by hand, and raw scripts.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

pub(crate) use lockkit_conformance::by_hand::*;
use lockkit_core::{
    Clock, LockName,
    backend::{Backend, BackendUrl, Beat, Renewal, Session},
};
use lockkit_redis::{RedisBackend, RedisConfig};
use lockkit_testbed::Redis;

/// A ttl that nothing here outlives.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The shortest ttl that there is.
pub(crate) const SHORT: Duration = Duration::from_secs(1);

/// The server that the tests of one program share, where they do nothing to it.
pub(crate) fn shared() -> &'static Redis {
    static SHARED: OnceLock<Redis> = OnceLock::new();
    SHARED.get_or_init(|| Redis::start().unwrap())
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

/// What a beat says of its only hold.
pub(crate) fn verdict(beat: Beat) -> Renewal {
    beat.holds.into_iter().next().unwrap().1
}
