//! The state that callers and guards share, under random thread interleavings by shuttle: the re-entry table, the
//! attempt with its callers, and the hold with its guards.
//!
//! The sources are compiled a second time here, against shuttle's mutex.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the tests use only the shared state"
)]

#[path = "../src/keeper/attempt.rs"]
mod attempt;
#[path = "../src/keeper/hold.rs"]
mod hold;
#[path = "../src/keeper/loss.rs"]
mod loss;
#[path = "../src/keeper/reentry.rs"]
mod reentry;
#[path = "../src/keeper/share.rs"]
mod share;
#[path = "../src/keeper/timer.rs"]
mod timer;

#[path = "../src/keeper/unsent.rs"]
mod unsent;

mod sync {
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }
}

/// What follows the end of a hold: here it is counted.
mod ending {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use super::hold::Hold;

    #[derive(Clone, Default)]
    pub(crate) struct Ending(Arc<AtomicU32>);

    impl Ending {
        pub(crate) fn start(self, hold: Arc<Hold>) {
            assert!(hold.end().is_some(), "started before the end");
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        pub(crate) fn started(&self) -> u32 {
            self.0.load(Ordering::SeqCst)
        }
    }
}

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use attempt::{Attempt, Ticket};
use hold::{Hold, HoldEnd};
use lockkit_core::{
    BootInstant, Clock, Error, ErrorKind, FencingToken, LockName, Metadata, Owner, Result, TimeSource,
    backend::{self, Claim, ClaimControl, Grant},
    lease, limits,
};
use loss::LossReason;
use reentry::{ReentryTable, WaitStart};
use share::HoldShare;
use shuttle::thread;
use unsent::Unsent;

const ITERATIONS: usize = 3_000;
const TTL: Duration = Duration::from_secs(10);

/// A clock that the test moves.
#[derive(Clone)]
struct ManualClock(Arc<shuttle::sync::atomic::AtomicU64>);

impl ManualClock {
    fn new() -> Self {
        Self(Arc::new(shuttle::sync::atomic::AtomicU64::new(1_000)))
    }

    fn move_by(&self, by: Duration) {
        self.0.fetch_add(by.as_millis() as u64, shuttle::sync::atomic::Ordering::SeqCst);
    }
}

impl TimeSource for ManualClock {
    fn now(&self) -> BootInstant {
        BootInstant::from_start(Duration::from_millis(self.0.load(shuttle::sync::atomic::Ordering::SeqCst)))
    }
}

fn name() -> LockName {
    LockName::new("a").unwrap()
}

fn grant(clock: &Clock) -> Grant {
    let claim = Claim::new(name(), true, Metadata::of_this_process(None), &ClaimControl::new());
    Grant::new(&claim, FencingToken::new(1), clock.now())
}

/// Returns a hold without shares.
fn new_hold() -> Arc<Hold> {
    let clock = Clock::new(ManualClock::new());
    Hold::new(grant(&clock), TTL, None, clock)
}

/// Returns the first share of a new hold.
fn hold(time: &ManualClock) -> HoldShare {
    let clock = Clock::new(time.clone());
    let hold = Hold::new(grant(&clock), TTL, None, clock);
    hold.reserve_shares(1);
    hold.take_share()
}

fn poll(ticket: &mut Ticket) -> Poll<attempt::AcquireAnswer> {
    pin!(ticket.answer()).poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits for the result while the other threads run.
fn answer(ticket: &mut Ticket) -> attempt::AcquireAnswer {
    loop {
        match poll(ticket) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::yield_now(),
        }
    }
}

/// Takes the share of a granted attempt, drops it, and returns the hold.
fn take_and_drop(ticket: &mut Ticket) -> Arc<Hold> {
    match answer(ticket) {
        Ok(Some(share)) => {
            let hold = Arc::clone(share.hold());
            drop(share);
            hold
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_the_last_guard_releases() {
    shuttle::check_random(
        || {
            let first = hold(&ManualClock::new());
            let hold = Arc::clone(first.hold());
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let hold = Arc::clone(&hold);
                    thread::spawn(move || {
                        // The hold cannot end before this share is dropped.
                        if let Some(share) = hold.enter().unwrap() {
                            assert!(hold.end().is_none());
                            drop(share);
                        }
                    })
                })
                .collect();
            assert!(hold.end().is_none());
            drop(first);
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(matches!(hold.end(), Some(HoldEnd::Released)));
            assert!(hold.enter().unwrap().is_none(), "a hold that is being released is not entered");
        },
        ITERATIONS,
    );
}

#[test]
fn observed_loss_is_final() {
    shuttle::check_random(
        || {
            let time = ManualClock::new();
            let first = hold(&time);
            let hold = Arc::clone(first.hold());
            let renewing = {
                let (hold, time) = (Arc::clone(&hold), time.clone());
                // A renewal that was sent before the deadline; its answer arrives at any time.
                let sent = time.now();
                thread::spawn(move || hold.renewed(sent.after(TTL / 2)))
            };
            let watching = {
                let hold = Arc::clone(&hold);
                thread::spawn(move || {
                    let seen = [hold.is_held(), hold.is_held(), hold.is_held()];
                    assert!(seen.is_sorted_by(|earlier, later| earlier >= later), "revived: {seen:?}");
                })
            };
            time.move_by(TTL);
            renewing.join().unwrap();
            watching.join().unwrap();
            let held = first.hold().is_held();
            time.move_by(TTL);
            assert!(!first.hold().is_held());
            assert!(held || first.hold().loss().is_some());
        },
        ITERATIONS,
    );
}

#[test]
fn a_hold_ends_once_as_lost_or_as_released() {
    shuttle::check_random(
        || {
            let first = hold(&ManualClock::new());
            let hold = Arc::clone(first.hold());
            let losing = {
                let hold = Arc::clone(&hold);
                thread::spawn(move || hold.lose(LossReason::EntryGone))
            };
            drop(first);
            let end = hold.end().map(|end| matches!(end, HoldEnd::Lost(_)));
            losing.join().unwrap();
            let finally = hold.end().map(|end| matches!(end, HoldEnd::Lost(_)));
            assert!(finally.is_some());
            assert!(end.is_none() || end == finally, "{end:?} became {finally:?}");
        },
        ITERATIONS,
    );
}

/// A hold is armed after its callers were given shares; each of these threads may end it, before or after that.
#[test]
fn release_is_started_once_whoever_ends_the_hold() {
    shuttle::check_random(
        || {
            let (time, ending) = (ManualClock::new(), ending::Ending::default());
            let first = hold(&time);
            let hold = Arc::clone(first.hold());
            let losing = {
                let hold = Arc::clone(&hold);
                thread::spawn(move || hold.lose(LossReason::EntryGone))
            };
            let reading = {
                let hold = Arc::clone(&hold);
                thread::spawn(move || {
                    time.move_by(TTL);
                    hold.check_clock();
                })
            };
            let leaving = thread::spawn(move || drop(first));
            hold.arm(ending.clone());
            for thread in [losing, reading, leaving] {
                thread.join().unwrap();
            }
            assert_eq!(ending.started(), 1);
        },
        ITERATIONS,
    );
}

#[test]
fn joined_attempt_does_not_give_up() {
    shuttle::check_random(
        || {
            let (attempt, first) = Attempt::begin(name(), &Unsent::default());
            let joining = {
                let attempt = Arc::clone(&attempt);
                thread::spawn(move || {
                    if let Some(ticket) = attempt.join() {
                        assert!(!attempt.control().has_given_up());
                        drop(ticket);
                    }
                })
            };
            drop(first);
            joining.join().unwrap();
            assert!(attempt.control().has_given_up());
        },
        ITERATIONS,
    );
}

#[test]
fn only_caller_of_an_attempt_gets_the_last_share() {
    shuttle::check_random(
        || {
            let (attempt, mut ticket) = Attempt::begin(name(), &Unsent::default());
            let caller = thread::spawn(move || {
                assert!(take_and_drop(&mut ticket).end().is_some(), "another share was left");
            });
            Attempt::grant(&attempt, None, &new_hold()).announce();
            caller.join().unwrap();
        },
        ITERATIONS,
    );
}

#[test]
fn share_that_its_caller_does_not_take_is_given_back() {
    shuttle::check_random(
        || {
            let (attempt, ticket) = Attempt::begin(name(), &Unsent::default());
            let hold = new_hold();
            let leaving = thread::spawn(move || drop(ticket));
            Attempt::grant(&attempt, None, &hold).announce();
            leaving.join().unwrap();
            assert!(matches!(hold.end(), Some(HoldEnd::Released)), "the hold has no share left");
        },
        ITERATIONS,
    );
}

/// Does what the claim task does after a grant.
fn settle_grant(table: &ReentryTable, key: &reentry::ReentryKey, attempt: &Arc<Attempt>) -> Arc<Hold> {
    let hold = new_hold();
    table.granted(key, attempt, &hold).announce();
    if hold.end().is_some() {
        table.ended(key, &hold);
    }
    hold
}

#[test]
fn every_caller_of_an_owner_gets_a_share_or_starts_an_attempt() {
    shuttle::check_random(
        || {
            let table = Arc::new(ReentryTable::default());
            let key = (name(), Owner::new());
            let callers: Vec<_> = (0..3)
                .map(|_| {
                    let (table, key) = (Arc::clone(&table), key.clone());
                    thread::spawn(move || match table.wait(&key, &Unsent::default()).unwrap() {
                        WaitStart::Held(share) => assert!(share.hold().end().is_none()),
                        // The thread that created the attempt ends it.
                        WaitStart::Joined(mut ticket) => match answer(&mut ticket) {
                            Ok(Some(share)) => assert!(share.hold().end().is_none()),
                            other => panic!("{other:?}"),
                        },
                        WaitStart::New(attempt, mut ticket) => {
                            let hold = settle_grant(&table, &key, &attempt);
                            match poll(&mut ticket) {
                                Poll::Ready(Ok(Some(share))) => assert!(Arc::ptr_eq(share.hold(), &hold)),
                                other => panic!("{other:?}"),
                            }
                            if hold.end().is_some() {
                                table.ended(&key, &hold);
                            }
                        }
                    })
                })
                .collect();
            for caller in callers {
                caller.join().unwrap();
            }
        },
        ITERATIONS,
    );
}

#[test]
fn share_of_a_grant_without_callers_is_the_last_one() {
    shuttle::check_random(
        || {
            let table = Arc::new(ReentryTable::default());
            let key = (name(), Owner::new());
            let WaitStart::New(attempt, ticket) = table.wait(&key, &Unsent::default()).unwrap() else {
                panic!()
            };
            drop(ticket);
            let other = {
                let (table, key) = (Arc::clone(&table), key.clone());
                thread::spawn(move || {
                    if let WaitStart::Held(share) = table.wait(&key, &Unsent::default()).unwrap() {
                        let hold = Arc::clone(share.hold());
                        drop(share);
                        assert!(hold.end().is_some(), "another share was left");
                    }
                })
            };
            settle_grant(&table, &key, &attempt);
            other.join().unwrap();
        },
        ITERATIONS,
    );
}

/// A try and a wait of one owner at the same time: the try is granted, and the waiting caller shares its hold. The last
/// share that is dropped ends the hold.
#[test]
fn a_granted_try_is_shared_with_the_owners_waiting_callers() {
    shuttle::check_random(
        || {
            let table = Arc::new(ReentryTable::default());
            let key = (name(), Owner::new());
            let (attempt, mut tried) = Attempt::begin(name(), &Unsent::default());
            let waiting = {
                let (table, key) = (Arc::clone(&table), key.clone());
                thread::spawn(move || match table.wait(&key, &Unsent::default()).unwrap() {
                    WaitStart::Held(share) => drop(share),
                    WaitStart::New(_, mut ticket) => match poll(&mut ticket) {
                        // The hold of the try has ended, or the try has not been granted yet.
                        Poll::Pending if table.enter(&key).unwrap().is_none() => {}
                        Poll::Pending => drop(take_and_drop(&mut ticket)),
                        Poll::Ready(answer) => drop(answer.unwrap().unwrap()),
                    },
                    WaitStart::Joined(_) => panic!("no other call waits"),
                })
            };
            let trying = thread::spawn(move || take_and_drop(&mut tried));
            let hold = settle_grant(&table, &key, &attempt);
            assert!(Arc::ptr_eq(&trying.join().unwrap(), &hold));
            waiting.join().unwrap();
            assert!(hold.end().is_some(), "no guard is left");
        },
        ITERATIONS,
    );
}

#[test]
fn owner_whose_attempt_failed_can_start_another() {
    shuttle::check_random(
        || {
            let table = Arc::new(ReentryTable::default());
            let key = (name(), Owner::new());
            let WaitStart::New(attempt, ticket) = table.wait(&key, &Unsent::default()).unwrap() else {
                panic!()
            };
            let other = {
                let (table, key) = (Arc::clone(&table), key.clone());
                thread::spawn(move || match table.wait(&key, &Unsent::default()).unwrap() {
                    WaitStart::Joined(mut ticket) => assert!(answer(&mut ticket).is_err()),
                    WaitStart::New(..) => {}
                    other => panic!("{other:?}"),
                })
            };
            table.failed(&key, &attempt);
            attempt.end(Err(Error::new(ErrorKind::Unavailable, "acquire")));
            drop(ticket);
            other.join().unwrap();
        },
        ITERATIONS,
    );
}
