//! The owner of re-entrant holds.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

/// An explicit identity for re-entry: calls with the same owner share the hold.
///
/// An owner is never derived from a thread or a task, because async code moves between both (Redisson's issues 2224,
/// 3580 and 6878 show the consequences). Create one owner per unit of work that may acquire the same lock twice, and
/// pass it along. Cheap to clone; a clone is the same owner.
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
    /// Creates an owner that differs from every other one of this process.
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
