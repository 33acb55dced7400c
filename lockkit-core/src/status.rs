//! Whether a client's session is alive.

use tokio::sync::watch;

use crate::BootInstant;

/// Whether a client's session is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
pub struct StatusWatch(watch::Receiver<Status>);

impl StatusWatch {
    pub(crate) fn new(receiver: watch::Receiver<Status>) -> Self {
        Self(receiver)
    }

    /// The status now.
    pub fn current(&self) -> Status {
        *self.0.borrow()
    }

    /// Waits for a change that no earlier call has seen, and answers the status then; `Closed` again and again once
    /// the client is closed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe. Of several changes in between only the last one is seen.
    pub async fn changed(&mut self) -> Status {
        if *self.0.borrow() == Status::Closed {
            return Status::Closed;
        }
        match self.0.changed().await {
            Ok(()) => *self.0.borrow_and_update(),
            Err(_) => Status::Closed,
        }
    }
}
