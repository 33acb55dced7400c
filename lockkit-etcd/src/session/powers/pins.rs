//! Pins: keys of holds with a minimum time are attached to a lease of their own, which is not renewed.
//!
//! A pin moves the key from the session's lease to that of the pin, which lives for the pinned time and for at least
//! one ttl. Before it ends, a heartbeat moves the key back, if it is still held.
//!
//! **When.** At the first heartbeat whose renewal lets the session's lease live longer than that of the pin. An earlier
//! move would shorten the pin if the client died; a later one would leave fewer heartbeats to repeat it. The rest of
//! the pin's lease is then between two thirds of a ttl and a whole one, as long as what an ordinary hold has left: two
//! further heartbeats can repeat a move that failed. Until a move is confirmed, the hold is believed for no longer than
//! the pin's lease lives.
//!
//! Failure cases:
//!
//! * The reply to the grant of a lease is lost. The lease has no key, and expires.
//! * The reply to a move is lost. Which of the two leases the key has is unknown: the hold counts on the one that ends
//!   first. Copies that arrive late do nothing ([`rewrite`](crate::session::rewrite)).
//! * The client dies, or its session ends. The key stays until its lease ends: no earlier than the pin.
//! * The session is closed after a key was moved back, but before the end of its pin. Its lease is then not revoked. It
//!   expires within one ttl.
//! * A hold ends by [`leave`](Pins::leave) after a move, or when the outcome of one is unknown. The key is moved to a
//!   new lease that lives for the rest of the pin.
//! * The release of a pinned hold is not confirmed, and the session is closed: the close revokes the pin's lease, and
//!   repeats that once. If both fail, the key stays until the pin ends.
//! * Waiters behind a key that was left get no handoff. They watch its deletion, as they do when a client dies.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use lockkit_core::{
    BootInstant, Result,
    backend::{ClaimId, Grant, Pins, retry_pauses},
    lease,
    limits::CLOSE_ANSWER_MAX,
    support::lock,
};
use tracing::debug;

use crate::{
    error::RequestError,
    lease::Lease,
    session::{EtcdSession, entry::QueueEntry, rewrite::HeldKey},
    wire::Rewrite,
};

/// Keys that one heartbeat moves, and leases that a close revokes, at a time.
const REQUESTS_AT_A_TIME: usize = 64;

/// Longest time that the revocations of a close take: half of the time that it has. The rest is for the session's lease.
const PINS_OF_CLOSE_MAX: Duration = Duration::from_secs(CLOSE_ANSWER_MAX.as_secs() / 2);

/// A pinned hold.
#[derive(Clone, Debug)]
pub(crate) struct Pin {
    /// Until then the key stays.
    until: BootInstant,
    lease: Arc<Lease>,
    /// The least instant at which the key can end, unless it is attached to the session's lease.
    ends: BootInstant,
    attached_to: AttachedTo,
}

/// The lease of a pinned key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttachedTo {
    Pin,
    Session,
    /// One of the two.
    Unknown,
}

impl HeldKey {
    fn pin(&self) -> Option<Pin> {
        lock(&self.pin).clone()
    }

    /// Sets a pin whose lease the key is about to be attached to.
    fn set_pin(&self, until: BootInstant, lease: Arc<Lease>) {
        let mut pin = lock(&self.pin);
        let ends = lease_end(&lease, until);
        let ends = pin.as_ref().map_or(ends, |before| before.ends.min(ends));
        *pin = Some(Pin { until, lease, ends, attached_to: AttachedTo::Unknown });
    }

    fn set_attached(&self, to: AttachedTo) {
        if let Some(pin) = lock(&self.pin).as_mut() {
            pin.attached_to = to;
            if to == AttachedTo::Pin {
                pin.ends = lease_end(&pin.lease, pin.until);
            }
        }
    }

    fn forget_pin(&self) {
        lock(&self.pin).take();
    }

    /// Returns the lease of the pin, unless it is about to end by itself.
    pub(crate) fn pin_lease(&self) -> Option<Arc<Lease>> {
        self.pin().filter(|pin| pin.attached_to != AttachedTo::Session).map(|pin| pin.lease)
    }
}

/// Returns the least instant at which the lease of a pin can end. It was granted to live for as long as the pin, whichever
/// clock is faster.
fn lease_end(lease: &Lease, until: BootInstant) -> BootInstant {
    lease.end().max(until)
}

impl EtcdSession {
    async fn pin_grant(&self, grant: &Grant, at_least: Duration) -> Result<bool, RequestError> {
        let Some(entry) = self.claims.get(grant.claim()) else { return Ok(false) };
        let _one_at_a_time = entry.held.one_at_a_time.lock().await;
        let until = self.lease.now().after(at_least);
        let until = entry.held.pin().map_or(until, |pin| pin.until.max(until));
        // A copy of any of its requests may arrive at any time, also one that a heartbeat has given up.
        entry.put_in_doubt();
        self.move_to_new_lease(&entry, until, self.lease.ttl()).await
    }

    /// Moves the key of a held claim to a new lease, which lives until then, and for at least this long.
    async fn move_to_new_lease(
        &self,
        entry: &QueueEntry,
        until: BootInstant,
        ttl_min: Duration,
    ) -> Result<bool, RequestError> {
        let ttl = lease::ttl_lasting(until.since(self.lease.now())).max(ttl_min);
        let lease = self.state.unless_over(self.lease.another(&self.server, ttl)).await?;
        let lease = Arc::new(lease);
        let change = Rewrite::Lease(lease.id());
        let before = entry.held.pin_lease();
        entry.held.set_pin(until, lease);
        let is_held = self.rewrite(entry, &change).await?;
        entry.held.set_attached(AttachedTo::Pin);
        if let Some(unused) = before {
            // If this fails, it expires.
            let _ = unused.revoke(&self.server).await;
        }
        Ok(is_held)
    }

    async fn leave_grant(&self, grant: &Grant) -> Result<(), RequestError> {
        let Some(entry) = self.claims.get(grant.claim()) else { return Ok(()) };
        let one_at_a_time = entry.held.one_at_a_time.lock().await;
        let pin = entry.held.pin().filter(|pin| self.lease.now() < pin.until);
        let Some(pin) = pin else {
            drop(one_at_a_time);
            return self.release_grant(grant).await;
        };
        if pin.attached_to != AttachedTo::Pin
            && !self.move_to_new_lease(&entry, pin.until, Duration::ZERO).await?
            && let Some(unused) = entry.held.pin_lease()
        {
            // The hold has ended: no key was moved. If this fails, the lease lives until the end of the pin.
            let _ = unused.revoke(&self.server).await;
        }
        // A heartbeat that has chosen this entry must not move the key back: nothing would end it then.
        entry.held.forget_pin();
        debug!(claim = ?grant.claim(), "left until the end of its pin");
        // Its key is not reused: it still exists.
        self.claims.forget(grant.claim());
        Ok(())
    }

    /// Moves keys back to the session's lease, which was renewed at `armed_at`, if it lives longer than their pins'.
    pub(crate) async fn end_pins(&self, held: &[Grant], armed_at: BootInstant, step: Duration) {
        let ends = armed_at.after(self.lease.ttl());
        let deadline = lease::deadline(armed_at, self.lease.ttl());
        let is_due = move |pin: &Pin| {
            pin.attached_to != AttachedTo::Session && pin.ends <= ends && pin.until <= deadline
        };
        let entries = held.iter().filter_map(|grant| self.claims.get(grant.claim()));
        let due: Vec<_> = entries.filter(|entry| entry.held.pin().as_ref().is_some_and(is_due)).collect();
        let moves = stream::iter(due)
            .map(|entry| async move { self.end_pin(&entry, is_due).await })
            .buffer_unordered(REQUESTS_AT_A_TIME)
            .for_each(async |moved| {
                if let Err(fault) = moved {
                    debug!(?fault, "a key is still attached to the lease of its pin");
                }
            });
        // What is not confirmed in time stays unknown, and is repeated by the next heartbeat.
        let _ = tokio::time::timeout(step, moves).await;
    }

    async fn end_pin(&self, entry: &QueueEntry, is_due: impl Fn(&Pin) -> bool) -> Result<(), RequestError> {
        let _one_at_a_time = entry.held.one_at_a_time.lock().await;
        // It may have been left, or pinned again, meanwhile.
        if !entry.held.pin().as_ref().is_some_and(is_due) {
            return Ok(());
        }
        entry.held.set_attached(AttachedTo::Unknown);
        if self.rewrite(entry, &Rewrite::Lease(self.lease.id())).await? {
            entry.held.set_attached(AttachedTo::Session);
        }
        Ok(())
    }

    /// Returns the start of a lifetime of one ttl that ends before the key of this hold can; at most `armed_at`.
    pub(crate) fn renewed_at_most(&self, claim: ClaimId, armed_at: BootInstant) -> BootInstant {
        match self.claims.get(claim).and_then(|entry| entry.held.pin()) {
            Some(pin) if pin.attached_to != AttachedTo::Session => {
                armed_at.min(pin.ends.before(self.lease.ttl()))
            }
            _ => armed_at,
        }
    }

    /// Ends the pins of grants that were released, but whose release was not confirmed. Each revocation is sent a second
    /// time if the first one may succeed later: a pin lives for up to a week, and nobody else revokes its lease.
    pub(crate) async fn revoke_released_pins(&self) {
        let released =
            self.claims.select(|entry| entry.held.is_released().then(|| entry.held.pin_lease()).flatten());
        let revocations = stream::iter(released)
            .map(|lease| async move {
                if lease.revoke(&self.server).await.is_err_and(|fault| fault.is_transient()) {
                    retry_pauses().wait().await;
                    // If this fails too, it expires.
                    let _ = lease.revoke(&self.server).await;
                }
            })
            .buffer_unordered(REQUESTS_AT_A_TIME)
            .for_each(async |()| ());
        let _ = tokio::time::timeout(PINS_OF_CLOSE_MAX, revocations).await;
    }

    /// Returns whether the revocation of the session's lease could end a pin early.
    pub(crate) fn has_pins_under_its_lease(&self) -> bool {
        let now = self.lease.now();
        self.claims.any(|entry| {
            !entry.held.is_released()
                && entry.held.pin().is_some_and(|pin| pin.attached_to != AttachedTo::Pin && now < pin.until)
        })
    }
}

#[async_trait]
impl Pins for EtcdSession {
    async fn pin(&self, grant: &Grant, at_least: Duration) -> Result<bool> {
        self.pin_grant(grant, at_least).await.map_err(|fault| fault.into_error("pin").with_lock(grant.name()))
    }

    async fn leave(&self, grant: &Grant) -> Result<()> {
        self.leave_grant(grant).await.map_err(|fault| fault.into_error("leave").with_lock(grant.name()))
    }
}

#[cfg(test)]
mod tests;
