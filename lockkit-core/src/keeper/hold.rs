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

use super::{deadline::deadline, timer};
use crate::{
    BootInstant, Clock, Error, ErrorKind, Result,
    backend::Grant,
    limits::{CLOCK_LOOK_PAUSE_MAX, CLOCK_READ_ERROR, REENTRIES_PER_HOLD_MAX},
    sync::{Mutex, lock},
};

/// One lock that is held.
pub(crate) struct Hold {
    grant: Grant,
    ttl: Duration,
    /// The end of the longest hold that was asked for.
    ends_at: BootInstant,
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
    /// Why the last try of the release was not confirmed.
    unconfirmed: Option<Error>,
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
    /// The hold of a grant whose lifetime is `ttl`; nobody has a share of it before [`share_among`](Self::share_among).
    pub(crate) fn new(grant: Grant, ttl: Duration, max_hold: Option<Duration>, clock: Clock) -> Arc<Self> {
        let ends_at = max_hold.map_or(BootInstant::NEVER, |longest| clock.now().after(longest));
        let state = State {
            phase: Phase::Held,
            guards: 0,
            deadline: deadline(grant.armed_at(), ttl),
            outcome: None,
            unconfirmed: None,
        };
        Arc::new(Self { grant, ttl, ends_at, clock, state: Mutex::new(state), changed: Notify::new() })
    }

    /// Sets shares aside for the callers that wait for this grant, before any of them can take one: see
    /// [`take_share`](Self::take_share). Without callers the hold ends here, and is released. Wakes nobody.
    pub(crate) fn share_among(&self, callers: u32) {
        let mut state = lock(&self.state);
        state.guards += callers;
        if state.is_held() && state.guards == 0 {
            state.phase = Phase::Releasing;
        }
    }

    /// One of the shares that were set aside, also when the hold was lost meanwhile: then the guard says so, with the
    /// reason.
    pub(crate) fn take_share(self: &Arc<Self>) -> Entered {
        Entered(Arc::clone(self))
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
        self.look(|state| {
            if !state.is_held() {
                return Ok(None);
            }
            if state.guards == REENTRIES_PER_HOLD_MAX {
                return Err(Error::new(ErrorKind::Unexpected, "re-enter")
                    .with_lock(self.grant.name())
                    .with_message(format!("{REENTRIES_PER_HOLD_MAX} guards of one owner")));
            }
            state.guards += 1;
            Ok(Some(Entered(Arc::clone(self))))
        })
    }

    fn leave(&self) {
        self.look(|state| {
            state.guards -= 1;
            // The release must not wait for the keeper to notice the deadline, nor hide that it had passed.
            if state.is_held() && state.guards == 0 {
                state.phase = Phase::Releasing;
            }
        });
        self.changed.notify_waiters();
    }

    /// The server restarted the lifetime; without effect on a hold that has ended or whose deadline has passed.
    pub(crate) fn renewed(&self, armed_at: BootInstant) {
        self.look(|state| {
            if state.is_held() {
                state.deadline = state.deadline.max(deadline(armed_at, self.ttl));
            }
        });
    }

    /// Marks the hold lost; without effect when it has ended already. `why` completes "lock lost: ".
    pub(crate) fn lose(&self, why: &'static str) {
        let mut state = lock(&self.state);
        if state.is_held() {
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
        self.look(|state| state.loss())
    }

    /// Whether a renewal may still be sent for it.
    pub(crate) fn wants_renewal(&self) -> bool {
        self.look(|state| state.is_held())
    }

    /// Time to the deadline, or to the end of the longest hold; zero when the hold is lost.
    pub(crate) fn remaining(&self) -> Duration {
        self.look(|state| {
            let until = state.deadline.min(self.ends_at);
            if state.loss().is_some() {
                Duration::ZERO
            } else if until.after(CLOCK_READ_ERROR) == BootInstant::NEVER {
                Duration::MAX
            } else {
                until.since(self.clock.now())
            }
        })
    }

    /// Time to the next look at the clock: timers stop while the machine is suspended, the clock does not.
    pub(crate) fn next_look(&self) -> Duration {
        self.remaining().min(CLOCK_LOOK_PAUSE_MAX)
    }

    /// The deadline as renewals have moved it so far.
    pub(crate) fn deadline(&self) -> BootInstant {
        lock(&self.state).deadline
    }

    /// How the hold ended, if it has.
    pub(crate) fn end(&self) -> Option<End> {
        self.look(|state| match state.phase {
            Phase::Held => None,
            Phase::Releasing => Some(End::Released),
            Phase::Lost(_) => Some(End::Lost),
        })
    }

    /// Notes that a try of the release was not confirmed.
    pub(crate) fn release_failed(&self, error: Error) {
        lock(&self.state).unconfirmed = Some(error);
    }

    /// The answer to a guard that waits no longer for its release: what the store said last, if anything.
    pub(crate) fn unconfirmed(&self) -> Error {
        let said = lock(&self.state).unconfirmed.clone();
        let kind = said.as_ref().map_or(ErrorKind::Unavailable, Error::kind);
        let error = Error::new(kind, "release")
            .with_lock(self.grant.name())
            .with_message("the store has not confirmed it yet; it is tried again in the background");
        match said {
            Some(said) => error.with_source(said),
            None => error,
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

    /// Waits until the hold is lost; on a runtime with a timer of its own, so that a keeper that stands still delays
    /// nothing. Elsewhere the keeper's timers count.
    pub(crate) async fn lost(&self) -> Error {
        loop {
            tokio::select! {
                biased;
                lost = self.when(Self::loss) => return lost,
                () = timer::pause(self.next_look()) => {}
            }
        }
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

    /// Looks at the state, in which a deadline that has passed is a loss already.
    fn look<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        let mut state = lock(&self.state);
        let passed = self.passed(&state);
        if let Some(why) = passed {
            state.phase = Phase::Lost(self.lost_error(why));
        }
        let seen = look(&mut state);
        drop(state);
        // After the mutex: a waker may look at the hold, or drop a task that has a guard.
        if passed.is_some() {
            self.changed.notify_waiters();
        }
        seen
    }

    /// Which deadline has passed while the lock was held.
    fn passed(&self, state: &State) -> Option<&'static str> {
        let now = self.clock.now();
        match state.is_held() {
            true if now >= state.deadline => Some("no renewal was acknowledged before the deadline"),
            true if now >= self.ends_at => Some("it was held for longer than max_hold"),
            _ => None,
        }
    }

    fn lost_error(&self, why: &'static str) -> Error {
        Error::new(ErrorKind::Lost, "hold").with_lock(self.grant.name()).with_message(why)
    }
}

impl State {
    fn is_held(&self) -> bool {
        matches!(self.phase, Phase::Held)
    }

    fn loss(&self) -> Option<Error> {
        match &self.phase {
            Phase::Lost(error) => Some(error.clone()),
            Phase::Held | Phase::Releasing => None,
        }
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

    /// Leaves: the hold when this was the last guard, and its release is now awaited.
    ///
    /// # Errors
    ///
    /// `Lost` when the hold had ended before.
    pub(crate) fn leave(self) -> Result<Option<Arc<Hold>>> {
        let hold = Arc::clone(&self.0);
        drop(self);
        match hold.loss() {
            Some(lost) => Err(lost),
            None => Ok(hold.end().is_some().then_some(hold)),
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
