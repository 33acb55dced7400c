//! Work under locks: how [`LockGuard::run`](crate::LockGuard::run) and [`SetGuard::run`](crate::SetGuard::run) stop it.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use crate::{Error, Result, RunError};

/// Runs `work` until it returns or `check` reports a loss; `lost` wakes the task at a loss.
///
/// `check` decides, because it also sees a loss that has not woken any task yet: the clock may have passed a deadline
/// while `work` was being polled.
pub(crate) async fn while_held<F: Future>(
    work: F,
    lost: impl Future<Output = Error>,
    check: impl Fn() -> Result<()>,
) -> Result<F::Output, RunError<F::Output>> {
    let mut work = pin!(work);
    let mut lost = pin!(lost);
    poll_fn(|context| {
        // Registers this task to be woken by a loss. Once it is ready, `check` fails, so it is not polled again.
        let _ = lost.as_mut().poll(context);
        check().map_err(RunError::Stopped)?;
        let Poll::Ready(outcome) = work.as_mut().poll(context) else { return Poll::Pending };
        Poll::Ready(finished(outcome, check()))
    })
    .await
}

/// Returns the outcome of work that has finished, by a check of its locks after the work.
pub(crate) fn finished<T>(outcome: T, check: Result<()>) -> Result<T, RunError<T>> {
    match check {
        Ok(()) => Ok(outcome),
        Err(lost) => Err(RunError::Finished { outcome, lost }),
    }
}
