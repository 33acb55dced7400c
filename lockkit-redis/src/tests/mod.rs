//! What unit tests of several modules share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use lockkit_core::{BootInstant, LockName, TimeSource};

use crate::keys::{Layout, LockKeys, Names};

pub(crate) mod scripted;

/// The keys of a lock.
pub(crate) fn keys() -> LockKeys {
    Layout::new("", Names::Encoded, false).keys(&LockName::new("x").unwrap()).unwrap()
}

/// A clock that a test sets, in seconds since its start.
#[derive(Clone, Default)]
pub(crate) struct SetClock(pub(crate) Arc<AtomicU64>);

impl TimeSource for SetClock {
    fn now(&self) -> BootInstant {
        BootInstant::from_start(Duration::from_secs(self.0.load(SeqCst)))
    }
}
