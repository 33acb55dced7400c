//! The keeper: the one engine behind every client, whatever the backend.
//!
//! It runs as tasks on a tokio runtime:
//!
//! * one [`session`] task per client opens the session, renews it beat by beat, and opens a new one when it is lost;
//! * one [`life`] task per claim owns it from the first request to the first try of the release. No future with effects
//!   is ever dropped half-way, because none belongs to a caller: callers wait on a [`Ticket`](attempt::Ticket), and
//!   dropping that only makes the task give up. The slot of a release is the task itself, made before the grant;
//! * a few workers per session repeat the [`releases`] that were not confirmed.
//!
//! What guards and tasks share without either waiting for the other stands in [`hold`], [`attempt`] and [`reentry`].
//! Callers keep their time limits by timers of their own ([`timer`]): the keeper's runtime may be another one.
//!
//! Failure cases, and what answers them:
//!
//! * The caller's future is dropped before, during or after the grant: [`attempt`]; a late grant is released at once.
//! * The deadline passes without an acknowledged renewal (server away, process paused, executor blocked, machine
//!   suspended): [`hold`] latches the loss at the next look, [`life`] gives the entry back or has [`session`] abandon
//!   the session.
//! * The server says that a hold or the session is over: [`session`] marks the holds lost at once.
//! * A release or a withdrawal is not confirmed for a ttl: [`releases`] and [`life`] abandon the session.
//! * A future of the backend panics: an error. A release is tried again; after an acquire, which may have left an entry
//!   behind, the session is abandoned.
//! * The server ends every session at once: [`session`] opens the next ones with growing pauses.
//! * The open of a session takes most of its ttl: [`session`] renews it before anybody relies on it.
//! * A grant comes when its lifetime is more than a beat old: [`session`] beats at once, the next beat may be too late.
//! * The runtime ends: every task's future is dropped, and what it owed is answered `Closed` (see [`cleanup`]).

mod attempt;
mod cleanup;
mod closing;
mod deadline;
mod hold;
mod life;
mod reentry;
mod releases;
mod runtime;
mod session;
mod timer;

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock},
    task::Poll,
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use self::{attempt::Answer, hold::Entered, runtime::Runtime};
use self::{
    attempt::{Attempt, Ticket},
    closing::LastWord,
    hold::Hold,
    reentry::{Key, Met, Reentry},
    session::{Current, Live},
};
use crate::{
    Clock, Error, ErrorKind, LockName, Metadata, Owner, Result, Status,
    backend::{Backend, BackendInfo, ClaimId, Grant, Inspection},
    limits::{RELEASE_ANSWER_MAX, RELEASES_UNCONFIRMED_MAX, WAITERS_PER_CLIENT_MAX},
    sync::{Mutex, lock},
};

/// What a caller asks for.
#[derive(Clone, Debug)]
pub(crate) struct LockRequest {
    pub(crate) name: LockName,
    pub(crate) owner: Option<Owner>,
    pub(crate) max_hold: Option<Duration>,
}

impl LockRequest {
    fn key(&self) -> Option<Key> {
        self.owner.clone().map(|owner| (self.name.clone(), owner))
    }
}

/// How long a caller waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitPolicy {
    /// As long as it takes.
    Unlimited,
    /// In the queue, until this moment.
    Until(tokio::time::Instant),
    /// Not at all: one question to the server, answered before this moment.
    Try(tokio::time::Instant),
}

/// The engine of one client, shared by its handles and its tasks.
#[derive(Debug)]
pub(crate) struct Keeper {
    backend: Arc<dyn Backend>,
    info: BackendInfo,
    ttl: Duration,
    /// As the server granted it to the last session.
    granted_ttl: Mutex<Duration>,
    label: Option<String>,
    clock: Clock,
    runtime: Runtime,
    current: watch::Sender<Current>,
    status: watch::Sender<Status>,
    holds: Mutex<HashMap<ClaimId, Arc<Hold>>>,
    reentry: Reentry,
    /// Places for callers who wait, and for attempts that are being withdrawn.
    places: Arc<Semaphore>,
    /// The life tasks.
    lives: TaskTracker,
    /// Set by `drain` and whatever sets `closing`: nothing new is claimed.
    refusing: CancellationToken,
    /// Set by `close`, and when the last handle is dropped.
    closing: CancellationToken,
    /// When a client that closes has to be done with it; set when its session task takes notice.
    close_until: OnceLock<tokio::time::Instant>,
}

/// What a client is made of.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) ttl: Duration,
    pub(crate) label: Option<String>,
    pub(crate) clock: Clock,
    pub(crate) runtime: Runtime,
}

impl Keeper {
    /// Opens the first session and starts keeping it.
    pub(crate) async fn start(setup: Setup) -> Result<Arc<Self>> {
        let Setup { backend, ttl, label, clock, runtime } = setup;
        let keeper = Arc::new(Self {
            info: backend.info(),
            backend,
            ttl,
            granted_ttl: Mutex::new(ttl),
            label,
            clock,
            runtime,
            current: watch::Sender::new(Current::Opening),
            status: watch::Sender::new(Status::Lost),
            holds: Mutex::default(),
            reentry: Reentry::default(),
            places: Arc::new(Semaphore::new(WAITERS_PER_CLIENT_MAX)),
            lives: TaskTracker::new(),
            refusing: CancellationToken::new(),
            closing: CancellationToken::new(),
            close_until: OnceLock::new(),
        });
        // Should this future be dropped, the session that is just being opened must not outlive it.
        let abandoned = keeper.closing.clone().drop_guard();
        let mut opened = keeper.current.subscribe();
        keeper.runtime.spawn(session::keep_sessions(LastWord(Arc::clone(&keeper))));
        let first = opened.wait_for(|current| !matches!(current, Current::Opening)).await;
        match first.as_deref() {
            Ok(Current::Open(_)) => {}
            Ok(Current::Closed(Err(error))) => return Err(error.clone()),
            _ => return Err(closed("connect")),
        }
        drop(first);
        abandoned.disarm();
        Ok(keeper)
    }

    /// Looks into the store; on the keeper's runtime, which drives the backend's connections.
    pub(crate) async fn inspect(&self, name: LockName) -> Result<Inspection> {
        let backend = Arc::clone(&self.backend);
        let looking = self.runtime.spawn(async move {
            match backend.admin() {
                Some(admin) => admin.inspect(&name).await,
                None => Err(Error::new(ErrorKind::Unsupported, "inspect").with_lock(&name)),
            }
        });
        looking.await.unwrap_or_else(|_| Err(closed("inspect")))
    }

    pub(crate) fn info(&self) -> &BackendInfo {
        &self.info
    }

    /// The lifetime that the server granted to the session, or last granted to one.
    pub(crate) fn granted_ttl(&self) -> Duration {
        *lock(&self.granted_ttl)
    }

    pub(crate) fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Takes a lock: re-enters it, waits with the attempt of the same owner, or starts one.
    pub(crate) async fn acquire(self: &Arc<Self>, request: &LockRequest, policy: WaitPolicy) -> Answer {
        let asked = Instant::now();
        let mut ticket = match self.begin(request, policy)? {
            Begun::Held(entered) => return Ok(Some(entered)),
            Begun::Waits(ticket) => ticket,
        };
        let time_is_up = async {
            match policy {
                WaitPolicy::Unlimited => std::future::pending().await,
                WaitPolicy::Until(time) | WaitPolicy::Try(time) => self.runtime.reach(time).await,
            }
        };
        let answer = tokio::select! {
            biased;
            answer = ticket.answer() => answer,
            () = time_is_up => ticket.late(),
        };
        crate::metrics::acquired(&self.info, asked.elapsed(), &answer);
        answer
    }

    fn begin(self: &Arc<Self>, request: &LockRequest, policy: WaitPolicy) -> Result<Begun> {
        let key = request.key();
        if let Some(key) = &key
            && let Some(entered) = self.reentry.enter(key)?
        {
            return Ok(Begun::Held(entered));
        }
        if self.refusing.is_cancelled() {
            return Err(closed("acquire").with_lock(&request.name));
        }
        // Before anything is started: one who finds no place leaves nothing behind.
        let place = self.place(&request.name)?;
        let waits = !matches!(policy, WaitPolicy::Try(_));
        let (attempt, ticket) = match &key {
            Some(key) if waits => match self.reentry.wait(key)? {
                Met::Held(entered) => return Ok(Begun::Held(entered)),
                Met::Joined(ticket) => return Ok(Begun::Waits(ticket.keeping(place))),
                Met::New(attempt, ticket) => (attempt, ticket),
            },
            _ => Attempt::begin(request.name.clone()),
        };
        let life = life::live(Arc::clone(self), request.clone(), waits, attempt, place);
        self.runtime.spawn(self.lives.track_future(life));
        Ok(Begun::Waits(ticket))
    }

    /// Leaves a hold, and waits until its release is confirmed when this was the last guard.
    pub(crate) async fn release(&self, entered: Entered) -> Result<()> {
        let Some(hold) = entered.leave()? else { return Ok(()) };
        let time_is_up = self.runtime.reach(tokio::time::Instant::now() + RELEASE_ANSWER_MAX);
        tokio::select! {
            biased;
            outcome = hold.finished() => outcome,
            () = time_is_up => Err(hold.unconfirmed()),
        }
    }

    /// A place for one more caller.
    fn place(&self, name: &LockName) -> Result<OwnedSemaphorePermit> {
        let refused =
            |why: String| Error::new(ErrorKind::Unavailable, "acquire").with_lock(name).with_message(why);
        if let Current::Open(live) = &*self.current.borrow()
            && live.releases().len() >= RELEASES_UNCONFIRMED_MAX
        {
            let why = format!("{RELEASES_UNCONFIRMED_MAX} releases of this client are not confirmed yet");
            return Err(refused(why));
        }
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            refused(format!("{WAITERS_PER_CLIENT_MAX} callers of this client are waiting already"))
        })
    }

    fn metadata(&self) -> Metadata {
        Metadata::of_this_process(self.label.as_deref())
    }

    /// The current session; waits while one is being opened. `None` once the client is closed.
    async fn live_session(&self) -> Option<Arc<Live>> {
        let mut current = self.current.subscribe();
        let current = current.wait_for(|current| !matches!(current, Current::Opening)).await.ok()?;
        match &*current {
            Current::Open(live) => Some(Arc::clone(live)),
            Current::Opening | Current::Closed(_) => None,
        }
    }

    /// What a beat must renew.
    fn held(&self) -> Vec<Grant> {
        let holds = self.holds();
        holds.iter().filter(|hold| hold.wants_renewal()).map(|hold| hold.grant().clone()).collect()
    }

    /// All holds there are; a copy, since a look at one of them may wake those who wait for its loss.
    fn holds(&self) -> Vec<Arc<Hold>> {
        lock(&self.holds).values().cloned().collect()
    }

    fn hold(&self, id: ClaimId) -> Option<Arc<Hold>> {
        lock(&self.holds).get(&id).cloned()
    }

    fn lose_all(&self, why: &'static str) {
        // Every hold in the table belongs to the session that ends: a new one is opened only after this.
        for hold in self.holds() {
            hold.lose(why);
        }
    }

    /// Starts the end of the client: new calls answer `Closed`, the session task does the rest.
    pub(crate) fn begin_close(&self) {
        self.refusing.cancel();
        self.closing.cancel();
    }

    /// Claims nothing new, waits until every hold has ended and been given back, and ends the client; after `limit` with
    /// what is still held.
    pub(crate) async fn drain(&self, limit: Duration) -> Result<()> {
        self.refusing.cancel();
        self.lives.close();
        let time_is_up = async {
            match tokio::time::Instant::now().checked_add(limit) {
                Some(time) => self.runtime.reach(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.lives.wait() => {}
            () = time_is_up => {}
        }
        let held = self.holds().iter().filter(|hold| hold.end().is_none()).count();
        self.close().await?;
        match held {
            0 => Ok(()),
            held => Err(Error::new(ErrorKind::Lost, "drain")
                .with_message(format!("locks that were still held after {limit:?}: {held}"))),
        }
    }

    /// Ends the client and waits until its session has ended.
    pub(crate) async fn close(&self) -> Result<()> {
        self.begin_close();
        let mut current = self.current.subscribe();
        match current.wait_for(|current| matches!(current, Current::Closed(_))).await.as_deref() {
            Ok(Current::Closed(outcome)) => outcome.clone(),
            _ => Err(closed("close")),
        }
    }
}

/// How an acquire begins.
enum Begun {
    Held(Entered),
    Waits(Ticket),
}

fn closed(operation: &'static str) -> Error {
    Error::new(ErrorKind::Closed, operation)
}

/// Turns a panic of the backend into an error: a task that dies of it would leave its entry to a session that lives.
async fn caught<T>(operation: &'static str, work: impl Future<Output = T>) -> Result<T> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        match polled {
            Ok(polled) => polled.map(Ok),
            Err(_) => Poll::Ready(Err(panicked(operation))),
        }
    })
    .await
}

fn panicked(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unexpected, operation).with_message("the backend panicked")
}
