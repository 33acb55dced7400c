//! The keeper: the engine of every client, whatever its backend.
//!
//! It runs as tasks on a tokio runtime:
//!
//! * One [`session_task`] per client opens the session, renews it by heartbeats, and opens a new one after a loss.
//! * One [`clock_watch`] per client reads the clock for all holds.
//! * A [`claim_task`] goes from the first request of an attempt to its grant. Callers own no future with effects: they
//!   wait on a [`Ticket`], and dropping it only makes the attempt give up.
//! * A held lock has no task. The call that ends a hold starts its [`ending`], which sends the release.
//! * The first poll of a claim task, and of the release that a caller waits for, is made by the caller; the runtime drives
//!   the rest ([`Runtime::start_here`]), one of them [`parked`].
//! * Nothing overtakes the requests of earlier calls by that ([`unsent`], [`in_order`]).
//! * A few workers per session retry the [`releases`] that the store has not confirmed.
//!
//! Guards and tasks share the state in [`hold`], [`attempt`] and [`reentry`]; neither side waits for the other. Tasks share
//! [`hold_table`] and [`current_session`].
//! Callers use timers of their own runtime for time limits ([`timer`]), because the keeper's runtime may be another
//! one.
//!
//! Failure cases and the module that handles them:
//!
//! * The caller's future is dropped before, during or after the grant: [`attempt`]; a late grant is released at once.
//! * The deadline passes without an acknowledged renewal (server unreachable, process paused, executor blocked, machine
//!   suspended): [`hold`] stores the loss at the next clock check; [`ending`] releases the entry, or has
//!   [`session_task`] give up the session.
//! * The server reports that a hold or the session is over: [`session_task`] marks the holds lost at once.
//! * A release or a withdrawal is not confirmed for a ttl: [`releases`] and [`claim_task`] abandon the session.
//! * A future of the backend panics: [`caught`] returns an error. A release is retried; after an acquire, which may
//!   have left an entry, the session is abandoned.
//! * The server ends every session at once: [`session_task`] opens the next ones with growing pauses.
//! * Opening a session takes most of its ttl: [`session_task`] renews it before it is used.
//! * A grant, or the answer to its pin, arrives when fewer than two heartbeat intervals are left of its lifetime:
//!   [`claim_task`] requests a heartbeat at once, because the next regular one may be too late.
//! * The grant of a pinned hold comes when nobody wants it any more: [`claim_task`] releases it; a hold that a caller had
//!   is left to its pin.
//! * The runtime ends and drops every task: [`cleanup`] and [`closing`] return `Closed` to all who wait.

mod active_session;
mod admin;
mod attempt;
pub(crate) mod caught;
mod claim_task;
mod cleanup;
mod clock_watch;
mod closing;
mod current_session;
mod ending;
mod hold;
mod hold_table;
mod in_order;
mod loss;
mod observing;
mod parked;
mod powers;
mod reentry;
mod releases;
mod request;
#[cfg(feature = "testing")]
pub(crate) mod residue;
mod runtime;
mod session_task;
mod setup;
mod share;
mod timer;
mod unsent;

use std::{future::pending, sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use self::{
    attempt::AcquireAnswer,
    loss::LossReason,
    powers::Proclaims,
    request::{LockRequest, WaitPolicy},
    runtime::Runtime,
    setup::{ConnectPolicy, Setup},
    share::HoldShare,
};
use self::{
    attempt::{Attempt, Ticket},
    caught::{caught, panicked},
    claim_task::ClaimTask,
    clock_watch::ClockWatch,
    current_session::CurrentSession,
    hold_table::HoldTable,
    reentry::{ReentryTable, WaitStart},
    session_task::SessionTask,
};
use crate::{
    Clock, Error, ErrorKind, LockName, Result, StatusWatch,
    backend::{Backend, BackendInfo, ClaimSource, Promises},
    limits::{RELEASE_ANSWER_MAX, RELEASES_UNCONFIRMED_MAX, WAITERS_PER_CLIENT_MAX},
    metrics::{self, AcquireCall, Counted},
};

/// The engine of one client, shared by its handles and its tasks.
#[derive(Debug)]
pub(crate) struct Keeper {
    backend: Arc<dyn Backend>,
    info: BackendInfo,
    ttl: Duration,
    claims: ClaimSource,
    clock: Clock,
    runtime: Runtime,
    current: CurrentSession,
    holds: Arc<HoldTable>,
    reentry: ReentryTable,
    /// Bounds the callers that wait and the attempts that are being withdrawn.
    waiter_permits: Arc<Semaphore>,
    /// The claim tasks, the holds, and the workers that retry releases.
    claim_tasks: TaskTracker,
    /// Cancelled by `drain` and with `closing`: no new claims.
    refusing: CancellationToken,
    /// Cancelled by `close`, and when the last handle is dropped.
    closing: CancellationToken,
}

impl Keeper {
    /// Starts the tasks of a client, and waits for the first session as long as the setup says.
    pub(crate) async fn start(setup: Setup) -> Result<Arc<Self>> {
        let Setup { backend, ttl, label, clock, runtime, connect_policy } = setup;
        let keeper = Arc::new(Self {
            info: backend.info(),
            backend,
            ttl,
            claims: ClaimSource::new(label.as_deref()),
            clock,
            runtime,
            current: CurrentSession::new(ttl),
            holds: Arc::default(),
            reentry: ReentryTable::default(),
            waiter_permits: Arc::new(Semaphore::new(WAITERS_PER_CLIENT_MAX)),
            claim_tasks: TaskTracker::new(),
            refusing: CancellationToken::new(),
            closing: CancellationToken::new(),
        });
        #[cfg(feature = "testing")]
        residue::note_started(&keeper);
        let Self { runtime, holds, clock, closing, .. } = &*keeper;
        runtime.run_parked(closing.clone());
        metrics::start(keeper.info.scheme);
        runtime.spawn(ClockWatch::new(Arc::clone(holds), clock.clone(), closing.clone()).run());
        runtime.spawn(SessionTask::new(Arc::clone(&keeper), connect_policy).run());
        if connect_policy != ConnectPolicy::Lazy {
            // If this future is dropped or fails, the session that is being opened is closed.
            let abandoned = closing.clone().drop_guard();
            let time_limit = async {
                match connect_policy {
                    ConnectPolicy::Until(time) => runtime.sleep_until(time).await,
                    ConnectPolicy::OneAttempt | ConnectPolicy::Unlimited | ConnectPolicy::Lazy => {
                        pending().await
                    }
                }
            };
            keeper.current.wait_first(time_limit).await?;
            abandoned.disarm();
        }
        Ok(keeper)
    }

    pub(crate) fn info(&self) -> &BackendInfo {
        &self.info
    }

    pub(crate) fn promises(&self) -> Promises {
        self.backend.promises()
    }

    /// Returns the ttl that the server granted to the latest session.
    pub(crate) fn granted_ttl(&self) -> Duration {
        self.current.granted_ttl()
    }

    pub(crate) fn status(&self) -> StatusWatch {
        self.current.status(self.clock.clone())
    }

    /// Acquires a lock: re-enters it, joins the waiting attempt of the same owner, or starts an attempt.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        request: &LockRequest,
        policy: WaitPolicy,
    ) -> AcquireAnswer {
        // A loop of acquires that are all answered at once must let other tasks run, the heartbeat among them.
        tokio::task::coop::consume_budget().await;
        let call = AcquireCall::begin(self.info.scheme);
        let mut ticket = match self.begin(request, policy) {
            Ok(AcquireStart::Held(share)) => {
                call.reentered();
                return Ok(Some(share));
            }
            Ok(AcquireStart::Answered(answer)) => {
                return call.ended(used(self.unless_shared(answer, request), request));
            }
            Ok(AcquireStart::Waits(ticket)) => ticket,
            Err(error) => return call.ended(Err(error)),
        };
        let is_try = matches!(policy, WaitPolicy::Try(_));
        let _waiter = (!is_try).then(|| Counted::waiter(self.info.scheme));
        let time_limit = async {
            match policy {
                WaitPolicy::Unlimited => pending().await,
                WaitPolicy::Until(time) | WaitPolicy::Try(time) => self.runtime.sleep_until(time).await,
            }
        };
        let answer = tokio::select! {
            biased;
            answer = ticket.answer() => answer,
            () = time_limit => ticket.timed_out(self.current.outage("acquire")),
        };
        call.ended(used(self.unless_shared(answer, request), request))
    }

    /// Returns a share of the owner's hold instead of the answer that the lock is busy: another call of the owner may have
    /// got the hold meanwhile.
    fn unless_shared(&self, answer: AcquireAnswer, request: &LockRequest) -> AcquireAnswer {
        if matches!(answer, Ok(None))
            && let Some(key) = request.key()
        {
            return self.reentry.enter(&key);
        }
        answer
    }

    fn begin(self: &Arc<Self>, request: &LockRequest, policy: WaitPolicy) -> Result<AcquireStart> {
        let key = request.key();
        if let Some(key) = &key
            && let Some(share) = self.reentry.enter(key)?
        {
            return Ok(AcquireStart::Held(share));
        }
        if self.refusing.is_cancelled() {
            return Err(self.current.not_open("acquire").with_lock(&request.name));
        }
        if request.at_least.is_some() && !self.info.powers.pins {
            return Err(self.unsupported("hold at least").with_lock(&request.name));
        }
        // Taken before anything is started: without a permit the call fails and leaves nothing behind.
        let permit = self.waiter_permit(&request.name)?;
        let waits = !matches!(policy, WaitPolicy::Try(_));
        let (attempt, ticket) = match &key {
            Some(key) if waits => match self.reentry.wait(key, self.runtime.unsent())? {
                WaitStart::Held(share) => return Ok(AcquireStart::Held(share)),
                WaitStart::Joined(ticket) => return Ok(AcquireStart::Waits(ticket.with_permit(permit))),
                WaitStart::New(attempt, ticket) => (attempt, ticket),
            },
            _ => Attempt::begin(request.name.clone(), self.runtime.unsent()),
        };
        let task = ClaimTask::new(self, request, waits, attempt, permit);
        self.runtime.start_here(task.run());
        let mut ticket = ticket;
        Ok(match ticket.take() {
            Some(answer) => AcquireStart::Answered(answer),
            None => AcquireStart::Waits(ticket),
        })
    }

    /// Returns `Closed` if the client refuses new claims.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.refusing.is_cancelled() { Err(self.current.not_open("acquire")) } else { Ok(()) }
    }

    /// Waits until this instant, or until the client refuses new claims.
    pub(crate) async fn pause_until(&self, until: tokio::time::Instant) {
        tokio::select! {
            () = self.refusing.cancelled() => {}
            () = self.sleep_until(until) => {}
        }
    }

    /// Waits until this instant.
    pub(crate) async fn sleep_until(&self, until: tokio::time::Instant) {
        self.runtime.sleep_until(until).await;
    }

    /// Gives back a share of a hold; if it was the last one, waits until the release is confirmed.
    pub(crate) async fn release(&self, share: HoldShare) -> Result<()> {
        tokio::task::coop::consume_budget().await;
        let Some((hold, ending)) = share.leave()? else { return Ok(()) };
        if let Some(ending) = ending {
            ending.start_here(Arc::clone(&hold));
        }
        if let Some(outcome) = hold.outcome() {
            return outcome;
        }
        let time_limit = self.runtime.sleep_until(tokio::time::Instant::now() + RELEASE_ANSWER_MAX);
        tokio::select! {
            biased;
            outcome = hold.finished() => outcome,
            () = time_limit => Err(hold.unconfirmed()),
        }
    }

    /// Returns a permit for one more caller.
    fn waiter_permit(&self, name: &LockName) -> Result<OwnedSemaphorePermit> {
        let refused =
            |why: String| Error::new(ErrorKind::Unavailable, "acquire").with_lock(name).with_message(why);
        if self.current.get().is_some_and(|active| active.releases().len() >= RELEASES_UNCONFIRMED_MAX) {
            let why = format!("{RELEASES_UNCONFIRMED_MAX} releases of this client are not confirmed yet");
            return Err(refused(why));
        }
        Arc::clone(&self.waiter_permits).try_acquire_owned().map_err(|_| {
            refused(format!("{WAITERS_PER_CLIENT_MAX} callers of this client are waiting already"))
        })
    }

    /// Returns the error for a power that the backend does not have.
    fn unsupported(&self, operation: &'static str) -> Error {
        let why = format!(
            "the backend {} does not have this power; `info().powers` lists those it has",
            self.info.scheme
        );
        Error::new(ErrorKind::Unsupported, operation).with_message(why)
    }

    /// Starts closing the client: new calls return `Closed`, and the session task does the rest.
    pub(crate) fn begin_close(&self) {
        self.refusing.cancel();
        self.closing.cancel();
    }

    /// Refuses new claims, waits at most `limit` until all holds are released, and closes the client.
    pub(crate) async fn drain(&self, limit: Duration) -> Result<()> {
        self.refusing.cancel();
        self.claim_tasks.close();
        let time_limit = async {
            match tokio::time::Instant::now().checked_add(limit) {
                Some(time) => self.runtime.sleep_until(time).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.claim_tasks.wait() => {}
            () = time_limit => {}
        }
        let held = self.holds.held();
        let closed = self.close().await;
        if held == 0 {
            return closed;
        }
        let lost = Error::new(ErrorKind::Lost, "drain")
            .with_message(format!("locks that were still held after {limit:?}: {held}"));
        Err(match closed {
            Ok(()) => lost,
            Err(unclosed) => lost.with_source(unclosed),
        })
    }
}

/// How an acquire starts.
enum AcquireStart {
    Held(HoldShare),
    /// The attempt ended within its first poll.
    Answered(AcquireAnswer),
    Waits(Ticket),
}

/// Notes that a caller gets a guard, if this is one. Where the hold ended before, nobody had it, and its pin is removed:
/// then the caller that asked for the pin gets no guard.
fn used(answer: AcquireAnswer, request: &LockRequest) -> AcquireAnswer {
    if let Ok(Some(share)) = &answer
        && !share.hold().note_used()
        && request.at_least.is_some()
        && let Some(lost) = share.hold().loss()
    {
        return Err(lost);
    }
    answer
}

fn closed(operation: &'static str) -> Error {
    Error::new(ErrorKind::Closed, operation)
}
