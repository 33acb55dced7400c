//! Expiry checks: which of a client's waiters re-checks when the lock expires.
//!
//! Redis runs nothing when a key expires, so waiting clients must ask. One waiter per client and lock is enough: the
//! others would ask at the same moment and get the same answer.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use lockkit_core::support::lock;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

/// The expiry checks of a client, by lock.
#[derive(Debug, Default)]
pub(crate) struct ExpiryChecks(Mutex<HashMap<String, LockWaiters>>);

/// What the waiters of a client for one lock share.
#[derive(Debug)]
struct LockWaiters {
    waiters: usize,
    /// One permit: its owner re-checks.
    turn: Arc<Semaphore>,
}

impl ExpiryChecks {
    /// Returns the share of a claim to this lock. It costs nothing until the claim waits.
    pub(crate) fn join<'a>(&'a self, lock: &'a str) -> ExpiryCheck<'a> {
        ExpiryCheck { expiry_checks: self, lock, turn: None, permit: None }
    }

    /// Adds a waiter for this lock. Returns what the waiters take turns with.
    fn enter(&self, lock: &str) -> Arc<Semaphore> {
        let mut locks = self.locks();
        let shared = locks
            .entry(lock.to_owned())
            .or_insert_with(|| LockWaiters { waiters: 0, turn: Arc::new(Semaphore::new(1)) });
        shared.waiters += 1;
        Arc::clone(&shared.turn)
    }

    fn leave(&self, lock: &str) {
        let mut locks = self.locks();
        if let Some(shared) = locks.get_mut(lock) {
            shared.waiters -= 1;
            if shared.waiters == 0 {
                locks.remove(lock);
            }
        }
    }

    fn locks(&self) -> MutexGuard<'_, HashMap<String, LockWaiters>> {
        lock(&self.0)
    }
}

/// One waiter's share in the expiry check of a lock.
#[derive(Debug)]
pub(crate) struct ExpiryCheck<'a> {
    expiry_checks: &'a ExpiryChecks,
    lock: &'a str,
    /// Set once it waits.
    turn: Option<Arc<Semaphore>>,
    /// Set while this waiter is the one that re-checks.
    permit: Option<OwnedSemaphorePermit>,
}

impl ExpiryCheck<'_> {
    /// Waits until this waiter should re-check: it has the turn, and the lock has expired. `None`: the lock has no ttl,
    /// so this never returns.
    ///
    /// Cancel safe: a turn, once taken, is kept.
    pub(crate) async fn due(&mut self, lock_ends: Option<Instant>) {
        if self.permit.is_none() {
            let turn = self.turn.get_or_insert_with(|| self.expiry_checks.enter(self.lock));
            // The semaphore is never closed.
            self.permit = Arc::clone(turn).acquire_owned().await.ok();
        }
        match lock_ends {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for ExpiryCheck<'_> {
    fn drop(&mut self) {
        // Before the mutex is taken: this wakes the next waiter.
        self.permit = None;
        if self.turn.is_some() {
            self.expiry_checks.leave(self.lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_waiter_of_a_lock_checks_and_the_next_when_it_leaves() {
        let expiry_checks = ExpiryChecks::default();
        let (mut first, mut second) = (expiry_checks.join("x"), expiry_checks.join("x"));
        let mut other = expiry_checks.join("y");
        let ends = Some(Instant::now() + Duration::from_secs(1));
        first.due(ends).await;
        other.due(ends).await;
        let still = tokio::time::timeout(Duration::from_secs(60), second.due(ends)).await;
        assert!(still.is_err(), "two check at once");
        drop(first);
        second.due(ends).await;
    }

    #[tokio::test(start_paused = true)]
    async fn lock_without_a_ttl_is_not_checked() {
        let expiry_checks = ExpiryChecks::default();
        let mut expiry_check = expiry_checks.join("x");
        assert!(tokio::time::timeout(Duration::from_secs(3600), expiry_check.due(None)).await.is_err());
    }

    /// As a try does. A waiter that comes later would else not find them, and check at the same time.
    #[tokio::test(start_paused = true)]
    async fn claim_that_has_not_waited_leaves_the_waiters_of_its_lock_as_they_are() {
        let expiry_checks = ExpiryChecks::default();
        let (mut waiting, mut later) = (expiry_checks.join("x"), expiry_checks.join("x"));
        let ends = Some(Instant::now());
        waiting.due(ends).await;
        drop(expiry_checks.join("x"));
        let turn = tokio::time::timeout(Duration::from_secs(60), later.due(ends)).await;
        assert!(turn.is_err(), "two check at once");
    }

    /// So a wait costs the same however many locks were waited for before, and a claim that does not wait nothing.
    #[tokio::test(start_paused = true)]
    async fn last_waiter_of_a_lock_leaves_nothing() {
        let expiry_checks = ExpiryChecks::default();
        let ends = Some(Instant::now());
        let mut waiting = expiry_checks.join("waiting");
        waiting.due(ends).await;
        for round in 0..3 {
            let (mut first, mut second) = (expiry_checks.join("x"), expiry_checks.join("x"));
            assert_eq!(expiry_checks.locks().len(), 1, "round {round}: nobody has waited yet");
            first.due(ends).await;
            let turn = tokio::time::timeout(Duration::ZERO, second.due(ends)).await;
            assert!(turn.is_err(), "round {round}: two check at once");
            assert_eq!(expiry_checks.locks().len(), 2, "round {round}");
            drop(first);
            assert_eq!(expiry_checks.locks().len(), 2, "round {round}: one still waits");
            drop(second);
            assert_eq!(expiry_checks.locks().len(), 1, "round {round}");
        }
        drop(waiting);
        assert_eq!(expiry_checks.locks().len(), 0);
    }
}
