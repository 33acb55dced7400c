//! A clock that a test moves, a hold under it, and callers that poll.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use lockkit_core::{
    BootInstant, Clock, FencingToken, LockName, Metadata,
    backend::{Claim, ClaimControl, Grant},
};
use shuttle::{
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    thread,
};

use crate::{
    attempt::{AcquireAnswer, Ticket},
    hold::Hold,
    share::HoldShare,
};

pub(crate) const ITERATIONS: usize = 3_000;
pub(crate) const TTL: Duration = Duration::from_secs(10);

/// Returns a clock, and what moves it.
pub(crate) fn manual_clock() -> (Clock, impl Fn(Duration)) {
    let now_ms = Arc::new(AtomicU64::new(1_000));
    let reading = Arc::clone(&now_ms);
    let clock = Clock::new(move || BootInstant::from_start(Duration::from_millis(reading.load(SeqCst))));
    let move_by = move |by: Duration| {
        now_ms.fetch_add(by.as_millis() as u64, SeqCst);
    };
    (clock, move_by)
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
    let (clock, _) = manual_clock();
    Hold::new(grant(&clock), TTL, None, clock)
}

/// Returns the first share of a new hold, its clock, and what moves that.
pub(crate) fn hold() -> (HoldShare, Clock, impl Fn(Duration)) {
    let (clock, move_by) = manual_clock();
    let hold = Hold::new(grant(&clock), TTL, None, clock.clone());
    hold.reserve_shares(1);
    (hold.take_share(), clock, move_by)
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
