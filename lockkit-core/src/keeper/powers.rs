//! What the keeper does for elections and for records: requests of the session that is open, on the keeper's runtime.
//!
//! Failure cases:
//!
//! * The caller's future is dropped: the request is still driven to its end; a proclaim and a written record may take effect.
//! * The reply of a proclaim or a written record is lost: it is repeated until the store answers or the hold ends. The
//!   next proclaim is sent only after that, so proclaims never overtake each other.
//! * The backend cuts a proclaim or a written record off because its session is lost, which the keeper does not know yet:
//!   the call waits for the end of its hold, and returns why that was lost.
//! * No session is open: a read fails after [`TRY_ANSWER_MAX`], as `Unavailable` or, if the store refuses a new one, as
//!   `Denied`; the others wait for the end of their hold.

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
    Keeper, active_session::ActiveSession, attempt::silence, caught, closed, hold::Hold, loss::LossReason,
    observing::Observing,
};
use crate::{
    Error, ErrorKind, LockName, Metadata, Proposal, Result,
    backend::{LeaderEntry, Session, retry_pauses},
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

/// The requests of elections and of records.
impl Keeper {
    /// Returns an error if the backend has no elections.
    pub(crate) fn require_elections(&self) -> Result<()> {
        let has_elections = self.info.powers.elections;
        if has_elections { Ok(()) } else { Err(self.unsupported("elect")) }
    }

    /// Returns an error if the backend has no records.
    pub(crate) fn require_records(&self) -> Result<()> {
        let has_records = self.info.powers.records;
        if has_records { Ok(()) } else { Err(self.unsupported("once per")) }
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
        text: String,
        keep: Duration,
    ) -> Result<()> {
        let request = HolderRequest::new(self, hold, Write::Record { text, keep });
        let writing = self.runtime.spawn(request.run());
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
            HolderRequest::new(&keeper, &held, Write::Proposal(metadata)).run().await?;
            proclaims.confirmed.store(number, Ordering::Release);
            Ok(())
        });
        proclaiming.await.unwrap_or_else(|_| Err(closed("proclaim").with_lock(hold.grant().name())))
    }

    /// Makes a request in the open session, driven to its end by the keeper's runtime.
    async fn in_session<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
        &self,
        operation: &'static str,
        name: &LockName,
        request: impl FnOnce(Arc<ActiveSession>) -> F + Send + 'static,
    ) -> Result<T> {
        let Keeper { current, runtime, refusing, .. } = self;
        let answer = async {
            // Waited for by the caller: a task for each of them would pile up during an outage.
            let active = current.wait_open().await.ok_or_else(|| current.not_open(operation))?;
            let asking = runtime.spawn(async move { caught(operation, request(active)).await? });
            asking.await.unwrap_or_else(|_| Err(closed(operation)))
        };
        let limit = runtime.sleep_until(tokio::time::Instant::now() + TRY_ANSWER_MAX);
        let unavailable = |why| Error::new(ErrorKind::Unavailable, operation).with_message(why);
        tokio::select! {
            biased;
            answer = answer => answer,
            () = limit => Err(current.outage(operation).unwrap_or_else(|| silence(operation))),
        }
        .map_err(|error| match error.kind() {
            // The session was closed, not the client: another one follows.
            ErrorKind::Closed if !refusing.is_cancelled() => {
                unavailable("the session ended").with_source(error)
            }
            _ => error,
        })
        .map_err(|error| error.with_lock(name))
    }
}

/// A write that only a holder may make; the store answers whether it is still the holder.
struct HolderRequest {
    keeper: Arc<Keeper>,
    hold: Arc<Hold>,
    write: Write,
}

enum Write {
    Proposal(Metadata),
    Record { text: String, keep: Duration },
}

impl HolderRequest {
    fn new(keeper: &Arc<Keeper>, hold: &Arc<Hold>, write: Write) -> Self {
        Self { keeper: Arc::clone(keeper), hold: Arc::clone(hold), write }
    }

    fn operation(&self) -> &'static str {
        match self.write {
            Write::Proposal(_) => "proclaim",
            Write::Record { .. } => "write record",
        }
    }

    /// Repeats the request until the store has answered, at most until the hold ends.
    async fn run(self) -> Result<()> {
        let Self { keeper, hold, .. } = &self;
        let operation = self.operation();
        let mut pauses = retry_pauses();
        loop {
            if hold.end().is_some() {
                return Err(gone(hold));
            }
            // While a hold lasts, its session is the open one.
            let active = tokio::select! {
                active = keeper.current.wait_open() => active.ok_or_else(|| keeper.current.not_open(operation))?,
                _ = hold.ended() => return Err(gone(hold)),
            };
            let Some(sent) = self.send(&**active.session()) else {
                return Err(keeper.unsupported(operation));
            };
            match caught(operation, sent).await.unwrap_or_else(Err) {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(gone(hold)),
                Err(error) if error.is_temporary() => {}
                // The session was closed, not the client: the hold ends as soon as the keeper learns of it.
                Err(error) if error.kind() == ErrorKind::Closed && !keeper.closing.is_cancelled() => {}
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

    /// Sends the request once; `None` if the session does not have this power.
    fn send<'a>(
        &'a self,
        session: &'a dyn Session,
    ) -> Option<Pin<Box<dyn Future<Output = Result<bool>> + Send + 'a>>> {
        let grant = self.hold.grant();
        Some(match &self.write {
            Write::Proposal(metadata) => session.elections()?.proclaim(grant, metadata),
            Write::Record { text, keep } => session.records()?.write(grant, text, *keep),
        })
    }
}

/// Returns why the hold has ended. If it has not, the store has no entry of it any more: it is lost now, and not only at
/// the next heartbeat.
fn gone(hold: &Arc<Hold>) -> Error {
    hold.lose(LossReason::EntryGone);
    let released = || Error::new(ErrorKind::Lost, "hold").with_lock(hold.grant().name());
    hold.loss().unwrap_or_else(|| released().with_message("it was released"))
}
