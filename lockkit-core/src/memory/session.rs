//! The memory server as a [`Session`].
//!
//! * A reply is lost: requests are idempotent by session and claim id, and are repeated until the server answers.
//! * A claim gives up while its enqueue request is in flight: the withdrawal follows it, and requests keep their order.
//! * The server ends the session: each waiting claim ends with `EntryGone`; `lost` or the next heartbeat reports the
//!   holds.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use async_trait::async_trait;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    MemoryServer,
    store::{ClaimState, Entry, OpenedSession, SessionId, Store},
};
use crate::{
    BootInstant, Clock, Error, ErrorKind, Result,
    backend::{Acquired, Claim, ClaimId, Elections, Grant, Loss, Pins, Records, Renewal, Renewals, Session},
    limits::RETRY_PAUSE_MIN,
    sync::{Mutex, lock},
};

/// A session at a memory server.
#[derive(Debug)]
pub(super) struct MemorySession {
    server: MemoryServer,
    id: SessionId,
    ttl: Duration,
    clock: Clock,
    /// Send time of the last answered heartbeat.
    armed_at: Mutex<BootInstant>,
    /// Cancelled by the server when the session ends.
    ended: CancellationToken,
    /// The holds that an operator has broken.
    broken: tokio::sync::Mutex<mpsc::UnboundedReceiver<ClaimId>>,
    /// Cancelled by `close`.
    closed: CancellationToken,
}

impl MemorySession {
    pub(super) fn new(
        server: MemoryServer,
        opened: OpenedSession,
        ttl: Duration,
        clock: Clock,
        armed_at: BootInstant,
    ) -> Self {
        let OpenedSession { id, ended, broken } = opened;
        let (armed_at, broken) = (Mutex::new(armed_at), tokio::sync::Mutex::new(broken));
        Self { server, id, ttl, clock, armed_at, ended, broken, closed: CancellationToken::new() }
    }

    async fn acquire_until_answered(&self, claim: &Claim) -> Acquired {
        let mut state = self.enqueue(claim).await;
        loop {
            let granted = match state {
                ClaimState::Holder(token) => {
                    return Acquired::Granted(Grant::new(claim, token, *lock(&self.armed_at)));
                }
                ClaimState::Busy => {
                    claim.note_contended();
                    return Acquired::GaveUp;
                }
                ClaimState::Absent => return Acquired::EntryGone,
                ClaimState::Waiter(granted) => granted,
            };
            claim.note_contended();
            tokio::select! {
                () = granted.notified() => {}
                () = self.ended.cancelled() => {}
                () = self.recheck_pause() => {}
                () = claim.give_up() => return self.withdraw(claim).await,
            }
            let (name, id) = (claim.name().clone(), claim.id());
            state = self.request_until_answered(move |store| store.claim_state(&name, id)).await;
        }
    }

    /// Sends a request once.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        operation: &'static str,
        request: impl FnOnce(&mut Store) -> T + Send + 'static,
    ) -> Result<T> {
        self.unless_closed(operation, answered(operation, self.ttl, self.server.request(operation, request)))
            .await?
    }

    async fn enqueue(&self, claim: &Claim) -> ClaimState {
        let (name, wait) = (claim.name().clone(), claim.wait());
        let (session, id, metadata) = (self.id, claim.id(), claim.shared_metadata().clone());
        self.request_until_answered(move |store| {
            let entry = Entry {
                session,
                claim: id,
                metadata: metadata.clone(),
                granted: None,
                token: None,
                pinned_until: None,
                left: false,
            };
            store.enqueue(&name, entry, wait)
        })
        .await
    }

    async fn withdraw(&self, claim: &Claim) -> Acquired {
        let (name, id) = (claim.name().clone(), claim.id());
        self.request_until_answered(move |store| store.remove(&name, id)).await;
        Acquired::GaveUp
    }

    /// Repeats a request until the server answers.
    async fn request_until_answered<T: Send + 'static>(
        &self,
        request: impl Fn(&mut Store) -> T + Clone + Send + 'static,
    ) -> T {
        loop {
            if let Ok(value) =
                answered("request", self.ttl, self.server.request("request", request.clone())).await
            {
                return value;
            }
            tokio::time::sleep(RETRY_PAUSE_MIN).await;
        }
    }

    /// Waits until the next re-check of a waiter. The memory server has no timer that ends expired sessions, so the
    /// timers of its waiters do.
    async fn recheck_pause(&self) {
        let recheck = Instant::now() + crate::backend::recheck_pause(self.ttl);
        let expiry = self.server.next_expiry().unwrap_or(recheck);
        tokio::time::sleep_until(expiry.min(recheck)).await;
        self.server.sweep();
    }

    /// Drops the work when the session is closed; the server then has removed everything of the session.
    async fn unless_closed<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = T> + Send,
    ) -> Result<T> {
        let closed = || Err(Error::new(ErrorKind::Closed, operation));
        if self.closed.is_cancelled() {
            return closed();
        }
        tokio::select! {
            biased;
            value = work => Ok(value),
            () = self.closed.cancelled() => closed(),
        }
    }
}

/// Waits for a reply for at most half a heartbeat interval: a heartbeat must end before the next one starts.
pub(super) async fn answered<T>(
    operation: &'static str,
    ttl: Duration,
    request: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut request = pin!(request);
    // Without a timer if it is answered at once, as most are.
    if let Poll::Ready(answer) = poll_fn(|context| Poll::Ready(request.as_mut().poll(context))).await {
        return answer;
    }
    // In a box of its own, as everything that is rare: the future stays small.
    Box::pin(tokio::time::timeout(ttl / 6, request)).await.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Unavailable, operation).with_message("the memory server did not answer"))
    })
}

#[async_trait]
impl Session for MemorySession {
    fn ttl(&self) -> Duration {
        self.ttl
    }

    async fn acquire(&self, claim: Claim) -> Result<Acquired> {
        self.unless_closed("acquire", self.acquire_until_answered(&claim)).await
    }

    async fn renew(&self, held: &[Grant]) -> Renewals {
        let asked: Vec<_> = held.iter().map(|grant| (grant.name().clone(), grant.claim())).collect();
        let (id, armed_at) = (self.id, self.clock.now());
        let request = self.server.request("renew", move |store| store.renew(id, &asked, Instant::now()));
        let answer = answered("renew", self.ttl, request).await;
        if matches!(answer, Ok(Some(_))) {
            *lock(&self.armed_at) = armed_at;
        }
        let of_session = match &answer {
            Err(error) => Renewal::Unknown(error.clone()),
            Ok(None) => Renewal::Gone,
            Ok(Some(_)) => Renewal::Renewed { armed_at },
        };
        let of_hold = |index: usize| match &answer {
            Err(error) => Renewal::Unknown(error.clone()),
            Ok(Some(still_held)) if still_held[index] => Renewal::Renewed { armed_at },
            Ok(_) => Renewal::Gone,
        };
        let holds = held.iter().enumerate().map(|(index, grant)| (grant.claim(), of_hold(index)));
        Renewals { session: of_session, holds: holds.collect() }
    }

    async fn release(&self, grant: &Grant) -> Result<()> {
        let (name, id) = (grant.name().clone(), grant.claim());
        self.ask("release", move |store| store.remove(&name, id)).await
    }

    async fn lost(&self) -> Loss {
        // Waiting for a message discards none.
        let broken = async { self.broken.lock().await.recv().await };
        tokio::select! {
            biased;
            () = self.ended.cancelled() => Loss::Session,
            // The channel ends with the session.
            broken = broken => broken.map_or(Loss::Session, Loss::Grant),
        }
    }

    async fn close(&self) -> Result<()> {
        self.closed.cancel();
        let id = self.id;
        let request = self.server.request("close", move |store| store.end(id, Instant::now()));
        answered("close", self.ttl, request).await
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
