//! One attempt at a lock, and the outcome that its callers share.
//!
//! Usually one caller; several when tasks of one owner wait for the same lock at the same time. When the last caller
//! has left, because its time was up or because its future was dropped, the attempt gives up. A try is an attempt with
//! one caller, which nobody joins.
//!
//! Nothing here wakes a task while a mutex is held: a waker may acquire the same lock again before it returns.

use std::{pin::pin, sync::Arc};

use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::hold::{Entered, Hold};
use crate::{
    Error, ErrorKind, LockName, Result,
    backend::ClaimControl,
    sync::{Mutex, lock},
};

/// How an attempt ended, the same for all of its callers: a hold in which a share is set aside for each of them, `None`
/// when the store answered that somebody else holds the lock, or an error.
pub(crate) type Outcome = Result<Option<Arc<Hold>>>;

/// What one caller is answered: its share of the hold, `None` for busy or too late, or an error.
pub(crate) type Answer = Result<Option<Entered>>;

/// One attempt at a lock.
#[derive(Debug)]
pub(crate) struct Attempt {
    name: LockName,
    control: ClaimControl,
    state: Mutex<State>,
    settled: Notify,
}

#[derive(Debug)]
enum State {
    /// So many callers wait for the outcome.
    Wanted(u32),
    /// All of them have left.
    Left,
    Over(Outcome),
}

impl Attempt {
    /// A new attempt with its first caller.
    pub(crate) fn begin(name: LockName) -> (Arc<Self>, Ticket) {
        let attempt = Arc::new(Self {
            name,
            control: ClaimControl::new(),
            state: Mutex::new(State::Wanted(1)),
            settled: Notify::new(),
        });
        (Arc::clone(&attempt), Ticket { attempt, waits: true, _place: None })
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.name
    }

    pub(crate) fn control(&self) -> &ClaimControl {
        &self.control
    }

    /// One more caller; `None` when the attempt is over, or its last caller has left it.
    pub(crate) fn join(self: &Arc<Self>) -> Option<Ticket> {
        match &mut *lock(&self.state) {
            State::Wanted(callers) => *callers += 1,
            State::Left | State::Over(_) => return None,
        }
        Some(Ticket { attempt: Arc::clone(self), waits: true, _place: None })
    }

    /// Whether everybody has been answered, or has left.
    pub(crate) fn is_over(&self) -> bool {
        !matches!(*lock(&self.state), State::Wanted(_))
    }

    /// Ends the attempt without a grant; without effect when it is over.
    pub(crate) fn end(self: &Arc<Self>, outcome: Outcome) {
        {
            let mut state = lock(&self.state);
            if matches!(*state, State::Over(_)) {
                return;
            }
            *state = State::Over(outcome);
        }
        Settled { attempts: vec![Arc::clone(self)], callers: 0 }.announce();
    }

    /// Ends these attempts with one grant, which all of their callers share. The shares are counted while nobody can
    /// take one: a caller that releases at once must not meet a hold whose other shares are still to come.
    pub(crate) fn grant(attempts: Vec<Arc<Self>>, hold: &Arc<Hold>) -> Settled {
        let mut states: Vec<_> = attempts.iter().map(|attempt| lock(&attempt.state)).collect();
        let wanted = |state: &State| match state {
            State::Wanted(callers) => *callers,
            State::Left | State::Over(_) => 0,
        };
        let callers = states.iter().map(|state| wanted(state)).sum();
        hold.share_among(callers);
        for state in states.iter_mut().filter(|state| matches!(***state, State::Wanted(_))) {
            **state = State::Over(Ok(Some(Arc::clone(hold))));
        }
        drop(states);
        Settled { attempts, callers }
    }
}

/// Attempts that are over, whose callers do not know it yet.
#[must_use]
pub(crate) struct Settled {
    attempts: Vec<Arc<Attempt>>,
    callers: u32,
}

impl Settled {
    pub(crate) fn has_callers(&self) -> bool {
        self.callers > 0
    }

    /// Wakes the callers, and ends claims that are still under way.
    pub(crate) fn announce(self) {
        for attempt in self.attempts {
            attempt.settled.notify_waiters();
            attempt.control.give_up();
        }
    }
}

/// A caller's place in an attempt; dropping it is leaving.
#[derive(Debug)]
pub(crate) struct Ticket {
    attempt: Arc<Attempt>,
    /// The caller has not taken the outcome.
    waits: bool,
    _place: Option<OwnedSemaphorePermit>,
}

impl Ticket {
    /// Keeps one of the client's places for waiting callers as long as the ticket lives.
    pub(crate) fn keeping(mut self, place: OwnedSemaphorePermit) -> Self {
        self._place = Some(place);
        self
    }

    /// Waits for the outcome.
    pub(crate) async fn answer(&mut self) -> Answer {
        let attempt = Arc::clone(&self.attempt);
        loop {
            let mut settled = pin!(attempt.settled.notified());
            // Enabled before the look, or an end between the look and the wait would be missed.
            settled.as_mut().enable();
            if let Some(answer) = self.take() {
                return answer;
            }
            settled.await;
        }
    }

    /// The answer of a caller whose time is up: `None` only when the store said that somebody else holds the lock.
    pub(crate) fn late(mut self) -> Answer {
        let contended = self.attempt.control.was_contended();
        self.take().unwrap_or_else(|| match contended {
            true => Ok(None),
            false => Err(Error::new(ErrorKind::Unavailable, "acquire")
                .with_lock(&self.attempt.name)
                .with_message("the store did not answer in time")),
        })
    }

    fn take(&mut self) -> Option<Answer> {
        let outcome = match &*lock(&self.attempt.state) {
            State::Over(outcome) if self.waits => outcome.clone(),
            _ => return None,
        };
        self.waits = false;
        Some(outcome.map(|granted| granted.map(|hold| hold.take_share())))
    }

    /// Leaves an attempt that is not over; whether this was its last caller.
    fn leave(&mut self) -> bool {
        let mut state = lock(&self.attempt.state);
        let State::Wanted(callers) = &mut *state else { return false };
        self.waits = false;
        *callers -= 1;
        let is_last = *callers == 0;
        if is_last {
            // Under the mutex, so that nobody joins an attempt that gives up.
            *state = State::Left;
        }
        is_last
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.waits && self.leave() {
            self.attempt.control.give_up();
        }
        // A share of the hold that was set aside for this caller is left as a guard leaves it.
        drop(self.take());
    }
}
