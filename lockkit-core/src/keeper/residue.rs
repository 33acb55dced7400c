//! What clients leave in their tables, for tests: nothing, once they are closed.
//!
//! A thread that watches its clients keeps their keepers, so that a test reads the tables after the last handle is gone.

use std::{cell::RefCell, sync::Arc};

use super::Keeper;
use crate::limits::WAITERS_PER_CLIENT_MAX;

thread_local! {
    /// The keepers that this thread has started; `None` while it does not watch.
    static STARTED: RefCell<Option<Vec<Arc<Keeper>>>> = const { RefCell::new(None) };
}

/// The clients that this thread starts, until the value is dropped.
#[derive(Debug)]
#[must_use = "the clients of this thread are watched until it is dropped"]
#[non_exhaustive]
pub struct WatchedClients {}

impl WatchedClients {
    /// Watches the clients that this thread starts from now on.
    pub fn begin() -> Self {
        STARTED.set(Some(Vec::new()));
        Self {}
    }

    /// Starts closing all of them.
    pub fn close(&self) {
        started().iter().for_each(|keeper| keeper.begin_close());
    }

    /// Returns what each of them still has, with its number; empty if nothing is left.
    pub fn residue(&self) -> Vec<String> {
        let left = |keeper: &Arc<Keeper>| {
            let left = residue(keeper).into_iter().filter(|(_, number)| *number > 0);
            left.map(|(what, number)| format!("{what}: {number}")).collect::<Vec<_>>()
        };
        started().iter().flat_map(left).collect()
    }
}

impl Drop for WatchedClients {
    fn drop(&mut self) {
        STARTED.take();
    }
}

fn started() -> Vec<Arc<Keeper>> {
    STARTED.with_borrow(|started| started.clone().unwrap_or_default())
}

/// Notes a keeper that was started, if this thread watches.
pub(super) fn note_started(keeper: &Arc<Keeper>) {
    STARTED
        .with_borrow_mut(|started| started.iter_mut().for_each(|started| started.push(Arc::clone(keeper))));
}

/// Returns the numbers that are zero when nothing is under way.
fn residue(keeper: &Arc<Keeper>) -> [(&'static str, usize); 8] {
    let (unsent, in_order, parked) = keeper.runtime.residue();
    [
        ("holds", keeper.holds.len()),
        ("owners in the re-entry table", keeper.reentry.len()),
        ("claims, releases and holds that are counted as tasks", keeper.claim_tasks.len()),
        ("permits of waiters", WAITERS_PER_CLIENT_MAX - keeper.waiter_permits.available_permits()),
        ("withdrawals", unsent),
        ("runners of first polls", in_order),
        ("parked tasks", parked),
        // References of tasks and handles: without that of the watching thread, and that of the caller of this list.
        ("users of the keeper", Arc::strong_count(keeper).saturating_sub(2)),
    ]
}
