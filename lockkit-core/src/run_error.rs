//! The error of work under a lock.

use std::{error::Error as StdError, fmt};

use crate::Error;

/// The error of [`LockGuard::run`](crate::LockGuard::run) and [`Lock::run`](crate::Lock::run).
///
/// `?` does not convert it to [`Error`], because that would discard the outcome of finished work. To discard it
/// explicitly, call [`into_error`](Self::into_error).
#[non_exhaustive]
pub enum RunError<T> {
    /// The work finished, but the lock was lost before: the last effects of the work may have come after the first
    /// ones of the next holder.
    Finished {
        /// What the work returned.
        outcome: T,
        /// Why the lock was lost.
        lost: Error,
    },
    /// The work did not finish: it was dropped at an await when the lock was lost, or it was not started because the
    /// lock was not acquired.
    Stopped(Error),
}

impl<T> RunError<T> {
    /// Returns why the lock was lost, or not acquired.
    pub fn error(&self) -> &Error {
        match self {
            Self::Finished { lost, .. } => lost,
            Self::Stopped(error) => error,
        }
    }

    /// Returns the error alone, and drops the outcome.
    pub fn into_error(self) -> Error {
        match self {
            Self::Finished { lost, .. } => lost,
            Self::Stopped(error) => error,
        }
    }
}

/// Prints one line like [`Error`]; `source` returns the cause, and `{:#}` adds it.
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

/// Leaves out the outcome, which may be a secret.
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
