//! Pins: the lock's key gets a longer lifetime, and no request of the same claim shortens it.
//!
//! Failure cases:
//!
//! * The process is killed, the session is dropped or closed: the key lives until the pin ends. Its value and the queue
//!   stay, so the first waiter is granted the lock when the key expires. Waiters re-check at that time (`expiry`).
//! * A heartbeat is sent after the pin, answered or not: it asks for the rest of the pin. So the pin is noted before its
//!   request is sent. (Heartbeats do shorten lifetimes that are too long: the server's clock may have been put back.)
//! * A late copy of the acquire arrives after the pin: `hold` in `lock.lua` never shortens a lifetime. No heartbeat of
//!   a grant is sent before its pin.
//! * A late copy of a heartbeat arrives after the leave: the lock is free one ttl later than the pin ends, at most.
//! * A failover has lost the pin but not the grant: the next heartbeat asks for the rest of the pin.
//! * The reply to a pin is lost: the caller releases the grant.
//! * The reply to a leave is lost: it is repeated. Nothing renews the hold from the first request on, so its lock
//!   expires one ttl after the last heartbeat, or with its pin.
//! * The clocks of client and server run at different rates: the rest of a pin allows for that, and is never too short.

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::{
    BootInstant, Result,
    backend::{Grant, Pins},
    lease,
};

use crate::{
    error::RequestError,
    session::{RedisSession, heartbeat::held_lock, registry::ClaimEntry},
    wire::lifetime_ms,
};

/// A pin: the server keeps the lock for this time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pin {
    pub(crate) since: BootInstant,
    pub(crate) at_least: Duration,
}

impl Pin {
    /// Returns the time until it ends, and never less: the server's clock may be slower than this one.
    pub(crate) fn left(self, now: BootInstant) -> Duration {
        self.at_least.saturating_sub(lease::elapsed_at_least(now.since(self.since)))
    }
}

#[async_trait]
impl Pins for RedisSession {
    async fn pin(&self, grant: &Grant, at_least: Duration) -> Result<bool> {
        self.check_open("pin", grant.name())?;
        let Some(entry) = self.claims.get(grant.claim()) else { return Ok(false) };
        let sent_at = self.clock.now();
        entry.pin(sent_at, at_least);
        // A heartbeat of one lock, with the lifetime of the pin.
        let held = held_lock(&entry, grant, entry.pin_left(sent_at).max(self.ttl));
        let limit = self.server.request_timeout();
        let answer = self.renew_batch(std::slice::from_ref(&held), limit).await.pop();
        let answer = answer.unwrap_or_else(|| Err(RequestError::unexpected("a pin without an answer")));
        let is_held = answer.map_err(|fault| fault.into_error("pin").with_lock(grant.name()))?;
        if is_held {
            // The server's count may have begun as late as this.
            entry.pin(self.clock.now(), at_least);
        }
        Ok(is_held)
    }

    async fn leave(&self, grant: &Grant) -> Result<()> {
        self.check_open("leave", grant.name())?;
        let Some(entry) = self.claims.get(grant.claim()) else { return Ok(()) };
        self.leave_claim(&entry).await.map_err(|fault| fault.into_error("leave").with_lock(grant.name()))
    }
}

impl RedisSession {
    /// Ends a hold when the session is closed.
    pub(crate) async fn end_with_session(&self, entry: &ClaimEntry) -> Result<(), RequestError> {
        if entry.outlives_session(self.clock.now()) {
            self.leave_claim(entry).await
        } else {
            self.release_claim(entry).await
        }
    }

    /// Ends a hold, and leaves its lock until the end of its pin.
    async fn leave_claim(&self, entry: &ClaimEntry) -> Result<(), RequestError> {
        let now = self.clock.now();
        let left = entry.pin_left(now);
        if left.is_zero() {
            // Nothing to wait for: the next waiter is granted the lock at once.
            return self.release_claim(entry).await;
        }
        entry.begin_release(now);
        self.server.run(&self.params.leave(entry, lifetime_ms(left))).await?;
        self.claims.forget(entry.id);
        Ok(())
    }
}
