//! Makes a server as if it were new, for the next test that uses it.

use std::time::Duration;

use anyhow::{Context, Result};

use super::Etcd;
use crate::wait::poll;

/// How long clients whose test has just ended may stay connected.
const LEAVE_MAX: Duration = Duration::from_secs(2);

/// Pause between two looks whether they are gone.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

impl Etcd {
    /// Clears the alarm NOSPACE, and once no request or stream of a client is left, ends all leases and deletes all keys. Revisions
    /// and counters go on, and what was compacted stays compacted.
    ///
    /// # Errors
    ///
    /// When the server does not answer, or a client stays connected.
    pub fn clear(&self) -> Result<()> {
        self.set_no_space(false)?;
        let unused = || self.is_unused().map(|unused| unused.then_some(())).transpose();
        poll(LEAVE_MAX, LOOK_PAUSE, unused).context("clients of etcd stay connected")??;
        self.gateway.delete_all()
    }

    /// Ends all leases. Returns whether there was none, and no request or stream before that: one could grant another.
    ///
    /// The number of watchers may have become wrong for good: etcd 3.4 subtracts some of them twice (etcd #19577).
    fn is_unused(&self) -> Result<bool> {
        let metrics = self.metrics()?;
        Ok(metrics.open_calls(&[]) == 0 && metrics.has_no_watchers() && self.gateway.revoke_all()? == 0)
    }
}
