//! Release of a hold, and withdrawal of a claim that was not granted: both remove everything of a claim at the server.
//!
//! Failure cases:
//!
//! * A release is not answered: it is repeated. It names its claim and can end no other.
//! * It is not answered until the lock must have expired: the hold is forgotten. The caller who waited for the answer
//!   got an error.
//! * Many lapsed waiters are at the head of the queue: each request drops some hundreds, and the release is repeated
//!   until the next waiter is found.

use std::time::Duration;

use redis::Value;
use tracing::debug;

use super::{RedisSession, registry::ClaimEntry};
use crate::{error::RequestError, wire::parse_release};

/// Bounds the repeated requests of one release. Each drops some hundreds of lapsed waiters: enough for what a client
/// that died may have left, and few enough that the caller does not wait for too long.
const HANDOFF_CALLS_MAX: u32 = 200;

impl RedisSession {
    pub(crate) async fn release_claim(&self, entry: &ClaimEntry) -> Result<(), RequestError> {
        entry.mark_released();
        entry.begin_release(self.clock.now());
        self.end_at_server(entry).await?;
        self.claims.forget(entry.id);
        Ok(())
    }

    /// Ends a claim at the server, whether it holds the lock or waits.
    pub(crate) async fn end_at_server(&self, entry: &ClaimEntry) -> Result<(), RequestError> {
        let release = self.params.release(entry);
        let released = parse_release(self.server.run(&release).await?)?;
        if released.is_unserved {
            find_next(|| self.server.run(&release)).await;
        }
        Ok(())
    }

    /// Forgets holds that must have expired at least `ago` ago. A hold must have expired one ttl after its last
    /// heartbeat, which may have been under way when its release began.
    pub(crate) fn forget_ended(&self, ago: Duration) {
        self.claims.forget_ended(self.clock.now(), self.ttl + self.server.request_timeout() + ago);
    }
}

/// Repeats the release of a claim that has ended until the next waiter is found. This only makes the handoff prompt: if
/// the requests fail or are too few, the next heartbeat of any waiter finds the lock free, and that waiter continues.
pub(crate) async fn find_next<F>(release: impl Fn() -> F)
where
    F: Future<Output = Result<Value, RequestError>>,
{
    for _ in 0..HANDOFF_CALLS_MAX {
        match release().await.and_then(parse_release) {
            Ok(released) if released.is_unserved => {}
            Ok(_) => return,
            Err(fault) => return debug!(?fault, "the next waiter was not found yet"),
        }
    }
}
