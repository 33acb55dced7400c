//! Whether a client's session is alive.

use tokio::sync::watch;

use crate::BootInstant;

/// Whether a client's session is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// The last beat was answered in time.
    Connected,
    /// No beat was answered for half a ttl; without an answer everything held ends at this moment.
    Suspect {
        /// The deadline, on the client's [`Clock`](crate::Clock).
        until: BootInstant,
    },
    /// The session is over, everything held in it is lost; a new one is being opened.
    Lost,
    /// The client was closed.
    Closed,
}

/// Follows the [`Status`] of a client. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StatusWatch {
    statuses: watch::Receiver<Status>,
    returned_closed: bool,
}

impl StatusWatch {
    pub(crate) fn new(statuses: watch::Receiver<Status>) -> Self {
        Self { statuses, returned_closed: false }
    }

    /// The status now.
    pub fn current(&self) -> Status {
        *self.statuses.borrow()
    }

    /// Waits for a change that no earlier call has returned, and returns the status then. [`Status::Closed`] is
    /// returned once, also when the client was closed before the first call; after it the call never resolves, so that
    /// a loop around it does not spin.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. Of several changes in between only the last one is returned.
    pub async fn changed(&mut self) -> Status {
        if self.returned_closed {
            return std::future::pending().await;
        }
        if self.current() != Status::Closed {
            // Fails only when the client is gone, which has set `Closed` before.
            let _ = self.statuses.changed().await;
        }
        let status = *self.statuses.borrow_and_update();
        self.returned_closed = status == Status::Closed;
        status
    }
}
