//! Whether a session still lives.

use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::error::Fault;

/// Whether a session still lives; shared by everything that works for it. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Life {
    over: CancellationToken,
    closed: CancellationToken,
}

impl Life {
    /// The server said that the session is over, or it must be given up. It is told, not ended at the server: that is for
    /// who tells the holders first.
    pub(crate) fn lose(&self) {
        self.over.cancel();
    }

    /// The client closes the session.
    pub(crate) fn close(&self) {
        self.closed.cancel();
        self.over.cancel();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Resolves when the session is over for whichever reason.
    pub(crate) fn over(&self) -> WaitForCancellationFuture<'_> {
        self.over.cancelled()
    }

    /// Resolves when the client closes the session.
    pub(crate) fn closed(&self) -> WaitForCancellationFuture<'_> {
        self.closed.cancelled()
    }

    /// Drops the work when the session is over: what it may have left at the server ends with the session.
    pub(crate) async fn unless_over<T>(
        &self,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        tokio::select! {
            biased;
            () = self.over() => Err(Fault::session_over()),
            answer = work => answer,
        }
    }
}
