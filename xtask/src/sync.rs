//! Mutexes that survive a panic of another thread, which fails on its own.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks the mutex, also after a panic of a thread that held it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the value out of the mutex, also after a panic of a thread that held it.
pub(crate) fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}
