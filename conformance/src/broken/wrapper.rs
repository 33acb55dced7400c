//! The broken backend and its session: each method behaves as the memory backend does, or as the defect says.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use lockkit_core::{
    BootInstant, Clock, Error, ErrorKind, FencingToken, LockName, Metadata, Result,
    backend::{
        Acquired, Admin, Backend, BackendInfo, Claim, ClaimControl, Elections, Grant, Loss, Pins, Promises,
        Records, Renewal, Renewals, Session,
    },
    limits::TTL_MAX,
    memory::{MemoryBackend, MemoryServer},
    support::lock,
};
use tokio::{sync::oneshot, time::Instant};

use super::{Defect, admin::AdminState, grants::ADDED_TTLS, info, powers::PowersState, promises};
use crate::{Access, ShownCertificate};

/// How much longer sessions live. Less than the pause between two re-checks.
const LATE_BY: Duration = Duration::from_secs(2);

/// What the clients of one broken store share.
#[derive(Clone, Default)]
pub(super) struct Shared(Arc<Mutex<State>>);

#[derive(Default)]
pub(super) struct State {
    pub(super) last_token: u64,
    /// Sessions that hold a lock, with their grants.
    pub(super) holds: HashMap<LockName, Vec<SessionGrant>>,
    /// When a hold of the lock was last released.
    pub(super) released: HashMap<LockName, Instant>,
    /// The waiters of the lock, the youngest last.
    pub(super) waiting: HashMap<LockName, Vec<oneshot::Sender<Grant>>>,
    /// Locks whose first waiter was sent back.
    pub(super) sent_back: HashSet<LockName>,
    /// Until when a lock is held, by the clock of the client that acquired it.
    pub(super) held_until: HashMap<LockName, Duration>,
    /// The locks of entries that are never removed.
    pub(super) left_entries: Vec<LockName>,
    /// The locks of watches that are never ended.
    pub(super) left_watches: Vec<LockName>,
    /// Whether the disk is full.
    pub(super) is_full: bool,
    pub(super) restarts: u64,
    pub(super) powers: PowersState,
    pub(super) admin: AdminState,
}

/// A grant and its session.
type SessionGrant = (Arc<dyn Session>, Grant);

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

pub(super) struct BrokenBackend {
    pub(super) server: MemoryServer,
    pub(super) inner: MemoryBackend,
    pub(super) defect: Defect,
    pub(super) shared: Shared,
    access: Option<Access>,
}

impl BrokenBackend {
    pub(super) fn new(server: &MemoryServer, defect: Defect, shared: Shared, access: Option<Access>) -> Self {
        Self { server: server.clone(), inner: server.backend(), defect, shared, access }
    }

    /// Whether the server refuses this client, or the client the server.
    fn is_denied(&self) -> bool {
        match &self.access {
            Some(Access::Tls(shown)) => {
                let is_trusted = *shown == ShownCertificate::Trusted && self.defect != Defect::TrustsNobody;
                !is_trusted && self.defect != Defect::TrustsAnybody
            }
            Some(Access::Secret { right, .. }) => !right,
            Some(Access::AllBut(_)) | None => false,
        }
    }
}

impl std::fmt::Debug for BrokenBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let access = self.access.as_ref().filter(|_| self.defect == Defect::PrintedSecret);
        f.debug_struct("BrokenBackend").field("defect", &self.defect).field("access", &access).finish()
    }
}

#[async_trait]
impl Backend for BrokenBackend {
    fn info(&self) -> BackendInfo {
        info(self.defect)
    }

    fn promises(&self) -> Promises {
        promises(self.defect)
    }

    async fn open_session(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        if self.is_denied() {
            return Err(Error::new(ErrorKind::Denied, "open session"));
        }
        let server_ttl = match self.defect {
            Defect::SlowExpiry => ttl * 10,
            Defect::LateExpiry => ttl + LATE_BY,
            // Just longer than the pause between two heartbeats.
            Defect::EarlyExpiry => ttl * 2 / 5,
            _ => ttl.min(TTL_MAX),
        };
        let inner = self.inner.open_session(server_ttl, clock.clone()).await?;
        Ok(Arc::new(BrokenSession {
            inner,
            defect: self.defect,
            shared: self.shared.clone(),
            ttl,
            clock,
            inspector: self.inner.clone(),
            forbidden: match &self.access {
                Some(Access::AllBut(name)) => Some(name.clone()),
                _ => None,
            },
            closed: AtomicBool::new(false),
            first_claim: tokio::sync::Mutex::new(false),
            restarts: self.shared.state().restarts,
        }))
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }
}

#[derive(Debug)]
pub(super) struct BrokenSession {
    pub(super) inner: Arc<dyn Session>,
    pub(super) defect: Defect,
    pub(super) shared: Shared,
    pub(super) ttl: Duration,
    pub(super) clock: Clock,
    inspector: MemoryBackend,
    pub(super) forbidden: Option<LockName>,
    closed: AtomicBool,
    /// Locked while the first claim is under way, then true.
    pub(super) first_claim: tokio::sync::Mutex<bool>,
    /// Restarts of the server before the session was opened.
    restarts: u64,
}

impl BrokenSession {
    pub(super) fn next_token(&self) -> FencingToken {
        let mut state = self.shared.state();
        state.last_token += 1;
        FencingToken::new(state.last_token)
    }

    /// Returns a grant that the server did not make.
    pub(super) fn invented(&self, claim: &Claim) -> Acquired {
        Acquired::Granted(Grant::new(claim, self.next_token(), self.clock.now()))
    }

    /// Returns whether the lock is held now, and marks the claim then.
    pub(super) async fn contended(&self, claim: &Claim) -> bool {
        let found = self.inspector.inspect(claim.name()).await;
        let contended = found.is_ok_and(|found| found.holder.is_some());
        if contended {
            claim.note_contended();
        }
        contended
    }

    /// Acquires the lock again when the hold was released after its renewal had begun.
    fn revive(&self, grant: &Grant, begun: Instant) {
        let released = self.shared.state().released.get(grant.name()).copied();
        if released.is_some_and(|at| at >= begun) {
            let control = ClaimControl::new();
            let metadata = Metadata::of_this_process(None);
            let again = Claim::new(grant.name().clone(), true, metadata, &control);
            let inner = Arc::clone(&self.inner);
            tokio::spawn(async move {
                let revived = inner.acquire(again).await;
                drop(control);
                revived
            });
        }
    }

    /// Waits for ever where the server answers no heartbeat of this session.
    async fn is_answered(&self) {
        if self.defect == Defect::UnansweredRestart && self.shared.state().restarts > self.restarts {
            std::future::pending().await
        }
    }

    /// Makes another claim, for the lock `name`, that does not give up with the first one.
    pub(super) fn detached(&self, claim: &Claim, name: LockName, wait: bool) -> (Claim, ClaimControl) {
        let control = ClaimControl::new();
        (Claim::new(name, wait, claim.metadata().clone(), &control), control)
    }

    /// Returns what the client is shown of a heartbeat that began at `begun`.
    fn falsified(&self, mut heartbeat: Renewals, held: &[Grant], begun: Instant) -> Renewals {
        match self.defect {
            Defect::UnknownAsLoss if matches!(heartbeat.session, Renewal::Unknown(_)) => {
                heartbeat.session = Renewal::Gone;
            }
            Defect::LifetimeTooLong => {
                starts(&mut heartbeat).for_each(|start| *start = start.after(self.ttl * ADDED_TTLS));
            }
            Defect::RevivingRenewal => {
                held.iter().for_each(|grant| self.revive(grant, begun));
            }
            Defect::LifetimeFromReply => {
                let now = self.clock.now();
                starts(&mut heartbeat).for_each(|start| *start = now);
            }
            Defect::LossOfAll
                if heartbeat.holds.iter().any(|(_, renewal)| matches!(renewal, Renewal::Gone)) =>
            {
                heartbeat.session = Renewal::Gone;
            }
            _ => {}
        }
        heartbeat
    }
}

/// The starts of the leases that a heartbeat has renewed.
fn starts(heartbeat: &mut Renewals) -> impl Iterator<Item = &mut BootInstant> {
    let renewals = heartbeat.holds.iter_mut().map(|(_, renewal)| renewal).chain([&mut heartbeat.session]);
    renewals.filter_map(|renewal| match renewal {
        Renewal::Renewed { armed_at } => Some(armed_at),
        _ => None,
    })
}

#[async_trait]
impl Session for BrokenSession {
    fn ttl(&self) -> Duration {
        if self.defect == Defect::ShortTtl { self.ttl / 2 } else { self.ttl }
    }

    async fn acquire(&self, claim: Claim) -> Result<Acquired> {
        let name = claim.name().clone();
        if let Some(refused) = self.refused(&claim).await {
            return refused;
        }
        let acquired = self.broken_acquire(claim).await;
        if let (Defect::ForeignRelease, Ok(Acquired::Granted(grant))) = (self.defect, &acquired) {
            let hold = (Arc::clone(&self.inner), grant.clone());
            self.shared.state().holds.entry(name).or_default().push(hold);
        }
        acquired
    }

    async fn renew(&self, held: &[Grant]) -> Renewals {
        self.is_answered().await;
        let all_renewed = |clock: &Clock| {
            let renewed = || Renewal::Renewed { armed_at: clock.now() };
            Renewals::new(renewed(), held.iter().map(|grant| (grant.claim(), renewed())).collect())
        };
        match self.defect {
            Defect::ForgetfulHeartbeat => return self.inner.renew(&held[..held.len().min(1)]).await,
            Defect::ChattyHeartbeat => {
                let mut heartbeat = self.inner.renew(&[]).await;
                for grant in held {
                    heartbeat.holds.extend(self.inner.renew(std::slice::from_ref(grant)).await.holds);
                }
                return heartbeat;
            }
            Defect::EmptyRenewal => return all_renewed(&self.clock),
            // The server does not know these holds.
            Defect::DoubleGrant => {
                let _ = self.inner.renew(&[]).await;
                return all_renewed(&self.clock);
            }
            _ => {}
        }
        let begun = Instant::now();
        let heartbeat = self.inner.renew(held).await;
        match self.defect {
            Defect::UnseenLoss | Defect::ForgetfulRestart
                if !matches!(heartbeat.session, Renewal::Unknown(_)) =>
            {
                all_renewed(&self.clock)
            }
            _ => self.falsified(heartbeat, held, begun),
        }
    }

    async fn release(&self, grant: &Grant) -> Result<()> {
        match self.defect {
            Defect::EmptyRelease => return Ok(()),
            Defect::LeftEntry | Defect::CounterWithoutTtl | Defect::EntryPerRelease => {
                self.shared.state().left_entries.push(grant.name().clone())
            }
            Defect::LeftTask => drop(tokio::spawn(std::future::pending::<()>())),
            Defect::WakesAll => {
                for _ in self.inspector.inspect(grant.name()).await?.waiters {
                    self.inner.renew(&[]).await;
                }
            }
            Defect::StickyPin => return Pins::leave(self, grant).await,
            Defect::ForeignRelease => {
                let holds = self.shared.state().holds.remove(grant.name()).unwrap_or_default();
                for (session, held) in holds {
                    session.release(&held).await?;
                }
            }
            _ => {}
        }
        self.shared.state().held_until.remove(grant.name());
        self.shared.state().released.insert(grant.name().clone(), Instant::now());
        if self.defect == Defect::SlowHandoff {
            let (inner, grant, pause) = (Arc::clone(&self.inner), grant.clone(), self.ttl / 2);
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                inner.release(&grant).await
            });
            return Ok(());
        }
        self.inner.release(grant).await
    }

    async fn lost(&self) -> Loss {
        if matches!(self.defect, Defect::UnseenLoss | Defect::ForgetfulRestart) {
            std::future::pending::<()>().await;
        }
        self.inner.lost().await
    }

    async fn close(&self) -> Result<()> {
        if self.defect == Defect::EternalSession {
            let (inner, pause) = (Arc::clone(&self.inner), self.ttl / 4);
            tokio::spawn(async move {
                loop {
                    inner.renew(&[]).await;
                    tokio::time::sleep(pause).await;
                }
            });
            return Ok(());
        }
        if self.defect == Defect::CloseOnce && self.closed.swap(true, Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Closed, "close"));
        }
        if self.defect == Defect::LeftConnection {
            std::mem::forget(tokio::net::UnixStream::pair());
        }
        self.inner.close().await
    }

    fn elections(&self) -> Option<&dyn Elections> {
        Some(self)
    }

    fn records(&self) -> Option<&dyn Records> {
        Some(self)
    }

    fn pins(&self) -> Option<&dyn Pins> {
        Some(self)
    }
}
