//! The same for the cases of the suite: failures are returned. Nothing renews these sessions.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, bail, ensure};
use lockkit_core::{
    LockName, Metadata,
    backend::{Acquired, Claim, ClaimControl, Grant, Session},
};

use super::PendingClaim;
use crate::context::{Context, within};

/// Makes a claim for this lock.
pub(crate) fn claim(name: &LockName, wait: bool) -> (Claim, ClaimControl) {
    claim_of(name, wait, metadata())
}

/// The metadata of the claims of the suite.
pub(crate) fn metadata() -> Metadata {
    Metadata::of_this_process(Some("conformance"))
}

/// Makes a claim with this metadata.
pub(crate) fn claim_of(name: &LockName, wait: bool, metadata: Metadata) -> (Claim, ClaimControl) {
    let control = ClaimControl::new();
    (Claim::new(name.clone(), wait, metadata, &control), control)
}

/// Acquires a free lock in a session.
pub(crate) async fn take(session: &Arc<dyn Session>, name: &LockName) -> Result<Grant> {
    granted_or_err(session.acquire(claim(name, true).0).await?)
}

/// Returns the grant that a claim has ended with.
pub(crate) fn granted_or_err(end: Acquired) -> Result<Grant> {
    match end {
        Acquired::Granted(grant) => Ok(grant),
        other => bail!("the lock was not granted: {other:?}"),
    }
}

impl PendingClaim {
    /// Waits until the claim ends, which it must do within this time.
    pub(crate) async fn ends_within(self, bound: Duration) -> Result<lockkit_core::Result<Acquired>> {
        Ok(within(bound, "the claim ends", self.task).await??)
    }

    /// Waits until the claim is granted, which must be within this time.
    pub(crate) async fn granted_within(self, bound: Duration) -> Result<Grant> {
        granted_or_err(self.ends_within(bound).await??)
    }
}

impl Context {
    /// Claims a lock that another claim holds, and returns once the session has noted that.
    pub(crate) async fn wait_in(&self, session: &Arc<dyn Session>, name: &LockName) -> Result<PendingClaim> {
        self.wait_as(session, claim(name, true)).await
    }

    /// The same with a given claim.
    pub(crate) async fn wait_as(
        &self,
        session: &Arc<dyn Session>,
        (claim, control): (Claim, ClaimControl),
    ) -> Result<PendingClaim> {
        let pending = PendingClaim::spawn(session, claim, control);
        let noted = async || {
            ensure!(pending.is_waiting(), "a claim for a lock that is held has ended");
            Ok(pending.control.was_contended())
        };
        let bound = self.bounds(self.long_ttl()).cleanup();
        self.eventually(bound, "the session notes that the lock is held", noted).await?;
        Ok(pending)
    }

    /// Opens two sessions that outlive the case unless it closes them.
    pub(crate) async fn two_sessions(&self) -> Result<[Arc<dyn Session>; 2]> {
        Ok([self.session(self.long_ttl()).await?, self.session(self.long_ttl()).await?])
    }

    /// Returns a session that falls silent, with its grant, and another session that was granted the lock after it.
    pub(crate) async fn silent_and_next(&self, name: &LockName) -> Result<[(Arc<dyn Session>, Grant); 2]> {
        let other = self.session(self.long_ttl()).await?;
        // Opened last: it must not end before its grant.
        let silent = self.session(self.short_ttl()).await?;
        let lost = take(&silent, name).await?;
        let bound = self.bounds(silent.ttl()).takeover();
        let next = within(bound, "the lock of a silent session is granted", take(&other, name)).await??;
        Ok([(silent, lost), (other, next)])
    }

    /// Whether a try from another session finds the lock held.
    pub(crate) async fn is_taken(&self, name: &LockName) -> Result<bool> {
        let session = self.session(self.long_ttl()).await?;
        let taken = match session.acquire(claim(name, false).0).await? {
            Acquired::GaveUp => true,
            Acquired::Granted(grant) => {
                session.release(&grant).await?;
                false
            }
            other => bail!("a try has no entry that could vanish: {other:?}"),
        };
        session.close().await?;
        Ok(taken)
    }
}
