//! Faults of a [`MemoryServer`], and what a test can measure at it.

use std::time::Duration;

use tokio::time::Instant;

use super::{HeldRequest, MemoryServer};
use crate::{LockName, sync::lock};

/// Faults and counters, with the feature `testing`.
impl MemoryServer {
    /// Fault: ends the session of the holder of this lock, as if it expired. Returns whether there was one.
    pub fn expire_holder(&self, name: &LockName) -> bool {
        lock(&self.0).store.expire_holder(name, Instant::now())
    }

    /// Fault: ends the session of the first waiter of this lock. Returns whether there was one.
    pub fn expire_waiter(&self, name: &LockName) -> bool {
        lock(&self.0).store.expire_waiter(name, Instant::now())
    }

    /// Fault: ends every session.
    pub fn expire_all(&self) {
        lock(&self.0).store.expire_all(Instant::now());
    }

    /// Fault: stops notifications of grants and of ended sessions (`true`), or sends them again (`false`).
    pub fn drop_notifications(&self, drop: bool) {
        lock(&self.0).store.mute(drop);
    }

    /// Fault: executes the next `count` requests, but loses their replies.
    pub fn lose_replies(&self, count: usize) {
        lock(&self.0).lose_replies = count;
    }

    /// Fault: holds requests back, as a frozen server does; they are neither executed nor answered. Sessions still
    /// expire.
    pub fn hold_requests(&self) {
        lock(&self.0).held.get_or_insert_with(Vec::new);
    }

    /// Executes the requests that were held back, in the order of sending, and holds back no more.
    pub fn deliver_requests(&self) {
        let mut inner = lock(&self.0);
        for HeldRequest(request) in inner.held.take().unwrap_or_default() {
            request(&mut inner);
        }
    }

    /// Returns the number of requests that are held back.
    pub fn held_requests(&self) -> usize {
        lock(&self.0).held.as_ref().map_or(0, Vec::len)
    }

    /// Fault: deletes the entries of the holder and the waiters of this lock, as an operator could.
    pub fn delete_entries(&self, name: &LockName) {
        lock(&self.0).store.delete_entries(name);
    }

    /// Returns the time until this lock is free if its holder's session is not renewed; `None` if it is free.
    pub fn frees_within(&self, name: &LockName) -> Option<Duration> {
        let (now, mut inner) = (Instant::now(), lock(&self.0));
        inner.store.sweep(now);
        inner.store.expiry_of_holder(name).map(|expires_at| expires_at - now)
    }

    /// Returns whether no lock has a holder or a waiter.
    pub fn is_empty(&self) -> bool {
        let mut inner = lock(&self.0);
        inner.store.sweep(Instant::now());
        inner.store.is_empty()
    }

    /// Returns the number of open sessions.
    pub fn sessions(&self) -> usize {
        let mut inner = lock(&self.0);
        inner.store.sweep(Instant::now());
        inner.store.sessions()
    }

    /// Returns the number of executed requests.
    pub fn requests(&self) -> u64 {
        lock(&self.0).requests
    }

    /// Returns the number of renewals of single claims.
    pub fn renewed_claims(&self) -> u64 {
        lock(&self.0).store.renewed_claims()
    }
}
