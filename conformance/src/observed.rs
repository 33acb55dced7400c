//! A backend under observation: what the suite cannot see from the user's side of a client.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use lockkit_core::{
    Clock, LockName, Result,
    backend::{Acquired, Admin, Backend, BackendInfo, Beat, Claim, ClaimId, Grant, Loss, Renewal, Session},
};

use tokio::time::Instant;

use crate::AnyBackend;

/// What the clients of one case have asked of their backends.
#[derive(Debug, Default)]
pub(crate) struct Log(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// Claims that are on their way or wait, per lock.
    claiming: HashMap<LockName, usize>,
    /// When the release of a claim was confirmed.
    released: HashMap<ClaimId, Instant>,
    /// Renewals that began well after the release of their claim was confirmed.
    late_renewals: usize,
    renewals: usize,
    /// Renewals that the store has confirmed, per lock.
    renewed: HashMap<LockName, usize>,
}

impl Log {
    /// Claims for this lock that are on their way or wait.
    pub(crate) fn claiming(&self, name: &LockName) -> usize {
        self.seen().claiming.get(name).copied().unwrap_or_default()
    }

    /// How often a claim was renewed that had been released before.
    pub(crate) fn late_renewals(&self) -> usize {
        self.seen().late_renewals
    }

    /// How often a claim was renewed.
    pub(crate) fn renewals(&self) -> usize {
        self.seen().renewals
    }

    /// How often the store has confirmed the renewal of a claim for this lock.
    pub(crate) fn renewed(&self, name: &LockName) -> usize {
        self.seen().renewed.get(name).copied().unwrap_or_default()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A backend whose calls are noted.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) inner: AnyBackend,
    pub(crate) log: Arc<Log>,
}

#[async_trait]
impl Backend for Observed {
    fn info(&self) -> BackendInfo {
        self.inner.info()
    }

    async fn open_session(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        let inner = self.inner.open_session(ttl, clock).await?;
        Ok(Arc::new(ObservedSession { inner, log: Arc::clone(&self.log) }))
    }

    fn admin(&self) -> Option<&dyn Admin> {
        self.inner.admin()
    }
}

#[derive(Debug)]
struct ObservedSession {
    inner: Arc<dyn Session>,
    log: Arc<Log>,
}

#[async_trait]
impl Session for ObservedSession {
    fn ttl(&self) -> Duration {
        self.inner.ttl()
    }

    async fn acquire(&self, claim: Claim) -> Result<Acquired> {
        let name = claim.name().clone();
        *self.log.seen().claiming.entry(name.clone()).or_default() += 1;
        let acquired = self.inner.acquire(claim).await;
        if let Some(claiming) = self.log.seen().claiming.get_mut(&name) {
            *claiming -= 1;
        }
        acquired
    }

    async fn renew(&self, held: &[Grant]) -> Beat {
        {
            let mut seen = self.log.seen();
            seen.renewals += held.len();
            // A beat may have been decided on just before: whoever renews what is released does so at the next one too.
            let well_after = |released: &Instant| released.elapsed() > self.inner.ttl() / 6;
            let is_late = |grant: &&Grant| seen.released.get(&grant.claim()).is_some_and(well_after);
            seen.late_renewals += held.iter().filter(is_late).count();
        }
        let beat = self.inner.renew(held).await;
        let mut seen = self.log.seen();
        for grant in held {
            let answer = beat.holds.iter().find(|(claim, _)| *claim == grant.claim());
            if matches!(answer, Some((_, Renewal::Renewed { .. }))) {
                *seen.renewed.entry(grant.name().clone()).or_default() += 1;
            }
        }
        drop(seen);
        beat
    }

    async fn release(&self, grant: &Grant) -> Result<()> {
        let released = self.inner.release(grant).await;
        if released.is_ok() {
            self.log.seen().released.insert(grant.claim(), Instant::now());
        }
        released
    }

    async fn lost(&self) -> Loss {
        self.inner.lost().await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}
