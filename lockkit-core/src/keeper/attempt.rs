//! One attempt at a lock, and the outcome that its callers share.
//!
//! An attempt usually has one caller. It has several if tasks of one owner wait for the same lock at the same time. It
//! gives up when its last caller has left, at its time limit or because its future was dropped. A try is an attempt
//! with one caller that no other caller joins.
//!
//! No task is woken while a mutex is held: a waker may acquire the same lock again before it returns.

use std::{pin::pin, sync::Arc};

use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::{
    hold::Hold,
    share::HoldShare,
    unsent::{Unsent, UnsentStep},
};
use crate::{
    Error, ErrorKind, LockName, Result,
    backend::ClaimControl,
    sync::{Mutex, lock},
};

/// The result of an attempt, shared by its callers: a hold with a reserved share for each of them, `None` if the store
/// reported another holder, or an error.
pub(crate) type AttemptOutcome = Result<Option<Arc<Hold>>>;

/// The result for one caller: its share of the hold, `None` if the lock was busy until the time limit, or an error.
pub(crate) type AcquireAnswer = Result<Option<HoldShare>>;

/// One attempt at a lock.
#[derive(Debug)]
pub(crate) struct Attempt {
    name: LockName,
    control: ClaimControl,
    state: Mutex<AttemptState>,
    settled: Notify,
    unsent: Unsent,
}

#[derive(Debug)]
enum AttemptState {
    /// This many callers wait for the outcome.
    Waiting(u32),
    /// All callers have left; the claim may have to be withdrawn.
    Left {
        _unsent: UnsentStep,
    },
    Ended(AttemptOutcome),
}

impl Attempt {
    /// Creates an attempt with its first caller.
    pub(crate) fn begin(name: LockName, unsent: &Unsent) -> (Arc<Self>, Ticket) {
        let attempt = Arc::new(Self {
            name,
            control: ClaimControl::new(),
            state: Mutex::new(AttemptState::Waiting(1)),
            settled: Notify::new(),
            unsent: unsent.clone(),
        });
        (Arc::clone(&attempt), Ticket { attempt, waits: true, _permit: None })
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.name
    }

    pub(crate) fn control(&self) -> &ClaimControl {
        &self.control
    }

    /// Adds a caller; returns `None` if the attempt has ended or its last caller has left.
    pub(crate) fn join(self: &Arc<Self>) -> Option<Ticket> {
        match &mut *lock(&self.state) {
            AttemptState::Waiting(callers) => *callers += 1,
            AttemptState::Left { .. } | AttemptState::Ended(_) => return None,
        }
        Some(Ticket { attempt: Arc::clone(self), waits: true, _permit: None })
    }

    /// Returns whether the attempt has ended or all callers have left.
    pub(crate) fn is_over(&self) -> bool {
        !matches!(*lock(&self.state), AttemptState::Waiting(_))
    }

    /// Ends the attempt without a grant; no effect if it has ended.
    pub(crate) fn end(self: &Arc<Self>, outcome: AttemptOutcome) {
        {
            let mut state = lock(&self.state);
            if matches!(*state, AttemptState::Ended(_)) {
                return;
            }
            *state = AttemptState::Ended(outcome);
        }
        SettledAttempts { attempts: [Some(Arc::clone(self)), None], callers: 0 }.announce();
    }

    /// Ends an attempt, and perhaps another one of its owner, with one grant that all their callers share.
    ///
    /// All shares are reserved while the attempts are locked. Otherwise a caller that releases at once could be the
    /// last one of the hold before the other callers have their shares.
    ///
    /// If all callers of the first one have left, nobody shares the hold: it may have been granted with options that the
    /// others did not ask for.
    pub(crate) fn grant(attempt: &Arc<Self>, other: Option<&Arc<Self>>, hold: &Arc<Hold>) -> SettledAttempts {
        let own = lock(&attempt.state);
        let other = other.filter(|_| own.callers() > 0);
        let mut states = [Some(own), other.map(|other| lock(&other.state))];
        let callers = states.iter().flatten().map(|state| state.callers()).sum();
        hold.reserve_shares(callers);
        for state in states.iter_mut().flatten().filter(|state| matches!(***state, AttemptState::Waiting(_)))
        {
            **state = AttemptState::Ended(Ok(Some(Arc::clone(hold))));
        }
        drop(states);
        SettledAttempts { attempts: [Some(Arc::clone(attempt)), other.cloned()], callers }
    }
}

impl AttemptState {
    /// Returns how many callers wait.
    fn callers(&self) -> u32 {
        match self {
            Self::Waiting(callers) => *callers,
            Self::Left { .. } | Self::Ended(_) => 0,
        }
    }
}

/// Granted attempts whose callers have not been woken yet.
#[must_use]
pub(crate) struct SettledAttempts {
    attempts: [Option<Arc<Attempt>>; 2],
    callers: u32,
}

impl SettledAttempts {
    pub(crate) fn has_callers(&self) -> bool {
        self.callers > 0
    }

    /// Wakes the callers, and makes pending claims of these attempts give up.
    pub(crate) fn announce(self) {
        for attempt in self.attempts.into_iter().flatten() {
            attempt.settled.notify_waiters();
            attempt.control.give_up();
        }
    }
}

/// A caller's share in an attempt; dropping it leaves the attempt.
#[derive(Debug)]
pub(crate) struct Ticket {
    attempt: Arc<Attempt>,
    /// Whether the caller has not taken the outcome yet.
    waits: bool,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Ticket {
    /// Keeps the permit of a waiting caller as long as the ticket lives.
    pub(crate) fn with_permit(mut self, permit: OwnedSemaphorePermit) -> Self {
        self._permit = Some(permit);
        self
    }

    /// Waits for the outcome, and takes it.
    pub(crate) async fn answer(&mut self) -> AcquireAnswer {
        let attempt = Arc::clone(&self.attempt);
        loop {
            let mut settled = pin!(attempt.settled.notified());
            // Registers before the check; an outcome between the check and the wait would be missed otherwise.
            settled.as_mut().enable();
            if let Some(answer) = self.take() {
                return answer;
            }
            settled.await;
        }
    }

    /// Returns the result at the caller's time limit: `None` only if the store reported another holder, and there is a
    /// session in which it may be asked again.
    pub(crate) fn timed_out(mut self, outage: Option<Error>) -> AcquireAnswer {
        let contended = self.attempt.control.was_contended();
        self.take().unwrap_or_else(|| match outage {
            None if contended => Ok(None),
            outage => Err(outage.unwrap_or_else(|| silence("acquire")).with_lock(&self.attempt.name)),
        })
    }

    /// Takes the outcome, if the attempt has ended.
    pub(crate) fn take(&mut self) -> Option<AcquireAnswer> {
        let outcome = match &*lock(&self.attempt.state) {
            AttemptState::Ended(outcome) if self.waits => outcome.clone(),
            _ => return None,
        };
        self.waits = false;
        Some(outcome.map(|granted| granted.map(|hold| hold.take_share())))
    }

    /// Leaves an attempt that has not ended; returns whether this was the last caller.
    fn leave(&mut self) -> bool {
        let mut state = lock(&self.attempt.state);
        let AttemptState::Waiting(callers) = &mut *state else { return false };
        self.waits = false;
        *callers -= 1;
        let is_last = *callers == 0;
        if is_last {
            // Set under the mutex: no caller can join an attempt that gives up.
            *state = AttemptState::Left { _unsent: self.attempt.unsent.begin() };
        }
        is_last
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.waits && self.leave() {
            self.attempt.control.give_up();
        }
        // Gives back the share of the hold that was reserved for this caller.
        drop(self.take());
    }
}

/// Returns the error of a call that the store has not answered at its time limit.
pub(crate) fn silence(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, operation).with_message("the store did not answer in time")
}
