//! The claims made at a set of nodes as a [`Session`].
//!
//! The nodes know no sessions: every lock has a lifetime of its own at each of them. What is not told here:
//! [`acquire`](super::acquire) is the life of a claim up to its grant, [`attempt`](super::attempt) one attempt,
//! [`renew`](super::renew) the beats, [`rejoin`](super::rejoin) what becomes of nodes that have lost their data.
//!
//! * The session is closed: every acquire takes back what is its own, everything held is released. What a majority does
//!   not confirm ends with its ttl.
//! * A hold's release is not answered: it is repeated, node by node.
//! * It is not answered before its keys must have ended by themselves, at nodes that may be away for long: then the hold is
//!   forgotten. Whoever waited for the answer was told that there is none.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use lockkit_core::{
    Error, ErrorKind, Result,
    backend::{Acquired, Beat, Claim, ClaimId, Grant, Loss, Session},
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{
    attempt::{Table, Won},
    ending::Ending,
};
use crate::{error::Fault, keys::Layout};

/// Acquires under way at a time, far more than a client may have.
const ACQUIRES_MAX: u32 = 1 << 20;

/// A session.
#[derive(Debug)]
pub(super) struct RedlockSession {
    pub(super) table: Table,
    pub(super) layout: Layout,
    pub(super) closed: CancellationToken,
    holds: Mutex<HashMap<ClaimId, Hold>>,
    /// A permit for each acquire that is under way.
    acquiring: Semaphore,
}

/// What a claim holds.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) won: Won,
    /// Once its end has begun.
    ending: Option<Ending>,
}

impl RedlockSession {
    pub(super) fn new(table: Table, layout: Layout, closed: CancellationToken) -> Self {
        let acquiring = Semaphore::new(ACQUIRES_MAX as usize);
        Self { table, layout, closed, holds: Mutex::default(), acquiring }
    }

    /// Notes what a claim has won.
    pub(super) fn hold(&self, claim: ClaimId, won: Won) {
        self.lock().insert(claim, Hold { won, ending: None });
    }

    /// What a claim holds whose end has not begun.
    pub(super) fn held(&self, claim: ClaimId) -> Option<Won> {
        self.lock().get(&claim).filter(|hold| hold.ending.is_none()).map(|hold| hold.won.clone())
    }

    /// Begins the end of a hold, or finds it under way.
    pub(super) fn end(&self, claim: ClaimId) -> Option<Ending> {
        let mut holds = self.lock();
        let hold = holds.get_mut(&claim)?;
        Some(hold.ending.get_or_insert_with(|| hold.won.end(&self.table)).clone())
    }

    async fn release_claim(&self, claim: ClaimId) -> Result<(), Fault> {
        let Some(ending) = self.end(claim) else { return Ok(()) };
        ending.confirmed().await?;
        self.lock().remove(&claim);
        Ok(())
    }

    /// Forgets holds whose keys must have ended at all nodes so long ago, whoever has confirmed it.
    pub(super) fn forget_ended(&self, ago: Duration) {
        self.lock().retain(|_, hold| !hold.ending.as_ref().is_some_and(|ending| ending.is_over_since(ago)));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Hold>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Session for RedlockSession {
    fn ttl(&self) -> Duration {
        self.table.ttl
    }

    async fn acquire(&self, claim: Claim) -> Result<Acquired> {
        let _under_way = self.acquiring.acquire().await;
        self.acquire_claim(&claim).await
    }

    async fn renew(&self, held: &[Grant]) -> Beat {
        self.beat(held).await
    }

    async fn release(&self, grant: &Grant) -> Result<()> {
        if self.closed.is_cancelled() {
            return Err(Error::new(ErrorKind::Closed, "release").with_lock(grant.name()));
        }
        let released = self.release_claim(grant.claim()).await;
        released.map_err(|fault| fault.into_error("release").with_lock(grant.name()))
    }

    async fn lost(&self) -> Loss {
        // The nodes tell no loss; after a close the question has an answer.
        self.closed.cancelled().await;
        Loss::Session
    }

    async fn close(&self) -> Result<()> {
        self.closed.cancel();
        // Every acquire has ended when all permits are back.
        let _settled = self.acquiring.acquire_many(ACQUIRES_MAX).await;
        self.forget_ended(Duration::ZERO);
        let claims: Vec<ClaimId> = self.lock().keys().copied().collect();
        let releases = claims.into_iter().map(|claim| self.release_claim(claim));
        let unconfirmed = futures_util::future::join_all(releases).await.into_iter().find_map(Result::err);
        unconfirmed.map_or(Ok(()), |fault| Err(fault.into_error("close")))
    }
}

/// A session that nobody closed: what it holds ends with its ttl, what waits in it ends here.
impl Drop for RedlockSession {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}
