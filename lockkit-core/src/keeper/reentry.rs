//! The re-entry table: (name, owner) -> the owner's waiting attempt, or its hold.
//!
//! A hold that is being released or was lost cannot be entered ([`Hold::enter`] checks this under the hold's mutex);
//! the next acquire replaces it. Lock order: the table's mutex, then an attempt's, then a hold's. No task is woken
//! while one of them is locked.
//!
//! Tries are not in the table: each sends its own request. When any claim of an owner is granted, a try's or the
//! waiting attempt's, all callers of the owner share the hold. Otherwise a caller would wait behind its own owner. But a grant
//! whose own callers have left is given back: it may have been asked for with other options. Another try, which
//! the store answers as busy, looks for that hold before it returns.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use super::{
    attempt::{Attempt, SettledAttempts, Ticket},
    hold::Hold,
    share::HoldShare,
    unsent::Unsent,
};
use crate::{
    LockName, Owner, Result,
    sync::{Mutex, lock},
};

/// A lock name and the owner that may re-enter the lock.
pub(crate) type ReentryKey = (LockName, Owner);

/// The re-entry table of a client.
#[derive(Debug, Default)]
pub(crate) struct ReentryTable(Mutex<HashMap<ReentryKey, OwnerState>>);

/// What an owner has at a lock.
#[derive(Debug)]
enum OwnerState {
    Waiting(Arc<Attempt>),
    Held(Arc<Hold>),
}

/// How a waiting acquire starts.
#[derive(Debug)]
pub(crate) enum WaitStart {
    /// The owner holds the lock: the caller gets a share of the hold.
    Held(HoldShare),
    /// The owner has a waiting attempt: the caller joins it.
    Joined(Ticket),
    /// The owner has neither: the caller is the first one of this new attempt and must start its claim task.
    New(Arc<Attempt>, Ticket),
}

impl ReentryTable {
    /// Returns a share of the owner's hold, if it has one.
    pub(crate) fn enter(&self, key: &ReentryKey) -> Result<Option<HoldShare>> {
        let held = match lock(&self.0).get(key) {
            Some(OwnerState::Held(hold)) => Arc::clone(hold),
            _ => return Ok(None),
        };
        // Without the table's mutex: if `enter` finds that the deadline has passed, it wakes the tasks that wait for
        // the loss.
        held.enter()
    }

    /// Enters the owner's hold, joins its waiting attempt, or creates an attempt.
    pub(crate) fn wait(&self, key: &ReentryKey, unsent: &Unsent) -> Result<WaitStart> {
        loop {
            let held = match self.join(key, unsent) {
                Ok(start) => return Ok(start),
                Err(held) => held,
            };
            if let Some(share) = held.enter()? {
                return Ok(WaitStart::Held(share));
            }
            self.ended(key, &held);
        }
    }

    /// Joins the owner's waiting attempt, or creates one; returns the hold as `Err` if there is one.
    fn join(&self, key: &ReentryKey, unsent: &Unsent) -> std::result::Result<WaitStart, Arc<Hold>> {
        let mut table = lock(&self.0);
        match table.get(key) {
            Some(OwnerState::Held(hold)) => return Err(Arc::clone(hold)),
            Some(OwnerState::Waiting(attempt)) => {
                if let Some(ticket) = attempt.join() {
                    return Ok(WaitStart::Joined(ticket));
                }
            }
            None => {}
        }
        let (attempt, ticket) = Attempt::begin(key.0.clone(), unsent);
        table.insert(key.clone(), OwnerState::Waiting(Arc::clone(&attempt)));
        Ok(WaitStart::New(attempt, ticket))
    }

    /// Records the grant of an attempt. Its callers share the hold with those of the owner's waiting attempt, and later
    /// calls enter it.
    pub(crate) fn granted(
        &self,
        key: &ReentryKey,
        attempt: &Arc<Attempt>,
        hold: &Arc<Hold>,
    ) -> SettledAttempts {
        let mut table = lock(&self.0);
        let other = match table.get(key) {
            Some(OwnerState::Waiting(other)) if !Arc::ptr_eq(other, attempt) => Some(other),
            _ => None,
        };
        let settled = Attempt::grant(attempt, other, hold);
        if settled.has_callers() {
            table.insert(key.clone(), OwnerState::Held(Arc::clone(hold)));
        }
        settled
    }

    /// Removes an attempt that ended without a grant.
    pub(crate) fn failed(&self, key: &ReentryKey, attempt: &Arc<Attempt>) {
        self.remove_where(
            key,
            |state| matches!(state, OwnerState::Waiting(other) if Arc::ptr_eq(other, attempt)),
        );
    }

    /// Removes a hold that has ended.
    pub(crate) fn ended(&self, key: &ReentryKey, hold: &Arc<Hold>) {
        self.remove_where(key, |state| matches!(state, OwnerState::Held(held) if Arc::ptr_eq(held, hold)));
    }

    #[cfg(feature = "testing")]
    pub(super) fn len(&self) -> usize {
        lock(&self.0).len()
    }

    fn remove_where(&self, key: &ReentryKey, condition: impl Fn(&OwnerState) -> bool) {
        // The removed entry is dropped after the mutex was released.
        let _removed = match lock(&self.0).entry(key.clone()) {
            Entry::Occupied(entry) if condition(entry.get()) => Some(entry.remove()),
            _ => None,
        };
    }
}
