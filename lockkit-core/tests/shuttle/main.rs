//! The state that callers and guards share, under random thread interleavings by shuttle: the re-entry table, the
//! attempt with its callers, and the hold with its guards.
//!
//! The sources are compiled a second time here, against shuttle's mutex.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the tests use only the shared state"
)]

#[path = "../../src/keeper/attempt.rs"]
mod attempt;
#[path = "../../src/keeper/caught.rs"]
mod caught;
#[path = "../../src/keeper/hold.rs"]
mod hold;
#[path = "../../src/keeper/loss.rs"]
mod loss;
#[path = "../../src/keeper/reentry.rs"]
mod reentry;
#[path = "../../src/keeper/share.rs"]
mod share;
#[path = "../../src/keeper/timer.rs"]
mod timer;
#[path = "../../src/keeper/unsent.rs"]
mod unsent;

mod sync {
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }
}

/// What follows the end of a hold: here it is counted.
mod ending {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use super::hold::Hold;

    #[derive(Clone, Default)]
    pub(crate) struct Ending(Arc<AtomicU32>);

    impl Ending {
        pub(crate) fn start(self, hold: Arc<Hold>) {
            assert!(hold.end().is_some(), "started before the end");
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        pub(crate) fn started(&self) -> u32 {
            self.0.load(Ordering::SeqCst)
        }
    }
}

mod attempts;
mod fixture;
mod holds;

// The sources of the keeper name these by `crate`.
use lockkit_core::{BootInstant, Clock, Error, ErrorKind, LockName, Owner, Result, backend, lease, limits};
