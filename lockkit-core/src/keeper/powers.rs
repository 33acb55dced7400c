//! What the keeper does for elections and for records: requests of the session that is open, on the keeper's runtime.
//!
//! Failure cases:
//!
//! * The caller's future is dropped: the request is still driven to its end; a proclaim and a written record may take effect.
//! * The reply of a proclaim or a written record is lost: it is repeated until the store answers or the hold ends. The
//!   next proclaim is sent only after that, so proclaims never overtake each other.
//! * No session is open: a read fails as `Unavailable` after [`TRY_ANSWER_MAX`]; the others wait for the end of their hold.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Semaphore, mpsc};

use super::{
    Keeper, active_session::ActiveSession, caught, closed, hold::Hold, loss::LossReason, observing::Observing,
};
use crate::{
    Error, ErrorKind, LockName, Metadata, Proposal, Result,
    backend::{Grant, LeaderEntry, Session, retry_pauses},
    limits::{OBSERVED_CHANGES_MAX, PROCLAIMS_WAITING_MAX, TRY_ANSWER_MAX},
};
/// The proclaims of one leadership, which are sent one after another.
#[derive(Debug)]
pub(crate) struct Proclaims {
    turn: Semaphore,
    /// Bounds the proclaims that are not confirmed yet; their callers may have left.
    waiting: Arc<Semaphore>,
    /// The highest number that the store has confirmed.
    confirmed: AtomicU64,
}

impl Default for Proclaims {
    fn default() -> Self {
        Self {
            turn: Semaphore::new(1),
            waiting: Arc::new(Semaphore::new(PROCLAIMS_WAITING_MAX)),
            confirmed: AtomicU64::new(0),
        }
    }
}

/// A request that only a holder may make; the store answers whether it is still the holder.
#[derive(Debug)]
enum HolderRequest {
    Proclaim(Metadata),
    Record { text: String, keep: Duration },
}

impl HolderRequest {
    fn operation(&self) -> &'static str {
        match self {
            Self::Proclaim(_) => "proclaim",
            Self::Record { .. } => "write record",
        }
    }

    /// Sends the request; `None` if the session does not have this power.
    fn send<'a>(
        &'a self,
        session: &'a dyn Session,
        grant: &'a Grant,
    ) -> Option<Pin<Box<dyn Future<Output = Result<bool>> + Send + 'a>>> {
        Some(match self {
            Self::Proclaim(metadata) => session.elections()?.proclaim(grant, metadata),
            Self::Record { text, keep } => session.records()?.write(grant, text, *keep),
        })
    }
}

impl Keeper {
    /// Returns an error if the backend has no elections.
    pub(crate) fn require_elections(&self) -> Result<()> {
        if self.info.powers.elections { Ok(()) } else { Err(self.unsupported("elect")) }
    }

    /// Returns an error if the backend has no records.
    pub(crate) fn require_records(&self) -> Result<()> {
        if self.info.powers.records { Ok(()) } else { Err(self.unsupported("once per")) }
    }

    pub(crate) async fn leader(self: &Arc<Self>, name: &LockName) -> Result<Option<LeaderEntry>> {
        let (keeper, asked) = (Arc::clone(self), name.clone());
        self.in_session("read leader", name, async move |active| match active.session().elections() {
            Some(elections) => elections.leader(&asked).await,
            None => Err(keeper.unsupported("read leader")),
        })
        .await
    }

    /// Starts to observe the leader of a lock; ends when the receiver is dropped or the client is closed.
    pub(crate) fn observe(self: &Arc<Self>, name: LockName) -> mpsc::Receiver<Result<Option<LeaderEntry>>> {
        let (changes, observer) = mpsc::channel(OBSERVED_CHANGES_MAX);
        self.runtime.spawn(Observing::new(Arc::clone(self), name, changes).run());
        observer
    }

    pub(crate) async fn record(self: &Arc<Self>, name: &LockName) -> Result<Option<String>> {
        let (keeper, asked) = (Arc::clone(self), name.clone());
        self.in_session("read record", name, async move |active| match active.session().records() {
            Some(records) => records.read(&asked).await,
            None => Err(keeper.unsupported("read record")),
        })
        .await
    }

    /// Writes the record of a held lock, which the store keeps for `keep`.
    pub(crate) async fn write_record(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        record: String,
        keep: Duration,
    ) -> Result<()> {
        let (keeper, held) = (Arc::clone(self), Arc::clone(hold));
        let write = HolderRequest::Record { text: record, keep };
        let writing = self.runtime.spawn(async move { keeper.while_held(&held, write).await });
        writing.await.unwrap_or_else(|_| Err(closed("write record").with_lock(hold.grant().name())))
    }

    /// Replaces what a held lock proposes, after the earlier proclaims of `proclaims`.
    pub(crate) async fn proclaim(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        proclaims: &Arc<Proclaims>,
        proposal: Proposal,
    ) -> Result<()> {
        let waiting = Arc::clone(&proclaims.waiting).try_acquire_owned().map_err(|_| {
            Error::new(ErrorKind::Unavailable, "proclaim")
                .with_lock(hold.grant().name())
                .with_message(format!("{PROCLAIMS_WAITING_MAX} values are waiting to be proclaimed already"))
        })?;
        let (keeper, held, proclaims) = (Arc::clone(self), Arc::clone(hold), Arc::clone(proclaims));
        let proclaiming = self.runtime.spawn(async move {
            let _waiting = waiting;
            let _turn = proclaims.turn.acquire().await;
            let number = proposal.number;
            if number < proclaims.confirmed.load(Ordering::Acquire) {
                // A later call was sent first, and has replaced this value.
                return Ok(());
            }
            let metadata = held.grant().metadata().clone().with_proposal(proposal);
            keeper.while_held(&held, HolderRequest::Proclaim(metadata)).await?;
            proclaims.confirmed.store(number, Ordering::Release);
            Ok(())
        });
        proclaiming.await.unwrap_or_else(|_| Err(closed("proclaim").with_lock(hold.grant().name())))
    }

    /// Repeats a request about a hold until the store has answered, at most until the hold ends.
    async fn while_held(&self, hold: &Arc<Hold>, request: HolderRequest) -> Result<()> {
        let operation = request.operation();
        let mut pauses = retry_pauses();
        loop {
            if hold.end().is_some() {
                return Err(gone(hold));
            }
            // While a hold lasts, its session is the open one.
            let active = tokio::select! {
                active = self.active_session() => active.ok_or_else(|| self.not_open(operation))?,
                _ = hold.ended() => return Err(gone(hold)),
            };
            let sent = request.send(&**active.session(), hold.grant());
            let Some(sent) = sent else { return Err(self.unsupported(operation)) };
            match caught(operation, sent).await.unwrap_or_else(Err) {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(gone(hold)),
                Err(error) if error.is_temporary() => {}
                Err(error) => {
                    return Err(hold.loss().unwrap_or_else(|| error.with_lock(hold.grant().name())));
                }
            }
            tokio::select! {
                () = pauses.wait() => {}
                _ = hold.ended() => return Err(gone(hold)),
            }
        }
    }

    /// Makes a request in the open session, driven to its end by the keeper's runtime.
    async fn in_session<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
        self: &Arc<Self>,
        operation: &'static str,
        name: &LockName,
        request: impl FnOnce(Arc<ActiveSession>) -> F + Send + 'static,
    ) -> Result<T> {
        let answer = async {
            // Waited for by the caller: a task for each of them would pile up during an outage.
            let active = self.active_session().await.ok_or_else(|| self.not_open(operation))?;
            let asking = self.runtime.spawn(async move { caught(operation, request(active)).await? });
            asking.await.unwrap_or_else(|_| Err(closed(operation)))
        };
        let limit = self.runtime.sleep_until(tokio::time::Instant::now() + TRY_ANSWER_MAX);
        let unavailable = |why| Error::new(ErrorKind::Unavailable, operation).with_message(why);
        tokio::select! {
            biased;
            answer = answer => answer,
            () = limit => Err(unavailable("the store did not answer in time")),
        }
        .map_err(|error| match error.kind() {
            // The session was closed, not the client: another one follows.
            ErrorKind::Closed if !self.refusing.is_cancelled() => {
                unavailable("the session ended").with_source(error)
            }
            _ => error,
        })
        .map_err(|error| error.with_lock(name))
    }
}

/// Returns why the hold has ended. If it has not, the store has no entry of it any more: it is lost now, and not only at
/// the next heartbeat.
fn gone(hold: &Arc<Hold>) -> Error {
    hold.lose(LossReason::EntryGone);
    let released = || Error::new(ErrorKind::Lost, "hold").with_lock(hold.grant().name());
    hold.loss().unwrap_or_else(|| released().with_message("it was released"))
}
