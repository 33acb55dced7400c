//! A backend under observation: what the suite cannot see from the user's side of a client.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use lockkit_core::{
    Clock, FencingToken, LockName, Result,
    backend::{Acquired, Admin, Backend, BackendInfo, Beat, Claim, ClaimId, Grant, Loss, Renewal, Session},
};

use tokio::time::{Instant, sleep};

use crate::AnyBackend;

/// Pauses between two looks at whether a claim waits; they grow.
const LOOK_PAUSE_MIN: Duration = Duration::from_millis(1);
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(50);

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
    /// How the claims came that were granted, by lock and token.
    came: HashMap<(LockName, FencingToken), Came>,
}

/// How a claim came to its grant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Came {
    /// When its acquire was called.
    pub(crate) claimed: Instant,
    /// When it was seen that it waits, which the store knew before that; `None`: it was granted sooner.
    pub(crate) queued: Option<Instant>,
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

    /// How the claim came that was granted the lock with this token.
    pub(crate) fn came(&self, name: &LockName, token: FencingToken) -> Option<Came> {
        self.seen().came.get(&(name.clone(), token)).copied()
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

/// When it was seen that somebody else holds the lock.
async fn noted_contended(claim: &Claim) -> Instant {
    let mut pause = LOOK_PAUSE_MIN;
    while !claim.was_contended() {
        sleep(pause).await;
        pause = (pause * 3 / 2).min(LOOK_PAUSE_MAX);
    }
    Instant::now()
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
        let (name, sent) = (claim.name().clone(), claim.clone());
        *self.log.seen().claiming.entry(name.clone()).or_default() += 1;
        let mut came = Came { claimed: Instant::now(), queued: None };
        let mut acquiring = pin!(self.inner.acquire(sent));
        let acquired = tokio::select! {
            biased;
            acquired = &mut acquiring => acquired,
            at = noted_contended(&claim) => {
                came.queued = Some(at);
                acquiring.await
            }
        };
        let mut seen = self.log.seen();
        if let Some(claiming) = seen.claiming.get_mut(&name) {
            *claiming -= 1;
        }
        if let Ok(Acquired::Granted(grant)) = &acquired {
            seen.came.insert((name, grant.token()), came);
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
