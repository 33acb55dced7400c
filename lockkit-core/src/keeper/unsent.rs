//! Requests are sent in the order of the calls that cause them.
//!
//! A dropped guard and a caller that leaves cause requests which a task sends a little later. A call that follows, and
//! that sends its request within its first poll, would overtake them: a try after `drop(guard)` would find the lock
//! busy. So nothing is polled by its caller while such a request is not sent; it is spawned behind it.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Counts what one client has begun and not sent yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unsent(Arc<AtomicUsize>);

impl Unsent {
    /// Notes a step that is not sent until the result is dropped.
    pub(crate) fn begin(&self) -> UnsentStep {
        self.0.fetch_add(1, Ordering::AcqRel);
        UnsentStep(Arc::clone(&self.0))
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

/// A step that is not sent yet.
#[derive(Debug)]
pub(crate) struct UnsentStep(Arc<AtomicUsize>);

impl UnsentStep {
    /// Runs a task whose first poll sends the request.
    pub(crate) async fn until_polled(self, task: impl Future<Output = ()>) {
        let (mut task, mut step) = (pin!(task), Some(self));
        poll_fn(|context| {
            let polled = task.as_mut().poll(context);
            step = None;
            polled
        })
        .await;
    }
}

impl Drop for UnsentStep {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
