//! Who may re-enter what: (name, owner) -> the attempt whose callers wait, or the hold.
//!
//! A hold that is being released or was lost is not entered ([`Hold::enter`] says so under the hold's own mutex); the
//! next acquire replaces it. The table's mutex is taken before an attempt's, and an attempt's before a hold's, never
//! the other way; no task is woken while one of them is held.
//!
//! Tries are not in the table: each asks the store by itself. Whichever claim of an owner is granted, a try's or the
//! waiting attempt's, all callers of the owner share it: one that went on waiting would wait behind its own owner.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use super::{
    attempt::{Attempt, Settled, Ticket},
    hold::{Entered, Hold},
};
use crate::{
    LockName, Owner, Result,
    sync::{Mutex, lock},
};

/// A lock name and the owner who may re-enter it.
pub(crate) type Key = (LockName, Owner);

/// The re-entry table of a client.
#[derive(Debug, Default)]
pub(crate) struct Reentry(Mutex<HashMap<Key, Place>>);

#[derive(Debug)]
enum Place {
    Waiting(Arc<Attempt>),
    Held(Arc<Hold>),
}

/// What an acquire that waits finds.
#[derive(Debug)]
pub(crate) enum Met {
    /// The owner holds the lock: one more share of the hold.
    Held(Entered),
    /// An attempt of the owner waits already, and this caller waits with it.
    Joined(Ticket),
    /// Nothing: the caller is the first of this new attempt, which must now be made.
    New(Arc<Attempt>, Ticket),
}

impl Reentry {
    /// One more share of the hold that the owner has, if it has one.
    pub(crate) fn enter(&self, key: &Key) -> Result<Option<Entered>> {
        let held = match lock(&self.0).get(key) {
            Some(Place::Held(hold)) => Arc::clone(hold),
            _ => return Ok(None),
        };
        // Without the table's mutex: a deadline that is seen to pass here wakes those who wait for the loss.
        held.enter()
    }

    /// The owner's hold, its waiting attempt, or a new one.
    pub(crate) fn wait(&self, key: &Key) -> Result<Met> {
        loop {
            let held = match self.join(key) {
                Ok(met) => return Ok(met),
                Err(held) => held,
            };
            if let Some(entered) = held.enter()? {
                return Ok(Met::Held(entered));
            }
            self.ended(key, &held);
        }
    }

    /// The owner's waiting attempt, or a new one; the hold when there is one.
    fn join(&self, key: &Key) -> std::result::Result<Met, Arc<Hold>> {
        let mut table = lock(&self.0);
        match table.get(key) {
            Some(Place::Held(hold)) => return Err(Arc::clone(hold)),
            Some(Place::Waiting(attempt)) => {
                if let Some(ticket) = attempt.join() {
                    return Ok(Met::Joined(ticket));
                }
            }
            None => {}
        }
        let (attempt, ticket) = Attempt::begin(key.0.clone());
        table.insert(key.clone(), Place::Waiting(Arc::clone(&attempt)));
        Ok(Met::New(attempt, ticket))
    }

    /// An attempt of the owner was granted: its callers share the hold with those of the attempt that waits, and who
    /// asks from now on enters it.
    pub(crate) fn granted(&self, key: &Key, attempt: &Arc<Attempt>, hold: &Arc<Hold>) -> Settled {
        let mut table = lock(&self.0);
        let mut attempts = vec![Arc::clone(attempt)];
        match table.get(key) {
            Some(Place::Waiting(other)) if !Arc::ptr_eq(other, attempt) => attempts.push(Arc::clone(other)),
            _ => {}
        }
        let settled = Attempt::grant(attempts, hold);
        if settled.has_callers() {
            table.insert(key.clone(), Place::Held(Arc::clone(hold)));
        }
        settled
    }

    /// The attempt ended without a grant.
    pub(crate) fn failed(&self, key: &Key, attempt: &Arc<Attempt>) {
        self.remove_where(key, |place| matches!(place, Place::Waiting(other) if Arc::ptr_eq(other, attempt)));
    }

    /// The hold has ended.
    pub(crate) fn ended(&self, key: &Key, hold: &Arc<Hold>) {
        self.remove_where(key, |place| matches!(place, Place::Held(held) if Arc::ptr_eq(held, hold)));
    }

    fn remove_where(&self, key: &Key, which: impl Fn(&Place) -> bool) {
        // What is removed is dropped after the mutex was released.
        let _removed = match lock(&self.0).entry(key.clone()) {
            Entry::Occupied(place) if which(place.get()) => Some(place.remove()),
            _ => None,
        };
    }
}
