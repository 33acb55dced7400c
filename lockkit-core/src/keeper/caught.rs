//! A panic of a backend, a waker, a log subscriber or a metrics recorder ends its own call, and no task of the keeper.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    task::Poll,
};

use crate::{Error, ErrorKind, Result};

/// Returns an error if the backend panics. A panic of the task itself would leave its entry to a session that lives on.
pub(super) async fn caught<T>(operation: &'static str, work: impl Future<Output = T>) -> Result<T> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        match polled {
            Ok(polled) => polled.map(Ok),
            Err(_) => Poll::Ready(Err(panicked(operation))),
        }
    })
    .await
}

/// Runs a call of code that is not the keeper's, and drops its panic.
pub(super) fn contained(call: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(call));
}

pub(super) fn panicked(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unexpected, operation).with_message("the backend panicked")
}
