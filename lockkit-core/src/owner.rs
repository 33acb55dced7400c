//! Who re-enters a lock.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

/// An explicit identity for re-entry: whoever acquires with the same owner shares the hold.
///
/// Never a thread or a task: under async both change hands (Redisson's issues 2224, 3580 and 6878 are what happens
/// then). Make one owner per unit of work that may take the same lock twice, and pass it along. Cheap to clone; a
/// clone is the same owner.
///
/// ```
/// use lockkit_core::Owner;
///
/// let order = Owner::new();
/// assert_eq!(order, order.clone());
/// assert_ne!(order, Owner::new());
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Owner(u64);

impl Owner {
    /// A new owner, different from every other of this process.
    #[allow(clippy::new_without_default, reason = "two default values that differ would surprise")]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.0)
    }
}
