//! Whether a session still lives.

use std::sync::atomic::{AtomicI64, Ordering};

use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::{error::Fault, txn::Revision};

/// Whether a session still lives; shared by everything that works for it. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Life {
    over: CancellationToken,
    closed: CancellationToken,
}

impl Life {
    /// The server said that the session is over, or it must be given up.
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

    /// Drops the work when the session is over: what it may have left at the server ends with the lease.
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

/// The mod revision of the client's epoch key, as far as answers have shown it.
#[derive(Debug, Default)]
pub(crate) struct Epoch(AtomicI64);

impl Epoch {
    pub(crate) fn current(&self) -> Revision {
        self.0.load(Ordering::Acquire)
    }

    /// Answers arrive in any order; the highest is the latest.
    pub(crate) fn moved_to(&self, revision: Revision) {
        self.0.fetch_max(revision, Ordering::AcqRel);
    }
}
