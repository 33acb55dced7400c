//! Why work under a lock has no outcome, or one that came too late.

use std::{error::Error as StdError, fmt};

use crate::Error;

/// Why [`LockGuard::run`](crate::LockGuard::run) or [`Lock::run`](crate::Lock::run) did not succeed.
///
/// Not convertible to [`Error`] by `?`: that would throw the outcome of finished work away. Where it does not matter,
/// say so with [`into_error`](Self::into_error).
#[non_exhaustive]
pub enum RunError<T> {
    /// The work has finished, but the lock had been lost by then: its last effects may have come after the first ones of
    /// the next holder.
    Finished {
        /// What the work returned.
        outcome: T,
        /// Why the lock was lost.
        lost: Error,
    },
    /// The work has not finished: it was dropped at an await when the lock was lost, or it was not begun because the lock
    /// was not acquired.
    Stopped(Error),
}

impl<T> RunError<T> {
    /// Why the lock was lost, or not acquired.
    pub fn error(&self) -> &Error {
        match self {
            Self::Finished { lost, .. } => lost,
            Self::Stopped(error) => error,
        }
    }

    /// The error alone; an outcome is dropped.
    pub fn into_error(self) -> Error {
        match self {
            Self::Finished { lost, .. } => lost,
            Self::Stopped(error) => error,
        }
    }
}

/// As that of [`Error`]: the cause is left to `source`, and added by `{:#}`.
impl<T> fmt::Display for RunError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Finished { .. } => "the work finished, after the lock had been lost",
            Self::Stopped(_) => "the work did not finish",
        })?;
        if f.alternate() {
            write!(f, ": {:#}", self.error())?;
        }
        Ok(())
    }
}

/// Without the outcome, which may be a secret.
impl<T> fmt::Debug for RunError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished { lost, .. } => {
                f.debug_struct("Finished").field("lost", lost).finish_non_exhaustive()
            }
            Self::Stopped(error) => f.debug_tuple("Stopped").field(error).finish(),
        }
    }
}

impl<T> StdError for RunError<T> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(self.error())
    }
}
