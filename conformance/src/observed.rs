//! A wrapper that records the calls to a backend, which the suite cannot see through the user's API.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use lockkit_core::{
    Clock, FencingToken, LockName, Result,
    backend::{
        Acquired, Admin, Backend, BackendInfo, Claim, ClaimId, Elections, Grant, Loss, Pins, Promises,
        Records, Renewal, Renewals, Session,
    },
    support::lock,
};

use tokio::time::{Instant, sleep};

use crate::AnyBackend;

/// Pauses between two polls for whether a claim waits; they grow.
const POLL_PAUSE_MIN: Duration = Duration::from_millis(1);
const POLL_PAUSE_MAX: Duration = Duration::from_millis(50);

/// The calls of the clients of one case to their backends.
#[derive(Debug, Default)]
pub(crate) struct Log(Mutex<Calls>);

#[derive(Debug, Default)]
struct Calls {
    /// Claims that are being requested or wait, per lock.
    claiming: HashMap<LockName, usize>,
    /// Those of them that the store has answered with another holder.
    waiting: HashMap<LockName, usize>,
    /// Releases that have begun, per lock.
    releasing: HashMap<LockName, usize>,
    /// When the release of a claim was confirmed.
    released: HashMap<ClaimId, Instant>,
    /// Renewals that began well after the release of their claim was confirmed.
    late_renewals: usize,
    renewals: usize,
    /// Confirmed renewals, per lock.
    renewed: HashMap<LockName, usize>,
    /// The arrivals of the claims that were granted, by lock and token.
    arrivals: HashMap<(LockName, FencingToken), Arrival>,
}

/// When a granted claim arrived at the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// When `acquire` was called.
    pub(crate) claimed: Instant,
    /// When the claim was seen to wait, which the store knew before; `None` when it was granted before that.
    pub(crate) queued: Option<Instant>,
}

impl Log {
    /// Returns how many claims for this lock are being requested or wait.
    pub(crate) fn claiming(&self, name: &LockName) -> usize {
        self.calls().claiming.get(name).copied().unwrap_or_default()
    }

    /// Returns how many claims for this lock wait for its holder.
    pub(crate) fn waiting(&self, name: &LockName) -> usize {
        self.calls().waiting.get(name).copied().unwrap_or_default()
    }

    /// Returns how many renewals began well after the release of their claim.
    pub(crate) fn late_renewals(&self) -> usize {
        self.calls().late_renewals
    }

    /// Returns how many releases of this lock have begun.
    pub(crate) fn releasing(&self, name: &LockName) -> usize {
        self.calls().releasing.get(name).copied().unwrap_or_default()
    }

    /// Returns how many renewals were requested.
    pub(crate) fn renewals(&self) -> usize {
        self.calls().renewals
    }

    /// Returns how many renewals of this lock the store has confirmed.
    pub(crate) fn renewed(&self, name: &LockName) -> usize {
        self.calls().renewed.get(name).copied().unwrap_or_default()
    }

    /// Returns the arrival of the claim that was granted the lock with this token.
    pub(crate) fn arrival(&self, name: &LockName, token: FencingToken) -> Option<Arrival> {
        self.calls().arrivals.get(&(name.clone(), token)).copied()
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        lock(&self.0)
    }
}

/// A backend whose calls are recorded.
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

    fn promises(&self) -> Promises {
        self.inner.promises()
    }

    async fn open_session(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        let inner = self.inner.open_session(ttl, clock).await?;
        Ok(Arc::new(ObservedSession { inner, log: Arc::clone(&self.log) }))
    }

    fn admin(&self) -> Option<&dyn Admin> {
        self.inner.admin()
    }
}

/// Waits until the claim is marked contended, and returns when that was seen.
async fn contended_at(claim: &Claim) -> Instant {
    let mut pause = POLL_PAUSE_MIN;
    while !claim.was_contended() {
        sleep(pause).await;
        pause = (pause * 3 / 2).min(POLL_PAUSE_MAX);
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
        *self.log.calls().claiming.entry(name.clone()).or_default() += 1;
        let mut arrival = Arrival { claimed: Instant::now(), queued: None };
        let mut acquiring = pin!(self.inner.acquire(sent));
        let acquired = tokio::select! {
            biased;
            acquired = &mut acquiring => acquired,
            at = contended_at(&claim) => {
                arrival.queued = Some(at);
                *self.log.calls().waiting.entry(name.clone()).or_default() += 1;
                acquiring.await
            }
        };
        let mut calls = self.log.calls();
        if let Some(claiming) = calls.claiming.get_mut(&name) {
            *claiming -= 1;
        }
        if arrival.queued.is_some()
            && let Some(waiting) = calls.waiting.get_mut(&name)
        {
            *waiting -= 1;
        }
        if let Ok(Acquired::Granted(grant)) = &acquired {
            calls.arrivals.insert((name, grant.token()), arrival);
        }
        acquired
    }

    async fn renew(&self, held: &[Grant]) -> Renewals {
        {
            let mut calls = self.log.calls();
            calls.renewals += held.len();
            // One heartbeat may have chosen its holds just before the release. A client that really renews released
            // holds does so at the next heartbeat too, which is late enough to count.
            let well_after = |released: &Instant| released.elapsed() > self.inner.ttl() / 6;
            let is_late = |grant: &&Grant| calls.released.get(&grant.claim()).is_some_and(well_after);
            calls.late_renewals += held.iter().filter(is_late).count();
        }
        let heartbeat = self.inner.renew(held).await;
        let mut calls = self.log.calls();
        for grant in held {
            let answer = heartbeat.holds.iter().find(|(claim, _)| *claim == grant.claim());
            if matches!(answer, Some((_, Renewal::Renewed { .. }))) {
                *calls.renewed.entry(grant.name().clone()).or_default() += 1;
            }
        }
        drop(calls);
        heartbeat
    }

    async fn release(&self, grant: &Grant) -> Result<()> {
        *self.log.calls().releasing.entry(grant.name().clone()).or_default() += 1;
        let released = self.inner.release(grant).await;
        if released.is_ok() {
            self.log.calls().released.insert(grant.claim(), Instant::now());
        }
        released
    }

    async fn lost(&self) -> Loss {
        self.inner.lost().await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }

    fn elections(&self) -> Option<&dyn Elections> {
        self.inner.elections()
    }

    fn records(&self) -> Option<&dyn Records> {
        self.inner.records()
    }

    fn pins(&self) -> Option<&dyn Pins> {
        self.inner.pins()
    }
}
