//! What an uncontended lock costs in memory: allocations per acquire and release, and bytes per hold.
//!
//! A program of its own, because the counting allocator belongs to a whole program. It counts per thread; each runtime
//! here has one thread.
#![allow(clippy::unwrap_used, reason = "helpers of tests are not seen as tests")]

#[path = "it/checked.rs"]
mod checked;
#[path = "it/common.rs"]
mod common;

use allocation_counter::{AllocationInfo, measure};
use checked::Counted;
use lockkit_core::{Lock, LockClient, Owner, memory::MemoryServer};
use tokio::runtime::{Builder, Runtime};

/// The attempt, the control of its claim, two futures each (the keeper's and the session's) of the acquire and of the
/// release, the hold, and the queue at the memory server. The same with the feature `metrics`.
const ALLOCATIONS_PER_PAIR: u64 = 8;

/// With the entry at the memory server, which is in the same process, and the name.
const BYTES_PER_HOLD_MAX: i64 = 1024;

/// Fewer than a task may do before it must let others run.
const PAIRS: u64 = 32;

struct Fixture {
    runtime: Runtime,
    client: LockClient,
}

impl Fixture {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime
            .block_on(async { LockClient::builder(MemoryServer::new().backend()).build().await.unwrap() });
        Self { runtime, client }
    }

    /// Returns what was allocated while `work` ran, without what the runtime allocates to run nothing.
    fn measure(&self, work: impl AsyncFn()) -> AllocationInfo {
        // Tables of the first locks grow before.
        self.runtime.block_on(work());
        let idle = measure(|| self.runtime.block_on(async {}));
        let mut found = measure(|| self.runtime.block_on(work()));
        found.count_total -= idle.count_total;
        found
    }

    fn pairs(&self, lock: &Lock) -> AllocationInfo {
        self.measure(async || {
            for _ in 0..PAIRS {
                lock.acquire().await.unwrap().release().await.unwrap();
            }
        })
    }
}

#[test]
fn uncontended_acquire_and_release_allocate_eight_times() {
    let _counted = Counted::begin();
    let fixture = Fixture::new();
    let lock = fixture.client.lock("orders/42").unwrap();
    for lock in [lock.clone(), lock.reentrant(&Owner::new())] {
        let found = fixture.pairs(&lock);
        assert_eq!(found.count_total, PAIRS * ALLOCATIONS_PER_PAIR);
        assert_eq!((found.count_current, found.bytes_current), (0, 0), "all is given back");
    }
}

#[test]
fn reentry_allocates_nothing() {
    let _counted = Counted::begin();
    let fixture = Fixture::new();
    let lock = fixture.client.lock("orders/42").unwrap().reentrant(&Owner::new());
    let _held = fixture.runtime.block_on(lock.acquire()).unwrap();
    assert_eq!(fixture.pairs(&lock).count_total, 0);
}

#[test]
fn hold_takes_less_than_a_kilobyte() {
    const HOLDS: usize = 1_000;
    let _counted = Counted::begin();
    let fixture = Fixture::new();
    let mut guards = Vec::with_capacity(HOLDS);
    let found = measure(|| {
        fixture.runtime.block_on(async {
            for number in 0..HOLDS {
                guards.push(
                    fixture.client.lock(format!("orders/{number:08}")).unwrap().acquire().await.unwrap(),
                );
            }
        });
    });
    let bytes_per_hold = found.bytes_current / HOLDS as i64;
    assert!(bytes_per_hold < BYTES_PER_HOLD_MAX, "{bytes_per_hold} bytes per hold, {found:?}");
    assert!(guards.iter().all(lockkit_core::LockGuard::is_held));
}
