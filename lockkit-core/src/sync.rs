//! The mutex of this crate.
//!
//! `tests/shuttle/` replaces this module: it compiles some sources of the keeper against shuttle's mutex and searches
//! their interleavings.

use std::sync::PoisonError;
pub(crate) use std::sync::{Mutex, MutexGuard};

/// Locks a mutex and ignores poison: a panic of one caller must not break the locks of the others. For critical sections
/// that never leave their data half-changed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
