//! Makes a server as if it were new, for the next test that uses it.

use std::time::Duration;

use anyhow::{Context, Result};

use super::Etcd;
use crate::wait::poll;

/// How long clients whose test has just ended may stay connected.
const LEAVE_MAX: Duration = Duration::from_secs(5);

/// Pause between two looks whether they are gone.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

impl Etcd {
    /// Clears alarms, ends all leases, and deletes all keys once no client has a stream. Revisions and counters go on, and what was
    /// compacted stays compacted.
    ///
    /// # Errors
    ///
    /// When the server does not answer, or a client stays connected.
    pub fn clear(&self) -> Result<()> {
        self.gateway.clear_alarms()?;
        let empty = || match self.is_unused() {
            Ok(false) => None,
            settled => Some(settled),
        };
        poll(LEAVE_MAX, LOOK_PAUSE, empty).context("clients of etcd stay connected")??;
        self.gateway.delete_all()
    }

    /// Ends all leases. Returns whether there was none, and no stream.
    fn is_unused(&self) -> Result<bool> {
        Ok(self.gateway.revoke_all()? == 0 && self.metrics()?.streams() == 0)
    }
}
