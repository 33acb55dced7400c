//! A held lock: the state that guards and the keeper share.
//!
//! ```text
//!           the last guard leaves               release confirmed, or given up
//!   Held ---------------------------> Releasing ---------------------------------> (dropped)
//!     \--- lose(), or the deadline ---> Lost
//! ```
//!
//! Lost is final. When one reading of the clock shows that the deadline has passed, the loss is stored under the
//! mutex, so an answer of the server that arrives later cannot revive the hold. No call here blocks, and none has to be
//! made on a runtime. A hold has no task: the call that ends it starts its [`Ending`], once, without a mutex held.

use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::Notify;

use super::{
    caught::contained,
    ending::Ending,
    loss::LossReason,
    share::{HoldShare, Left},
    timer,
};
use crate::{
    BootInstant, Clock, Error, ErrorKind, Result,
    backend::Grant,
    lease,
    limits::{CLOCK_READ_PAUSE_MAX, REENTRIES_PER_HOLD_MAX},
    sync::{Mutex, MutexGuard, lock},
};

/// A held lock.
pub(crate) struct Hold {
    grant: Grant,
    ttl: Duration,
    /// The end that `max_hold` sets.
    ends_at: BootInstant,
    clock: Clock,
    state: Mutex<HoldState>,
    changed: Notify,
}

struct HoldState {
    phase: HoldPhase,
    guards: u32,
    /// Whether a caller has got a guard.
    used: bool,
    deadline: BootInstant,
    /// The result for the last guard's `release`.
    outcome: Option<Result<()>>,
    /// The error of the last release request that was not confirmed.
    unconfirmed: Option<Error>,
    /// `None` before the hold is armed, and after its end.
    ending: Option<Ending>,
}

#[derive(Clone, Copy, Debug)]
enum HoldPhase {
    Held,
    Releasing,
    Lost(LossReason),
}

/// How a hold ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HoldEnd {
    /// The last guard was dropped or released.
    Released,
    /// It was lost; its guards return an error.
    Lost(LossReason),
}

impl Hold {
    /// Creates the hold of a grant whose lifetime is `ttl`; it has no shares before
    /// [`reserve_shares`](Self::reserve_shares).
    pub(crate) fn new(grant: Grant, ttl: Duration, max_hold: Option<Duration>, clock: Clock) -> Arc<Self> {
        let ends_at = max_hold.map_or(BootInstant::NEVER, |longest| clock.now().after(longest));
        let state = HoldState {
            phase: HoldPhase::Held,
            guards: 0,
            used: false,
            deadline: lease::deadline(grant.armed_at(), ttl),
            outcome: None,
            unconfirmed: None,
            ending: None,
        };
        Arc::new(Self { grant, ttl, ends_at, clock, state: Mutex::new(state), changed: Notify::new() })
    }

    /// Reserves a share for each caller that waits for this grant, before any of them can take its share with
    /// [`take_share`](Self::take_share). Without callers the hold ends here and is released. Wakes no task.
    pub(crate) fn reserve_shares(&self, callers: u32) {
        let mut state = lock(&self.state);
        state.guards += callers;
        if state.is_held() && state.guards == 0 {
            state.phase = HoldPhase::Releasing;
        }
    }

    /// Returns one of the reserved shares, also if the hold was lost meanwhile: then the guard reports the loss.
    pub(crate) fn take_share(self: &Arc<Self>) -> HoldShare {
        HoldShare::new(self)
    }

    /// Notes that a caller gets a guard of this hold; returns false if the hold ended before any caller had one.
    pub(crate) fn note_used(&self) -> bool {
        let mut state = lock(&self.state);
        state.used |= state.is_held();
        state.used
    }

    /// Returns whether a caller got a guard before the hold ended; otherwise nobody knows of the hold.
    pub(crate) fn was_used(&self) -> bool {
        lock(&self.state).used
    }

    pub(crate) fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Returns one more share for the same owner; `None` if the hold has ended.
    ///
    /// # Errors
    ///
    /// `Unexpected` if there are [`REENTRIES_PER_HOLD_MAX`] guards already.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Option<HoldShare>> {
        self.with_state(|state| {
            if !state.is_held() {
                return Ok(None);
            }
            if state.guards == REENTRIES_PER_HOLD_MAX {
                return Err(Error::new(ErrorKind::Unexpected, "re-enter")
                    .with_lock(self.grant.name())
                    .with_message(format!("{REENTRIES_PER_HOLD_MAX} guards of one owner")));
            }
            state.guards += 1;
            state.used = true;
            Ok(Some(HoldShare::new(self)))
        })
    }

    /// Sets what follows the end of the hold, and starts it if the hold has ended already.
    pub(crate) fn arm(self: &Arc<Self>, ending: Ending) {
        let mut state = lock(&self.state);
        let was_held = state.is_held();
        state.ending = Some(ending);
        self.left(state, was_held).start(self);
    }

    /// Gives one share back.
    pub(crate) fn leave(self: &Arc<Self>) -> Left {
        self.access(|state| {
            state.guards -= 1;
            // `access` has checked the deadline first: an expired hold is reported as lost, not as released.
            if state.is_held() && state.guards == 0 {
                state.phase = HoldPhase::Releasing;
            }
        })
        .1
    }

    /// Moves the deadline after an acknowledged renewal; no effect if the hold has ended or its deadline has passed.
    pub(crate) fn renewed(self: &Arc<Self>, armed_at: BootInstant) {
        self.with_state(|state| {
            if state.is_held() {
                state.deadline = state.deadline.max(lease::deadline(armed_at, self.ttl));
            }
        });
    }

    /// Marks the hold lost; no effect if it has ended already.
    pub(crate) fn lose(self: &Arc<Self>, why: LossReason) {
        let mut state = lock(&self.state);
        let was_held = state.is_held();
        if was_held {
            state.phase = HoldPhase::Lost(why);
        }
        self.left(state, was_held).start(self);
    }

    /// Marks the hold lost if its deadline has passed.
    pub(crate) fn check_clock(self: &Arc<Self>) {
        self.with_state(|_| {});
    }

    /// Returns whether the lock is held at this moment; false from the deadline on, without I/O.
    pub(crate) fn is_held(self: &Arc<Self>) -> bool {
        self.loss().is_none()
    }

    /// Like [`is_held`](Self::is_held), but an end that is found here is not noted. For `Debug`, which may run within an
    /// event: one about the end would be lost there, or wait for the first one.
    pub(crate) fn looks_held(&self) -> bool {
        let state = lock(&self.state);
        state.loss().is_none() && self.clock.now() < state.deadline.min(self.ends_at)
    }

    /// Returns why the lock was lost, if so.
    pub(crate) fn loss(self: &Arc<Self>) -> Option<Error> {
        self.with_state(|state| state.loss()).map(|why| self.lost_error(why))
    }

    /// Returns whether heartbeats must renew this hold.
    pub(crate) fn wants_renewal(self: &Arc<Self>) -> bool {
        self.with_state(|state| state.is_held())
    }

    /// Returns the time to the deadline or to the end that `max_hold` sets; zero if the hold is lost.
    pub(crate) fn remaining(self: &Arc<Self>) -> Duration {
        self.with_state(|state| {
            let until = state.deadline.min(self.ends_at);
            if state.loss().is_some() {
                Duration::ZERO
            } else if until == BootInstant::NEVER {
                Duration::MAX
            } else {
                until.since(self.clock.now())
            }
        })
    }

    /// Returns the time until the clock must be read again: timers stop while the machine is suspended, the clock does
    /// not.
    pub(crate) fn next_clock_check(self: &Arc<Self>) -> Duration {
        self.remaining().min(CLOCK_READ_PAUSE_MAX)
    }

    /// Returns when the clock will show the end of a hold that is not renewed; `NEVER` once the hold has ended.
    pub(crate) fn ends_by(&self) -> BootInstant {
        let state = lock(&self.state);
        if state.is_held() { state.deadline.min(self.ends_at) } else { BootInstant::NEVER }
    }

    /// Returns the current deadline.
    pub(crate) fn deadline(&self) -> BootInstant {
        lock(&self.state).deadline
    }

    /// Returns how the hold ended, if it has.
    pub(crate) fn end(self: &Arc<Self>) -> Option<HoldEnd> {
        self.with_state(|state| match state.phase {
            HoldPhase::Held => None,
            HoldPhase::Releasing => Some(HoldEnd::Released),
            HoldPhase::Lost(why) => Some(HoldEnd::Lost(why)),
        })
    }

    /// Stores the error of a release request that was not confirmed.
    pub(crate) fn release_failed(&self, error: Error) {
        lock(&self.state).unconfirmed = Some(error);
    }

    /// Returns the error for a guard whose release was not confirmed in time, with the store's last error as its cause.
    pub(crate) fn unconfirmed(&self) -> Error {
        let last_error = lock(&self.state).unconfirmed.clone();
        let kind = last_error.as_ref().map_or(ErrorKind::Unavailable, Error::kind);
        let error = Error::new(kind, "release")
            .with_lock(self.grant.name())
            .with_message("the store has not confirmed it yet; it is retried in the background");
        match last_error {
            Some(last_error) => error.with_source(last_error),
            None => error,
        }
    }

    /// Sets the outcome of the release and wakes the guard that waits for it; the first outcome counts.
    pub(crate) fn finish(&self, outcome: Result<()>) {
        lock(&self.state).outcome.get_or_insert(outcome);
        self.changed.notify_waiters();
    }

    /// Returns the outcome of the release, once it is known.
    pub(crate) fn outcome(&self) -> Option<Result<()>> {
        lock(&self.state).outcome.clone()
    }

    /// Waits until the hold has ended.
    pub(crate) async fn ended(self: &Arc<Self>) -> HoldEnd {
        self.wait_for(Self::end).await
    }

    /// Waits until the hold is lost.
    ///
    /// The timer runs on the caller's runtime, so a blocked keeper does not delay the result. Without such a timer, the
    /// keeper's timers find the loss.
    pub(crate) async fn lost(self: &Arc<Self>) -> Error {
        loop {
            tokio::select! {
                biased;
                lost = self.wait_for(Self::loss) => return lost,
                () = timer::pause(self.next_clock_check()) => {}
            }
        }
    }

    /// Waits for the outcome of the release after the last guard has left.
    pub(crate) async fn finished(self: &Arc<Self>) -> Result<()> {
        self.wait_for(|hold| hold.outcome()).await
    }

    async fn wait_for<T>(self: &Arc<Self>, check: impl Fn(&Arc<Self>) -> Option<T>) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registers before the check; a change between the check and the wait would be missed otherwise.
            changed.as_mut().enable();
            if let Some(found) = check(self) {
                return found;
            }
            changed.await;
        }
    }

    /// Accesses the state, after marking the hold lost if its deadline has passed, and starts what follows the end.
    fn with_state<T>(self: &Arc<Self>, access: impl FnOnce(&mut HoldState) -> T) -> T {
        let (result, left) = self.access(access);
        left.start(self);
        result
    }

    /// Accesses the state, after marking the hold lost if its deadline has passed.
    fn access<T>(&self, access: impl FnOnce(&mut HoldState) -> T) -> (T, Left) {
        let mut state = lock(&self.state);
        let was_held = state.is_held();
        if let Some(why) = self.passed_limit(&state) {
            state.phase = HoldPhase::Lost(why);
        }
        let result = access(&mut state);
        (result, self.left(state, was_held))
    }

    /// Releases the mutex after a change, and wakes those who wait for the end of the hold if it ended here.
    fn left(&self, mut state: MutexGuard<'_, HoldState>, was_held: bool) -> Left {
        let is_held = state.is_held();
        let ending = if is_held { None } else { state.ending.take() };
        // Before anything else: a waker may access the hold, or drop a task that owns a guard.
        drop(state);
        if was_held && !is_held {
            // A waker that panics must not prevent the release.
            contained(|| self.changed.notify_waiters());
        }
        Left::new(ending)
    }

    /// Returns which limit has passed while the lock was held, if any.
    fn passed_limit(&self, state: &HoldState) -> Option<LossReason> {
        if !state.is_held() {
            return None;
        }
        let now = self.clock.now();
        if now >= state.deadline {
            return Some(LossReason::Deadline);
        }
        (now >= self.ends_at).then_some(LossReason::MaxHold)
    }

    fn lost_error(&self, why: LossReason) -> Error {
        Error::new(ErrorKind::Lost, "hold").with_lock(self.grant.name()).with_message(why.text())
    }
}

impl HoldState {
    fn is_held(&self) -> bool {
        matches!(self.phase, HoldPhase::Held)
    }

    fn loss(&self) -> Option<LossReason> {
        match self.phase {
            HoldPhase::Lost(why) => Some(why),
            HoldPhase::Held | HoldPhase::Releasing => None,
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
