//! The mutex of this crate.
//!
//! `tests/shuttle/` replaces this module: it compiles some sources of the keeper against shuttle's mutex and searches
//! their interleavings.

use std::sync::{LockResult, PoisonError};
pub(crate) use std::sync::{Mutex, MutexGuard};

/// Locks a mutex and ignores poison: a panic of one caller must not break the locks of the others. For critical sections
/// that never leave their data half-changed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// Ignores poison, as [`lock`] does, where a condition variable or `Mutex::into_inner` returns the data.
pub fn unpoisoned<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}
