//! The status of a client's session.

use std::time::Duration;

use tokio::sync::watch;

use crate::{BootInstant, Clock};

/// The status of a client's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// The last lifetime that the store has confirmed began within the last half ttl. Where holds have no ttl, this is the
    /// status of an open session even while the store is silent.
    Connected,
    /// The last lifetime that the store has confirmed began half a ttl ago. Without an answer, all holds are lost at
    /// `until`.
    Suspect {
        /// The deadline, on the client's [`Clock`](crate::Clock).
        until: BootInstant,
    },
    /// No session is open, and one is being opened: the last one ended and its holds are lost, or a client of
    /// [`build_lazy`](crate::ClientBuilder::build_lazy) has not had one yet.
    Lost,
    /// The client was closed.
    Closed,
}

/// A watch on the [`Status`] of a client. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StatusWatch {
    statuses: watch::Receiver<Status>,
    clock: Clock,
    returned_closed: bool,
}

impl StatusWatch {
    pub(crate) fn new(statuses: watch::Receiver<Status>, clock: Clock) -> Self {
        Self { statuses, clock, returned_closed: false }
    }

    /// Returns the current status.
    pub fn current(&self) -> Status {
        *self.statuses.borrow()
    }

    /// Returns how long the client relies on its locks if the store stays silent: the time until the end of
    /// [`Suspect`](Status::Suspect), and zero after it. `None` in any other status.
    ///
    /// ```
    /// # use lockkit_core::{LockClient, Status, memory::MemoryServer};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkit_core::Result<()> {
    /// # let client = LockClient::builder(MemoryServer::new().backend()).build().await?;
    /// let status = client.status();
    /// match status.remaining() {
    ///     Some(left) => println!("the store is silent; the locks are lost in {left:?}"),
    ///     None => println!("{:?}", status.current()),
    /// }
    /// # client.close().await }
    /// ```
    pub fn remaining(&self) -> Option<Duration> {
        match self.current() {
            Status::Suspect { until } => Some(until.since(self.clock.now())),
            Status::Connected | Status::Lost | Status::Closed => None,
        }
    }

    /// Waits for a change that no earlier call has returned, and returns the new status.
    ///
    /// [`Status::Closed`] is returned once, even if the client was closed before the first call. After that the call
    /// never resolves, so a loop around it does not spin.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. Of several changes between two calls, only the last one is returned.
    pub async fn changed(&mut self) -> Status {
        if self.returned_closed {
            return std::future::pending().await;
        }
        if self.current() != Status::Closed {
            // Fails only if the client is gone, which has set `Closed` before.
            let _ = self.statuses.changed().await;
        }
        let status = *self.statuses.borrow_and_update();
        self.returned_closed = status == Status::Closed;
        status
    }
}
