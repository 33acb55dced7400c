//! Who may re-enter what: (name, owner) -> the attempt that is under way, or the hold.
//!
//! A hold that is being released or was lost is no longer entered ([`Hold::enter`] says so under the hold's own
//! mutex); the next acquire replaces it by a new attempt. The table's mutex is taken before a hold's or an attempt's,
//! never after it.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use super::{
    attempt::{Answer, Answers, Attempt, Patience, Ticket},
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
    Pending(Arc<Attempt>),
    Held(Arc<Hold>),
}

/// What an acquire of an owner meets.
#[derive(Debug)]
pub(crate) enum Met {
    /// The owner holds the lock: one more share of the hold.
    Held(Entered),
    /// An attempt of the same owner is under way, and this caller waits with it.
    Joined(Ticket),
    /// An attempt of the same owner is under way, and this caller does not wait.
    Busy,
    /// Nothing: the caller is the first of this new attempt, which must now be made.
    New(Arc<Attempt>, Ticket),
}

impl Reentry {
    pub(crate) fn meet(&self, key: &Key, patience: Patience) -> Result<Met> {
        let mut table = lock(&self.0);
        match table.get(key) {
            Some(Place::Held(hold)) => {
                if let Some(entered) = hold.enter()? {
                    return Ok(Met::Held(entered));
                }
            }
            // Not one that everybody has left: its end says nothing about the lock.
            Some(Place::Pending(attempt)) if matches!(patience, Patience::Try(_)) && attempt.is_wanted() => {
                return Ok(Met::Busy);
            }
            Some(Place::Pending(attempt)) => {
                if let Some(ticket) = attempt.join(patience) {
                    return Ok(Met::Joined(ticket));
                }
            }
            None => {}
        }
        let (attempt, ticket) = Attempt::begin(key.0.clone(), patience);
        table.insert(key.clone(), Place::Pending(Arc::clone(&attempt)));
        Ok(Met::New(attempt, ticket))
    }

    /// The attempt was granted: from now on the hold is entered instead of the attempt being joined. It is settled before
    /// anybody can enter: who releases what nobody else holds must not meet a share that is only on its way.
    pub(crate) fn granted(
        &self,
        key: &Key,
        attempt: &Arc<Attempt>,
        hold: &Arc<Hold>,
        answer: impl Fn() -> Answer,
    ) -> Answers {
        let mut table = lock(&self.0);
        if let Entry::Occupied(mut place) = table.entry(key.clone())
            && place.get().is_attempt(attempt)
        {
            place.insert(Place::Held(Arc::clone(hold)));
        }
        attempt.settle(answer)
    }

    /// The attempt ended without a grant.
    pub(crate) fn failed(&self, key: &Key, attempt: &Arc<Attempt>) {
        self.remove_where(key, |place| place.is_attempt(attempt));
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

impl Place {
    fn is_attempt(&self, attempt: &Arc<Attempt>) -> bool {
        matches!(self, Self::Pending(pending) if Arc::ptr_eq(pending, attempt))
    }
}
