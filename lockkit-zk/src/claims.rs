//! The holds of a backend's sessions: which node each one is.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use lockkit_core::{FencingToken, LockName, backend::ClaimId};

use crate::call::Created;

/// All holds of a backend's sessions.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<HashMap<ClaimId, Held>>);

/// A claim that was granted.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) session: i64,
    pub(crate) name: LockName,
    pub(crate) own: Created,
}

impl Claims {
    pub(crate) fn enter(&self, id: ClaimId, held: Held) {
        self.lock().insert(id, held);
    }

    pub(crate) fn get(&self, id: ClaimId) -> Option<Held> {
        self.lock().get(&id).cloned()
    }

    pub(crate) fn forget(&self, id: ClaimId) {
        self.lock().remove(&id);
    }

    pub(crate) fn forget_session(&self, session: i64) {
        self.lock().retain(|_, held| held.session != session);
    }

    /// The node behind a guard.
    pub(crate) fn path(&self, name: &LockName, token: FencingToken) -> Option<String> {
        let held = self.lock();
        let found = held.values().find(|held| held.own.token() == token && held.name == *name);
        found.map(|held| held.own.path.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
