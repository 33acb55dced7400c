//! A clock that a test moves, a hold under it, and callers that poll.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use lockkit_core::{
    BootInstant, Clock, FencingToken, LockName, Metadata, TimeSource,
    backend::{Claim, ClaimControl, Grant},
};
use shuttle::thread;

use crate::{
    attempt::{AcquireAnswer, Ticket},
    hold::Hold,
    share::HoldShare,
};

pub(crate) const ITERATIONS: usize = 3_000;
pub(crate) const TTL: Duration = Duration::from_secs(10);

/// A clock that the test moves.
#[derive(Clone)]
pub(crate) struct ManualClock(Arc<shuttle::sync::atomic::AtomicU64>);

impl ManualClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(shuttle::sync::atomic::AtomicU64::new(1_000)))
    }

    pub(crate) fn move_by(&self, by: Duration) {
        self.0.fetch_add(by.as_millis() as u64, shuttle::sync::atomic::Ordering::SeqCst);
    }
}

impl TimeSource for ManualClock {
    fn now(&self) -> BootInstant {
        BootInstant::from_start(Duration::from_millis(self.0.load(shuttle::sync::atomic::Ordering::SeqCst)))
    }
}

pub(crate) fn name() -> LockName {
    LockName::new("a").unwrap()
}

pub(crate) fn grant(clock: &Clock) -> Grant {
    let claim = Claim::new(name(), true, Metadata::of_this_process(None), &ClaimControl::new());
    Grant::new(&claim, FencingToken::new(1), clock.now())
}

/// Returns a hold without shares.
pub(crate) fn new_hold() -> Arc<Hold> {
    let clock = Clock::new(ManualClock::new());
    Hold::new(grant(&clock), TTL, None, clock)
}

/// Returns the first share of a new hold.
pub(crate) fn hold(time: &ManualClock) -> HoldShare {
    let clock = Clock::new(time.clone());
    let hold = Hold::new(grant(&clock), TTL, None, clock);
    hold.reserve_shares(1);
    hold.take_share()
}

pub(crate) fn poll(ticket: &mut Ticket) -> Poll<AcquireAnswer> {
    pin!(ticket.answer()).poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits for the result while the other threads run.
pub(crate) fn answer(ticket: &mut Ticket) -> AcquireAnswer {
    loop {
        match poll(ticket) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::yield_now(),
        }
    }
}

/// Takes the share of a granted attempt, drops it, and returns the hold.
pub(crate) fn take_and_drop(ticket: &mut Ticket) -> Arc<Hold> {
    match answer(ticket) {
        Ok(Some(share)) => {
            let hold = Arc::clone(share.hold());
            drop(share);
            hold
        }
        other => panic!("{other:?}"),
    }
}
