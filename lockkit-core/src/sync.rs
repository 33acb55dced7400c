//! The mutex of everything that is shared without the keeper's tasks.
//!
//! A module of its own so that `tests/shuttle.rs` can compile the same sources against shuttle's mutex and search
//! their interleavings.

pub(crate) use std::sync::Mutex;
use std::sync::{MutexGuard, PoisonError};

/// Locks a mutex. Poison is ignored: no critical section of this crate leaves its data half-changed, and a panic of
/// one caller must not take the others' locks down.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
