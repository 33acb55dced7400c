//! One attempt at a lock, and the callers who wait for its outcome.
//!
//! Usually one caller; several when tasks of one owner acquire the same lock at the same time. Every caller has a
//! deadline of its own; when the last one has left, by its deadline or because its future was dropped, the attempt
//! gives up.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::{
    sync::{Notify, OwnedSemaphorePermit, oneshot},
    time::Instant,
};

use super::hold::Entered;
use crate::{
    Error, ErrorKind, LockName, Result,
    backend::ClaimControl,
    sync::{Mutex, lock},
};

/// How long a caller wants to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// As long as it takes.
    Unlimited,
    /// In the queue, until this moment.
    Until(Instant),
    /// Not at all: one question to the server, answered before this moment.
    Try(Instant),
}

impl Patience {
    fn deadline(self) -> Option<Instant> {
        match self {
            Self::Unlimited => None,
            Self::Until(deadline) | Self::Try(deadline) => Some(deadline),
        }
    }

    fn queues(self) -> bool {
        !matches!(self, Self::Try(_))
    }
}

/// What a caller is answered: a share of the hold, `None` for busy or too late, or an error.
pub(crate) type Answer = Result<Option<Entered>>;

/// One attempt at a lock.
#[derive(Debug)]
pub(crate) struct Attempt {
    name: LockName,
    control: ClaimControl,
    callers: Mutex<Callers>,
    changed: Notify,
}

#[derive(Debug)]
struct Callers {
    waiting: Vec<Caller>,
    next_id: u64,
    over: bool,
}

#[derive(Debug)]
struct Caller {
    id: u64,
    patience: Patience,
    answer: oneshot::Sender<Answer>,
}

impl Attempt {
    /// A new attempt with its first caller.
    pub(crate) fn begin(name: LockName, patience: Patience) -> (Arc<Self>, Ticket) {
        let (caller, ticket) = oneshot::channel();
        let first = Caller { id: 0, patience, answer: caller };
        let attempt = Arc::new(Self {
            name,
            control: ClaimControl::new(),
            callers: Mutex::new(Callers { waiting: vec![first], next_id: 1, over: false }),
            changed: Notify::new(),
        });
        (Arc::clone(&attempt), Ticket { attempt, id: 0, answer: ticket, _place: None })
    }

    pub(crate) fn control(&self) -> &ClaimControl {
        &self.control
    }

    /// One more caller; `None` when the attempt is over, or its last caller has left it.
    pub(crate) fn join(self: &Arc<Self>, patience: Patience) -> Option<Ticket> {
        let mut callers = lock(&self.callers);
        if callers.over || self.control.has_given_up() {
            return None;
        }
        let (sender, answer) = oneshot::channel();
        let id = callers.next_id;
        callers.next_id += 1;
        callers.waiting.push(Caller { id, patience, answer: sender });
        drop(callers);
        self.changed.notify_one();
        Some(Ticket { attempt: Arc::clone(self), id, answer, _place: None })
    }

    /// Resolves when no caller is left who wants the lock.
    pub(crate) async fn given_up(&self) {
        self.control.given_up().await;
    }

    /// Whether somebody still waits for the outcome.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.is_over() && !self.control.has_given_up()
    }

    /// Whether everybody has been answered.
    pub(crate) fn is_over(&self) -> bool {
        lock(&self.callers).over
    }

    /// Whether somebody would stand in the queue; otherwise the server is asked once.
    pub(crate) fn queues(&self) -> bool {
        lock(&self.callers).waiting.iter().any(|caller| caller.patience.queues())
    }

    /// Answers every caller at its deadline; never ends by itself, is dropped with the wait that it accompanies.
    pub(crate) async fn answer_deadlines(&self) -> std::convert::Infallible {
        loop {
            let next =
                lock(&self.callers).waiting.iter().filter_map(|caller| caller.patience.deadline()).min();
            let at_deadline = async {
                match next {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = at_deadline => self.answer_late(Instant::now()),
                () = self.changed.notified() => {}
            }
        }
    }

    /// Answers the callers whose deadline has passed: `None` only when the server said that another holds the lock.
    fn answer_late(&self, now: Instant) {
        let contended = self.control.was_contended();
        self.answer_where(
            |caller| caller.patience.deadline().is_some_and(|deadline| deadline <= now),
            || if contended { Ok(None) } else { Err(self.unanswered()) },
        );
    }

    /// Answers the callers who only tried: the server said busy.
    pub(crate) fn answer_tries(&self) {
        self.answer_where(|caller| !caller.patience.queues(), || Ok(None));
    }

    fn answer_where(&self, which: impl Fn(&Caller) -> bool, answer: impl Fn() -> Answer) {
        let mut callers = lock(&self.callers);
        let answered: Vec<Caller> = callers.waiting.extract_if(.., |caller| which(caller)).collect();
        self.give_up_if_left(&callers);
        drop(callers);
        for caller in answered {
            // A caller whose future is being dropped needs no answer.
            let _ = caller.answer.send(answer());
        }
    }

    /// Ends the attempt with one answer for everybody, made for each anew.
    pub(crate) fn end(&self, answer: impl Fn() -> Answer) {
        self.settle(answer).send();
    }

    /// Ends the attempt, and makes the answers. Whatever `answer` owns is dropped before the first caller hears: a share
    /// of the hold that stayed here would keep it held while that caller releases it.
    pub(crate) fn settle(&self, answer: impl Fn() -> Answer) -> Answers {
        let mut callers = lock(&self.callers);
        callers.over = true;
        let waiting = std::mem::take(&mut callers.waiting);
        self.give_up_if_left(&callers);
        drop(callers);
        Answers(waiting.into_iter().map(|caller| (caller, answer())).collect())
    }

    fn leave(&self, id: u64) {
        let mut callers = lock(&self.callers);
        callers.waiting.retain(|caller| caller.id != id);
        self.give_up_if_left(&callers);
        drop(callers);
        self.changed.notify_one();
    }

    /// Decided under the mutex, so that nobody joins an attempt that gives up.
    fn give_up_if_left(&self, callers: &Callers) {
        if callers.waiting.is_empty() {
            self.control.give_up();
        }
    }

    fn unanswered(&self) -> Error {
        Error::new(ErrorKind::Unavailable, "acquire")
            .with_lock(&self.name)
            .with_message("the store did not answer in time")
    }
}

/// What the callers of an attempt that is over have still to hear.
#[must_use]
pub(crate) struct Answers(Vec<(Caller, Answer)>);

impl Answers {
    pub(crate) fn send(self) {
        for (caller, answer) in self.0 {
            // An answer that nobody takes is dropped here, and with it the share of the hold in it.
            let _ = caller.answer.send(answer);
        }
    }
}

/// A caller's place in an attempt: resolves to the answer; dropping it is leaving.
#[derive(Debug)]
pub(crate) struct Ticket {
    attempt: Arc<Attempt>,
    id: u64,
    answer: oneshot::Receiver<Answer>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Ticket {
    /// Keeps one of the client's places for waiting callers as long as the ticket lives.
    pub(crate) fn keeping(mut self, place: OwnedSemaphorePermit) -> Self {
        self._place = Some(place);
        self
    }
}

impl Future for Ticket {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        Pin::new(&mut self.answer).poll(context).map(|answer| {
            answer.unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Closed, "acquire").with_lock(&self.attempt.name))
            })
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.attempt.leave(self.id);
    }
}
