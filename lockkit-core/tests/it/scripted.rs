//! A backend whose behaviour a test controls, for behaviour that the memory server lacks.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use async_trait::async_trait;
use lockkit_core::{
    BootInstant, Clock, Error, ErrorKind, FencingToken, LockClient, LockName, Metadata, Result,
    backend::{
        Acquired, Backend, BackendInfo, Claim, ClaimId, Elections, Grant, HeartbeatInterval, LeaderEntry,
        LeaderWatch, Lifetime, Loss, Pins, Renewal, Renewals, Session,
    },
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::common::TTL;

/// Controls and counters of a [`Scripted`] backend, shared with the test.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) opened: AtomicU64,
    pub(crate) closed: AtomicU64,
    pub(crate) claims: AtomicU64,
    pub(crate) heartbeats: AtomicU64,
    pub(crate) releases: AtomicU64,
    pub(crate) releases_tried: AtomicU64,
    /// Opening a session never completes.
    pub(crate) open_hangs: AtomicBool,
    /// How long opening a session takes after the server has opened it.
    pub(crate) open_takes_ms: AtomicU64,
    /// Opening a session panics.
    pub(crate) open_panics: AtomicBool,
    /// Every session is reported lost as soon as it is open.
    pub(crate) flapping: AtomicBool,
    /// Reports the loss of the session, once.
    pub(crate) lose_session: Notify,
    /// Reports the loss of the latest grant, once.
    pub(crate) lose_grant: Notify,
    /// The next report of a loss panics.
    pub(crate) lost_panics: AtomicBool,
    /// Claims wait for `grants` before they are granted, even if they were given up or their session was closed.
    pub(crate) late: AtomicBool,
    pub(crate) grants: Notify,
    /// How often the claims that wait for `grants` were polled.
    pub(crate) polls: AtomicU64,
    /// Woken within the first poll of the next acquire.
    pub(crate) first_poll: Mutex<Option<Waker>>,
    /// Acquires are not answered: a try fails, and a waiting claim waits until it gives up.
    pub(crate) acquires_silent: AtomicBool,
    /// Withdrawals complete only when the session is closed.
    pub(crate) withdrawals_hang: AtomicBool,
    /// Every claim ends because its entry has vanished.
    pub(crate) entries_vanish: AtomicBool,
    /// How long such a claim takes.
    pub(crate) vanish_takes_ms: AtomicU64,
    /// Every claim fails with this error, which ends its session.
    pub(crate) claim_failure: Mutex<Option<ErrorKind>>,
    /// The store gives up every claim, although it is wanted.
    pub(crate) claims_given_up: AtomicBool,
    /// The next acquire panics.
    pub(crate) acquire_panics: AtomicBool,
    /// The next release panics.
    pub(crate) release_panics: AtomicBool,
    /// The next pin panics.
    pub(crate) pin_panics: AtomicBool,
    /// The next proclaim panics.
    pub(crate) proclaim_panics: AtomicBool,
    /// The next heartbeat panics.
    pub(crate) heartbeat_panics: AtomicBool,
    /// Heartbeats report that the session is gone, and nothing about holds.
    pub(crate) session_gone: AtomicBool,
    /// Heartbeats renew the session, but report nothing about holds.
    pub(crate) holds_unknown: AtomicBool,
    /// Heartbeats report nothing about the hold of this name.
    pub(crate) unknown_hold: Mutex<Option<&'static str>>,
    /// Heartbeats that are sent wait for `heartbeat_answers` before they are answered.
    pub(crate) heartbeats_wait: AtomicBool,
    pub(crate) heartbeat_answers: Notify,
    /// Heartbeats renew session and holds from when the session was opened, as an old answer does.
    pub(crate) renewals_are_old: AtomicBool,
    /// Releases are refused, as after a permission was revoked.
    pub(crate) releases_refused: AtomicBool,
    /// Releases find that their session is closed, although nothing has reported its end.
    pub(crate) releases_find_closed: AtomicBool,
    /// The close of the session with this number is never confirmed.
    pub(crate) unclosable: AtomicU64,
    /// Heartbeats, releases and closes are not answered.
    pub(crate) silent: AtomicBool,
    /// Sessions are granted half of the requested ttl.
    pub(crate) ttl_is_halved: AtomicBool,
    pub(crate) pins: AtomicU64,
    /// How long the answer to a pin takes.
    pub(crate) pin_takes_ms: AtomicU64,
    /// Every pin fails with this error.
    pub(crate) pin_failure: Mutex<Option<ErrorKind>>,
    /// Entries that were left to their pins.
    pub(crate) left: AtomicU64,
    pub(crate) proclaims: AtomicU64,
    /// Every proclaim fails with this error.
    pub(crate) proclaim_failure: Mutex<Option<ErrorKind>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Scripted {
    pub(crate) script: Arc<Script>,
    pub(crate) lifetime: Lifetime,
    has_pins: bool,
    has_elections: bool,
    heartbeats_per_ttl: u32,
}

impl Scripted {
    pub(crate) fn new(lifetime: Lifetime) -> Self {
        Self {
            script: Arc::default(),
            lifetime,
            has_pins: false,
            has_elections: false,
            heartbeats_per_ttl: 3,
        }
    }

    pub(crate) fn with_pins(lifetime: Lifetime) -> Self {
        Self { has_pins: true, ..Self::new(lifetime) }
    }

    pub(crate) fn with_elections(lifetime: Lifetime) -> Self {
        Self { has_elections: true, ..Self::new(lifetime) }
    }

    pub(crate) fn with_heartbeats(lifetime: Lifetime, heartbeats_per_ttl: u32) -> Self {
        Self { heartbeats_per_ttl, ..Self::new(lifetime) }
    }

    pub(crate) async fn client(&self) -> LockClient {
        LockClient::builder(self.clone()).ttl(TTL).clock(Clock::tokio()).build().await.unwrap()
    }
}

#[async_trait]
impl Backend for Scripted {
    fn info(&self) -> BackendInfo {
        let mut info = BackendInfo::new("scripted", self.lifetime);
        info.ttl_min = Duration::from_millis(10);
        info.ttl_max = Duration::from_secs(3600);
        info.powers.pins = self.has_pins;
        info.powers.elections = self.has_elections;
        info.heartbeat = match self.lifetime {
            Lifetime::Process => HeartbeatInterval::Every(TTL / 3),
            _ => HeartbeatInterval::PerTtl(self.heartbeats_per_ttl),
        };
        info
    }

    async fn open_session(&self, ttl: Duration, clock: Clock) -> Result<Arc<dyn Session>> {
        let number = self.script.opened.fetch_add(1, Ordering::SeqCst) + 1;
        tokio::task::yield_now().await;
        if self.script.open_hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(self.script.open_takes_ms.load(Ordering::SeqCst))).await;
        assert!(!self.script.open_panics.swap(false, Ordering::SeqCst), "panics on request");
        // The granted ttl differs from the requested one.
        let ttl = match self.lifetime {
            Lifetime::Process => Duration::MAX,
            _ if self.script.ttl_is_halved.load(Ordering::SeqCst) => ttl / 2,
            _ => ttl + Duration::from_secs(1),
        };
        let script = Arc::clone(&self.script);
        Ok(Arc::new(ScriptedSession {
            script,
            number,
            ttl,
            opened_at: clock.now(),
            clock,
            closed: CancellationToken::new(),
            granted: Mutex::default(),
            has_pins: self.has_pins,
            has_elections: self.has_elections,
        }))
    }
}

#[derive(Debug)]
struct ScriptedSession {
    script: Arc<Script>,
    number: u64,
    ttl: Duration,
    opened_at: BootInstant,
    clock: Clock,
    closed: CancellationToken,
    /// The latest claim that was granted.
    granted: Mutex<Option<ClaimId>>,
    has_pins: bool,
    has_elections: bool,
}

impl ScriptedSession {
    /// Waits while the store is silent; returns whether the claim ended without an answer.
    async fn unanswered(&self, claim: &Claim) -> bool {
        while self.script.acquires_silent.load(Ordering::SeqCst) {
            if !claim.wait() {
                // The request timeout of a backend.
                tokio::time::sleep(TTL / 6).await;
            }
            if !claim.wait() || claim.has_given_up() {
                if self.script.withdrawals_hang.load(Ordering::SeqCst) {
                    self.closed.cancelled().await;
                }
                return true;
            }
            let _ = tokio::time::timeout(Duration::from_millis(10), claim.give_up()).await;
        }
        false
    }
}

#[async_trait]
impl Session for ScriptedSession {
    fn ttl(&self) -> Duration {
        self.ttl
    }

    async fn acquire(&self, claim: Claim) -> Result<Acquired> {
        let number = self.script.claims.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(!self.script.acquire_panics.swap(false, Ordering::SeqCst), "panics on request");
        let first_poll = self.script.first_poll.lock().unwrap().take();
        if let Some(waker) = first_poll {
            waker.wake();
        }
        if self.unanswered(&claim).await {
            return match claim.wait() {
                true => Ok(Acquired::GaveUp),
                false => Err(Error::new(ErrorKind::Unavailable, "acquire")),
            };
        }
        if self.script.entries_vanish.load(Ordering::SeqCst) {
            let takes = self.script.vanish_takes_ms.load(Ordering::SeqCst);
            if takes > 0 {
                tokio::time::sleep(Duration::from_millis(takes)).await;
            }
            return Ok(Acquired::EntryGone);
        }
        if self.script.claims_given_up.load(Ordering::SeqCst) {
            return Ok(Acquired::GaveUp);
        }
        let failure = *self.script.claim_failure.lock().unwrap();
        if let Some(kind) = failure {
            self.script.lose_session.notify_one();
            tokio::time::sleep(Duration::from_millis(10)).await;
            return Err(Error::new(kind, "acquire"));
        }
        let armed_at = self.clock.now();
        if self.script.late.load(Ordering::SeqCst) {
            let mut granted = pin!(self.script.grants.notified());
            poll_fn(|context| {
                self.script.polls.fetch_add(1, Ordering::SeqCst);
                granted.as_mut().poll(context)
            })
            .await;
        }
        *self.granted.lock().unwrap() = Some(claim.id());
        Ok(Acquired::Granted(Grant::new(&claim, FencingToken::new(number), armed_at)))
    }

    async fn renew(&self, held: &[Grant]) -> Renewals {
        self.script.heartbeats.fetch_add(1, Ordering::SeqCst);
        assert!(!self.script.heartbeat_panics.swap(false, Ordering::SeqCst), "panics on request");
        let armed_at = match self.script.renewals_are_old.load(Ordering::SeqCst) {
            true => self.opened_at,
            false => self.clock.now(),
        };
        if self.script.heartbeats_wait.load(Ordering::SeqCst) {
            self.script.heartbeat_answers.notified().await;
        }
        let silent = self.script.silent.load(Ordering::SeqCst);
        let gone = self.script.session_gone.load(Ordering::SeqCst);
        let holds_unknown = silent || gone || self.script.holds_unknown.load(Ordering::SeqCst);
        let answer = |unknown| match unknown {
            true => Renewal::Unknown(Error::new(ErrorKind::Unavailable, "renew")),
            false => Renewal::Renewed { armed_at },
        };
        let unknown_hold = *self.script.unknown_hold.lock().unwrap();
        let is_unknown = |grant: &Grant| holds_unknown || unknown_hold == Some(grant.name().as_str());
        let holds = held.iter().map(|grant| (grant.claim(), answer(is_unknown(grant)))).collect();
        Renewals::new(if gone { Renewal::Gone } else { answer(silent) }, holds)
    }

    async fn release(&self, _: &Grant) -> Result<()> {
        self.script.releases_tried.fetch_add(1, Ordering::SeqCst);
        assert!(!self.script.release_panics.swap(false, Ordering::SeqCst), "panics on request");
        if self.script.silent.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "release"));
        }
        if self.script.releases_refused.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Denied, "release").with_message("permission denied"));
        }
        if self.script.releases_find_closed.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Closed, "release"));
        }
        self.script.releases.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn lost(&self) -> Loss {
        let is_flapping = self.script.flapping.load(Ordering::SeqCst);
        let lost = tokio::select! {
            biased;
            () = std::future::ready(()), if is_flapping => Loss::Session,
            () = self.script.lose_session.notified() => Loss::Session,
            () = self.script.lose_grant.notified() => Loss::Grant(self.granted.lock().unwrap().unwrap()),
        };
        assert!(!self.script.lost_panics.swap(false, Ordering::SeqCst), "panics on request");
        lost
    }

    async fn close(&self) -> Result<()> {
        let unclosable = self.script.unclosable.load(Ordering::SeqCst) == self.number;
        if unclosable || self.script.silent.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "close"));
        }
        self.script.closed.fetch_add(1, Ordering::SeqCst);
        self.closed.cancel();
        Ok(())
    }

    fn pins(&self) -> Option<&dyn Pins> {
        self.has_pins.then_some(self)
    }

    fn elections(&self) -> Option<&dyn Elections> {
        self.has_elections.then_some(self)
    }
}

/// Nobody observes a leader here.
#[async_trait]
impl Elections for ScriptedSession {
    async fn leader(&self, _: &LockName) -> Result<Option<LeaderEntry>> {
        Ok(None)
    }

    async fn watch(&self, _: &LockName) -> Result<Box<dyn LeaderWatch>> {
        Err(Error::new(ErrorKind::Unsupported, "watch leader"))
    }

    async fn proclaim(&self, _: &Grant, _: &Metadata) -> Result<bool> {
        self.script.proclaims.fetch_add(1, Ordering::SeqCst);
        assert!(!self.script.proclaim_panics.swap(false, Ordering::SeqCst), "panics on request");
        let failure = *self.script.proclaim_failure.lock().unwrap();
        failure.map_or(Ok(true), |kind| Err(Error::new(kind, "proclaim")))
    }
}

#[async_trait]
impl Pins for ScriptedSession {
    async fn pin(&self, _: &Grant, _: Duration) -> Result<bool> {
        self.script.pins.fetch_add(1, Ordering::SeqCst);
        assert!(!self.script.pin_panics.swap(false, Ordering::SeqCst), "panics on request");
        tokio::time::sleep(Duration::from_millis(self.script.pin_takes_ms.load(Ordering::SeqCst))).await;
        let failure = *self.script.pin_failure.lock().unwrap();
        failure.map_or(Ok(true), |kind| Err(Error::new(kind, "pin")))
    }

    async fn leave(&self, _: &Grant) -> Result<()> {
        self.script.left.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}
