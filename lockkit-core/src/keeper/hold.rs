//! One lock that is held: the state that guards and the keeper share.
//!
//! ```text
//!            leave() of the last guard                 the server confirmed, or nobody needs it any more
//!   Held ------------------------------> Releasing ---------------------------------------------> (dropped)
//!     \---- lose(), or the deadline ----> Lost
//! ```
//!
//! Lost is final: a deadline that one reading of the clock has seen passed is latched under the mutex, so that an
//! answer of the server that arrives later cannot revive the hold. Nothing here blocks, waits or needs a runtime.

use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::Notify;

use super::deadline::deadline;
use crate::{
    BootInstant, Clock, Error, ErrorKind, Result,
    backend::Grant,
    limits::REENTRIES_PER_HOLD_MAX,
    sync::{Mutex, lock},
};

/// One lock that is held.
pub(crate) struct Hold {
    grant: Grant,
    ttl: Duration,
    clock: Clock,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    phase: Phase,
    guards: u32,
    deadline: BootInstant,
    /// What the last guard's `release` is answered.
    outcome: Option<Result<()>>,
}

#[derive(Clone, Debug)]
enum Phase {
    Held,
    Releasing,
    Lost(Error),
}

/// How a hold ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// The last guard let go.
    Released,
    /// It was lost, with the error that its guards answer.
    Lost,
}

impl Hold {
    /// The hold of a grant whose lifetime is `ttl`, with one guard in it.
    pub(crate) fn enter_first(grant: Grant, ttl: Duration, clock: Clock) -> Entered {
        let state =
            State { phase: Phase::Held, guards: 1, deadline: deadline(grant.armed_at(), ttl), outcome: None };
        Entered(Arc::new(Self { grant, ttl, clock, state: Mutex::new(state), changed: Notify::new() }))
    }

    pub(crate) fn grant(&self) -> &Grant {
        &self.grant
    }

    /// One more guard of the same owner; `None` when the hold has ended.
    ///
    /// # Errors
    ///
    /// `Unexpected` when there are [`REENTRIES_PER_HOLD_MAX`] already.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Option<Entered>> {
        let mut state = lock(&self.state);
        if self.latch(&mut state).is_some() || !matches!(state.phase, Phase::Held) {
            return Ok(None);
        }
        if state.guards == REENTRIES_PER_HOLD_MAX {
            return Err(Error::new(ErrorKind::Unexpected, "re-enter")
                .with_lock(self.grant.name())
                .with_message(format!("{REENTRIES_PER_HOLD_MAX} guards of one owner")));
        }
        state.guards += 1;
        Ok(Some(Entered(Arc::clone(self))))
    }

    fn leave(&self) {
        let mut state = lock(&self.state);
        state.guards -= 1;
        // The release must not wait for the keeper to notice the deadline, nor hide that it had passed.
        if self.latch(&mut state).is_none() && state.guards == 0 {
            state.phase = Phase::Releasing;
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// The server restarted the lifetime; without effect on a hold that has ended or whose deadline has passed.
    pub(crate) fn renewed(&self, armed_at: BootInstant) {
        let mut state = lock(&self.state);
        if self.latch(&mut state).is_none() {
            state.deadline = state.deadline.max(deadline(armed_at, self.ttl));
        }
    }

    /// Marks the hold lost; without effect when it has ended already. `why` completes "lock lost: ".
    pub(crate) fn lose(&self, why: &'static str) {
        let mut state = lock(&self.state);
        if matches!(state.phase, Phase::Held) {
            state.phase = Phase::Lost(self.lost_error(why));
            drop(state);
            self.changed.notify_waiters();
        }
    }

    /// Whether the lock is held at this moment; false from the deadline on, without I/O.
    pub(crate) fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    /// Why the lock is no longer held, if so.
    pub(crate) fn loss(&self) -> Option<Error> {
        self.latch(&mut lock(&self.state))
    }

    /// Whether a renewal may still be sent for it.
    pub(crate) fn wants_renewal(&self) -> bool {
        let mut state = lock(&self.state);
        self.latch(&mut state).is_none() && matches!(state.phase, Phase::Held)
    }

    /// Time to the deadline; zero when the hold has ended.
    pub(crate) fn remaining(&self) -> Duration {
        let mut state = lock(&self.state);
        match self.latch(&mut state) {
            Some(_) => Duration::ZERO,
            None if state.deadline.after(crate::limits::CLOCK_READ_ERROR) == BootInstant::NEVER => {
                Duration::MAX
            }
            None => state.deadline.since(self.clock.now()),
        }
    }

    /// The deadline as renewals have moved it so far.
    pub(crate) fn deadline(&self) -> BootInstant {
        lock(&self.state).deadline
    }

    /// How the hold ended, if it has.
    pub(crate) fn end(&self) -> Option<End> {
        let mut state = lock(&self.state);
        match (self.latch(&mut state), &state.phase) {
            (Some(_), _) => Some(End::Lost),
            (None, Phase::Releasing) => Some(End::Released),
            (None, _) => None,
        }
    }

    /// Tells the outcome of the release; the first one counts.
    pub(crate) fn finish(&self, outcome: Result<()>) {
        lock(&self.state).outcome.get_or_insert(outcome);
        self.changed.notify_waiters();
    }

    /// Waits until the hold has ended.
    pub(crate) async fn ended(&self) -> End {
        self.when(Self::end).await
    }

    /// Waits until the hold is lost.
    pub(crate) async fn lost(&self) -> Error {
        self.when(Self::loss).await
    }

    /// Waits for the outcome of the release, once the last guard has left.
    pub(crate) async fn finished(&self) -> Result<()> {
        self.when(|hold| lock(&hold.state).outcome.clone()).await
    }

    async fn when<T>(&self, answer: impl Fn(&Self) -> Option<T>) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Enabled before the look, or a change between the look and the wait would be missed.
            changed.as_mut().enable();
            if let Some(answer) = answer(self) {
                return answer;
            }
            changed.await;
        }
    }

    /// Reads the loss, first turning a passed deadline into one.
    fn latch(&self, state: &mut State) -> Option<Error> {
        if matches!(state.phase, Phase::Held) && self.clock.now() >= state.deadline {
            state.phase = Phase::Lost(self.lost_error("no renewal was acknowledged before the deadline"));
            self.changed.notify_waiters();
        }
        match &state.phase {
            Phase::Lost(error) => Some(error.clone()),
            Phase::Held | Phase::Releasing => None,
        }
    }

    fn lost_error(&self, why: &'static str) -> Error {
        Error::new(ErrorKind::Lost, "hold").with_lock(self.grant.name()).with_message(why)
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("Hold")
            .field("grant", &self.grant)
            .field("phase", &state.phase)
            .field("guards", &state.guards)
            .finish_non_exhaustive()
    }
}

/// One guard's share of a hold; dropping it is leaving.
pub(crate) struct Entered(Arc<Hold>);

impl Entered {
    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.0
    }

    /// Leaves, and answers the outcome of the release when this was the last guard: `Ok` at once when others remain.
    pub(crate) async fn leave(self) -> Result<()> {
        let hold = Arc::clone(&self.0);
        drop(self);
        if let Some(lost) = hold.loss() {
            return Err(lost);
        }
        match hold.end() {
            None => Ok(()),
            Some(_) => hold.finished().await,
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl fmt::Debug for Entered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
