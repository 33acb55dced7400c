//! Mutexes that survive a panic of another thread.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks the mutex. A panic of another thread that held it fails that thread's test, not this one.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
