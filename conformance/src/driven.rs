//! Sessions and claims that a case drives itself, without a keeper in between: nobody renews them.

use std::{sync::Arc, time::Duration};

use crate::{
    by_hand::Waiting,
    context::{Context, within},
};
use anyhow::{Result, bail, ensure};
use lockkit_core::{
    LockName, Metadata,
    backend::{Acquired, Claim, ClaimControl, Grant, Session},
};

/// A claim for this lock.
pub(crate) fn claim(name: &LockName, wait: bool) -> (Claim, ClaimControl) {
    claim_of(name, wait, metadata())
}

/// What claims here say of themselves.
pub(crate) fn metadata() -> Metadata {
    Metadata::of_this_process(Some("conformance"))
}

/// A claim that says this of itself.
pub(crate) fn claim_of(name: &LockName, wait: bool, metadata: Metadata) -> (Claim, ClaimControl) {
    let control = ClaimControl::new();
    (Claim::new(name.clone(), wait, metadata, &control), control)
}

/// Takes a free lock in a session.
pub(crate) async fn take(session: &Arc<dyn Session>, name: &LockName) -> Result<Grant> {
    granted(session.acquire(claim(name, true).0).await?)
}

/// The grant that a claim has ended with.
pub(crate) fn granted(end: Acquired) -> Result<Grant> {
    match end {
        Acquired::Granted(grant) => Ok(grant),
        other => bail!("the lock was not granted: {other:?}"),
    }
}

impl Waiting {
    /// How the claim ends, which it does within this time.
    pub(crate) async fn ends_within(self, bound: Duration) -> Result<lockkit_core::Result<Acquired>> {
        Ok(within(bound, "the claim is answered", self.task).await??)
    }

    /// The grant that it ends with within this time.
    pub(crate) async fn granted_within(self, bound: Duration) -> Result<Grant> {
        granted(self.ends_within(bound).await??)
    }
}

impl Context {
    /// Claims a lock that somebody else holds, and returns once the session has noted that.
    pub(crate) async fn wait_in(&self, session: &Arc<dyn Session>, name: &LockName) -> Result<Waiting> {
        self.wait_as(session, claim(name, true)).await
    }

    /// The same with a claim of the case's own.
    pub(crate) async fn wait_as(
        &self,
        session: &Arc<dyn Session>,
        (claim, control): (Claim, ClaimControl),
    ) -> Result<Waiting> {
        let waiting = Waiting::of(session, claim, control);
        let noted = async || {
            ensure!(waiting.is_waiting(), "a claim for a lock that is held has ended");
            Ok(waiting.control.was_contended())
        };
        let bound = self.bounds(self.long_ttl()).cleanup();
        self.eventually(bound, "it is noted that somebody else holds the lock", noted).await?;
        Ok(waiting)
    }

    /// Two sessions that outlive the case unless it closes them.
    pub(crate) async fn two_sessions(&self) -> Result<[Arc<dyn Session>; 2]> {
        Ok([self.session(self.long_ttl()).await?, self.session(self.long_ttl()).await?])
    }

    /// A session that falls silent, with a grant of this lock, and another one that was granted the lock after it.
    pub(crate) async fn silent_and_next(&self, name: &LockName) -> Result<[(Arc<dyn Session>, Grant); 2]> {
        let silent = self.session(self.short_ttl()).await?;
        let other = self.session(self.long_ttl()).await?;
        let lost = take(&silent, name).await?;
        let bound = self.bounds(silent.ttl()).takeover();
        let next = within(bound, "the lock of a silent session is granted", take(&other, name)).await??;
        Ok([(silent, lost), (other, next)])
    }

    /// Whether somebody else's try finds the lock held.
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
