//! What unit tests of several modules share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use lockkit_core::{BootInstant, Clock, LockName};

use crate::keys::{Layout, LockKeys, Names};

pub(crate) mod scripted;

/// The keys of a lock.
pub(crate) fn keys() -> LockKeys {
    Layout::new("", Names::Encoded, false).keys(&LockName::new("x").unwrap()).unwrap()
}

/// Returns a clock that a test sets, and its reading in seconds since its start.
pub(crate) fn set_clock() -> (Clock, Arc<AtomicU64>) {
    let seconds = Arc::new(AtomicU64::new(0));
    let reading = Arc::clone(&seconds);
    (Clock::new(move || BootInstant::from_start(Duration::from_secs(reading.load(SeqCst)))), seconds)
}
