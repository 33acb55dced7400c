//! What backends share. It is public for authors of backends; the crate `lockkit` does not export it.

use std::{fmt::Debug, time::Duration};

use tokio::time::error::Elapsed;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::backend::{ClaimId, retry_pauses};
pub use crate::sync::{lock, unpoisoned};

/// Whether a session is open, lost or closed. Cheap to clone; shared by everything that works for the session.
#[derive(Clone, Debug, Default)]
pub struct SessionState {
    over: CancellationToken,
    closed: CancellationToken,
}

/// The session is over: the answer to work that was dropped or not begun because of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "backends make it, and it says everything")]
pub struct SessionOver;

impl SessionState {
    /// Marks the session lost locally: the server reported its end, or the client abandons it. The keeper closes the
    /// session at the server later, after it has marked the holds lost.
    pub fn mark_lost(&self) {
        self.over.cancel();
    }

    /// Marks the session closed by the client.
    pub fn mark_closed(&self) {
        self.closed.cancel();
        self.over.cancel();
    }

    /// Returns whether the session is lost or closed.
    pub fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Returns whether the client has closed the session.
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Waits until the session is lost or closed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub fn over(&self) -> impl Future<Output = ()> + Send {
        self.over.cancelled()
    }

    /// Waits until the client closes the session.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub fn closed(&self) -> impl Future<Output = ()> + Send {
        self.closed.cancelled()
    }

    /// Runs `work`, or drops it when the session is over: the effects that it had at the server end with the session.
    ///
    /// # Errors
    ///
    /// Those of `work`, and [`SessionOver`].
    ///
    /// # Cancel safety
    ///
    /// As `work`.
    pub async fn unless_over<T, E: From<SessionOver>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        tokio::select! {
            biased;
            () = self.over() => Err(SessionOver.into()),
            answer = work => answer,
        }
    }

    /// Repeats the withdrawal of a claim while its failures are transient. Ends without an error when the session is
    /// over: what the claim has left ends with it.
    ///
    /// # Errors
    ///
    /// The first failure that is not transient.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: what the claim has left may stay.
    pub async fn repeat_withdrawal<E: Debug, F: Future<Output = Result<(), E>>>(
        &self,
        claim: ClaimId,
        is_transient: impl Fn(&E) -> bool,
        withdraw: impl Fn() -> F,
    ) -> Result<(), E> {
        let mut pauses = retry_pauses();
        while !self.is_over() {
            match withdraw().await {
                Err(fault) if is_transient(&fault) => debug!(?fault, ?claim, "not withdrawn yet"),
                answer => return answer,
            }
            tokio::select! {
                () = pauses.wait() => {}
                () = self.over() => {}
            }
        }
        Ok(())
    }
}

/// Awaits the reply to a request for at most this time. After that the effect of the request is unknown: it may still be
/// executed.
///
/// # Errors
///
/// Those of the request, and [`Elapsed`].
///
/// # Cancel safety
///
/// As the request.
pub async fn bounded<T, E: From<Elapsed>>(
    limit: Duration,
    request: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    tokio::time::timeout(limit, request).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_ends_with_the_session() {
        for (end, is_closed) in
            [(SessionState::mark_lost as fn(&SessionState), false), (SessionState::mark_closed, true)]
        {
            let state = SessionState::default();
            assert_eq!(state.unless_over(async { Ok::<_, SessionOver>(1) }).await, Ok(1));
            end(&state);
            assert!(state.is_over());
            assert_eq!(state.is_closed(), is_closed);
            let never = std::future::pending::<Result<(), SessionOver>>();
            assert_eq!(state.unless_over(never).await, Err(SessionOver));
            // Not even begun.
            assert_eq!(state.unless_over(async { Ok(1) }).await, Err(SessionOver));
        }
    }
}
