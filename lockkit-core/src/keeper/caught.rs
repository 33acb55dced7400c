//! Panics of code that is not the keeper's end its own call, and no task of the keeper. Caught are those of:
//!
//! * A call of the backend, where a task of the keeper continues after it ([`caught`]). Opening, heartbeat and close have
//!   tasks of their own.
//! * A metrics recorder, at each value.
//! * A log subscriber, at each event, and at each new span of a hold, a release or a heartbeat.
//! * A waker of those who wait for the end of a hold.
//!
//! Not caught are those of a subscriber that enters, leaves or closes a span, of other wakers, and of a clock of the user.
//! Such a panic ends the claim, the release or the session task in which it occurs. An entry that it leaves without a hold
//! or a release ends with its session ([`cleanup`](super::cleanup)), and the end of the session task closes the client
//! ([`closing`](super::closing)).

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    task::Poll,
};

use crate::{Error, ErrorKind, Result};

/// Returns an error if the backend panics. A panic of the task itself would leave its entry to a session that stays alive.
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

/// Runs a call of code that is not the keeper's, and drops its panic; then it returns `None`.
pub(crate) fn contained<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

pub(super) fn panicked(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unexpected, operation).with_message("the backend panicked")
}
