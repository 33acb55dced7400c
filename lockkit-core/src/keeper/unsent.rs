//! Requests are sent in the order of the calls that cause them.
//!
//! A dropped guard and a caller that leaves cause requests which a task sends a little later. A call that follows, and
//! that sends its request within its first poll, would overtake them: a try after `drop(guard)` would find the lock
//! busy. So nothing is polled by its caller while such a request is not sent; it is started behind it
//! ([`in_order`](super::in_order)).
//!
//! The request of a dropped guard is sent by a task of that order. A withdrawal is sent by its claim task, which runs
//! already: it is counted here, and lets that order wait for a turn of the runtime. Two workers may still send a withdrawal
//! and a later release at the same time. Then the release may hand the lock over to the claim that is being withdrawn,
//! which gives it back.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Counts the withdrawals of one client, from the last caller that left to the end of the attempt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unsent(Arc<AtomicUsize>);

impl Unsent {
    /// Counts a withdrawal until the result is dropped.
    pub(crate) fn begin(&self) -> UnsentStep {
        self.0.fetch_add(1, Ordering::AcqRel);
        UnsentStep(Arc::clone(&self.0))
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    #[cfg(feature = "testing")]
    pub(super) fn len(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// A withdrawal that is not confirmed yet.
#[derive(Debug)]
pub(crate) struct UnsentStep(Arc<AtomicUsize>);

impl Drop for UnsentStep {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
