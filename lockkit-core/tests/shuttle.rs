//! What callers and guards share without the keeper's tasks, under every thread interleaving that shuttle finds: the
//! re-entry table, the attempt with its callers, and the hold with its guards.
//!
//! The sources are compiled a second time, here, against shuttle's mutex.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::panic,
    clippy::unwrap_used,
    reason = "only what is shared is driven here"
)]

#[path = "../src/keeper/attempt.rs"]
mod attempt;
#[path = "../src/keeper/deadline.rs"]
mod deadline;
#[path = "../src/keeper/hold.rs"]
mod hold;
#[path = "../src/keeper/reentry.rs"]
mod reentry;
#[path = "../src/keeper/timer.rs"]
mod timer;

mod sync {
    pub(crate) use shuttle::sync::Mutex;
    use shuttle::sync::MutexGuard;

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
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
use hold::{End, Entered, Hold};
use lockkit_core::{
    BootInstant, Clock, Error, ErrorKind, FencingToken, LockName, Metadata, Owner, Result, TimeSource,
    backend::{self, Claim, ClaimControl, Grant},
    limits,
};
use reentry::{Met, Reentry};
use shuttle::thread;

const ITERATIONS: usize = 3_000;
const TTL: Duration = Duration::from_secs(10);

/// A clock that the test moves.
#[derive(Clone)]
struct Hand(Arc<shuttle::sync::atomic::AtomicU64>);

impl Hand {
    fn new() -> Self {
        Self(Arc::new(shuttle::sync::atomic::AtomicU64::new(1_000)))
    }

    fn move_by(&self, by: Duration) {
        self.0.fetch_add(by.as_millis() as u64, shuttle::sync::atomic::Ordering::SeqCst);
    }
}

impl TimeSource for Hand {
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

/// A hold in which nobody has a share.
fn new_hold() -> Arc<Hold> {
    let clock = Clock::new(Hand::new());
    Hold::new(grant(&clock), TTL, None, clock)
}

/// The first guard of a hold.
fn hold(hand: &Hand) -> Entered {
    let clock = Clock::new(hand.clone());
    let hold = Hold::new(grant(&clock), TTL, None, clock);
    hold.share_among(1);
    hold.take_share()
}

fn poll(ticket: &mut Ticket) -> Poll<attempt::Answer> {
    pin!(ticket.answer()).poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits for the outcome, while the other threads go on.
fn answer(ticket: &mut Ticket) -> attempt::Answer {
    loop {
        match poll(ticket) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::yield_now(),
        }
    }
}

/// Takes the share that an attempt of the owner was granted, and drops it: the hold.
fn take_and_drop(ticket: &mut Ticket) -> Arc<Hold> {
    match answer(ticket) {
        Ok(Some(entered)) => {
            let hold = Arc::clone(entered.hold());
            drop(entered);
            hold
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_last_guard_releases_and_no_other() {
    shuttle::check_random(
        || {
            let first = hold(&Hand::new());
            let hold = Arc::clone(first.hold());
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let hold = Arc::clone(&hold);
                    thread::spawn(move || {
                        // Entered before the hold ended: it cannot end before this guard has left.
                        if let Some(entered) = hold.enter().unwrap() {
                            assert!(hold.end().is_none());
                            drop(entered);
                        }
                    })
                })
                .collect();
            assert!(hold.end().is_none());
            drop(first);
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(matches!(hold.end(), Some(End::Released)));
            assert!(hold.enter().unwrap().is_none(), "what is being released is not entered");
        },
        ITERATIONS,
    );
}

#[test]
fn a_loss_that_was_seen_is_never_taken_back() {
    shuttle::check_random(
        || {
            let hand = Hand::new();
            let first = hold(&hand);
            let hold = Arc::clone(first.hold());
            let renewing = {
                let (hold, hand) = (Arc::clone(&hold), hand.clone());
                // A renewal that was sent before the deadline, and is answered at any time.
                let sent = hand.now();
                thread::spawn(move || hold.renewed(sent.after(TTL / 2)))
            };
            let watching = {
                let hold = Arc::clone(&hold);
                thread::spawn(move || {
                    let seen = [hold.is_held(), hold.is_held(), hold.is_held()];
                    assert!(seen.is_sorted_by(|earlier, later| earlier >= later), "revived: {seen:?}");
                })
            };
            hand.move_by(TTL);
            renewing.join().unwrap();
            watching.join().unwrap();
            let held = first.hold().is_held();
            hand.move_by(TTL);
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
            let first = hold(&Hand::new());
            let hold = Arc::clone(first.hold());
            let losing = {
                let hold = Arc::clone(&hold);
                thread::spawn(move || hold.lose("told by a test"))
            };
            drop(first);
            let end = hold.end().map(|end| matches!(end, End::Lost));
            losing.join().unwrap();
            let finally = hold.end().map(|end| matches!(end, End::Lost));
            assert!(finally.is_some());
            assert!(end.is_none() || end == finally, "{end:?} became {finally:?}");
        },
        ITERATIONS,
    );
}

#[test]
fn whoever_joins_an_attempt_keeps_it_from_giving_up() {
    shuttle::check_random(
        || {
            let (attempt, first) = Attempt::begin(name());
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
fn the_guard_of_an_attempts_only_caller_is_the_last_one_from_the_start() {
    shuttle::check_random(
        || {
            let (attempt, mut ticket) = Attempt::begin(name());
            let caller = thread::spawn(move || {
                assert!(take_and_drop(&mut ticket).end().is_some(), "somebody else still had a share");
            });
            Attempt::grant(vec![attempt], &new_hold()).announce();
            caller.join().unwrap();
        },
        ITERATIONS,
    );
}

#[test]
fn a_share_that_its_caller_does_not_take_is_left() {
    shuttle::check_random(
        || {
            let (attempt, ticket) = Attempt::begin(name());
            let hold = new_hold();
            let leaving = thread::spawn(move || drop(ticket));
            Attempt::grant(vec![attempt], &hold).announce();
            leaving.join().unwrap();
            assert!(matches!(hold.end(), Some(End::Released)), "held by nobody");
        },
        ITERATIONS,
    );
}

/// What the life task does when its claim is granted.
fn settle_grant(table: &Reentry, key: &reentry::Key, attempt: &Arc<Attempt>) -> Arc<Hold> {
    let hold = new_hold();
    table.granted(key, attempt, &hold).announce();
    if hold.end().is_some() {
        table.ended(key, &hold);
    }
    hold
}

#[test]
fn every_caller_of_an_owner_gets_a_share_of_one_hold_or_starts_anew() {
    shuttle::check_random(
        || {
            let table = Arc::new(Reentry::default());
            let key = (name(), Owner::new());
            let callers: Vec<_> = (0..3)
                .map(|_| {
                    let (table, key) = (Arc::clone(&table), key.clone());
                    thread::spawn(move || match table.wait(&key).unwrap() {
                        Met::Held(entered) => assert!(entered.hold().end().is_none()),
                        // Whoever made the attempt ends it.
                        Met::Joined(mut ticket) => match answer(&mut ticket) {
                            Ok(Some(entered)) => assert!(entered.hold().end().is_none()),
                            other => panic!("{other:?}"),
                        },
                        Met::New(attempt, mut ticket) => {
                            let hold = settle_grant(&table, &key, &attempt);
                            match poll(&mut ticket) {
                                Poll::Ready(Ok(Some(entered))) => assert!(Arc::ptr_eq(entered.hold(), &hold)),
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
fn whoever_enters_a_grant_that_nobody_took_is_the_last_one() {
    shuttle::check_random(
        || {
            let table = Arc::new(Reentry::default());
            let key = (name(), Owner::new());
            let Met::New(attempt, ticket) = table.wait(&key).unwrap() else { panic!() };
            drop(ticket);
            let other = {
                let (table, key) = (Arc::clone(&table), key.clone());
                thread::spawn(move || {
                    if let Met::Held(entered) = table.wait(&key).unwrap() {
                        let hold = Arc::clone(entered.hold());
                        drop(entered);
                        assert!(hold.end().is_some(), "the keeper still had a share");
                    }
                })
            };
            settle_grant(&table, &key, &attempt);
            other.join().unwrap();
        },
        ITERATIONS,
    );
}

/// A try and a wait of one owner at the same time: the try is granted, and the waiting caller shares its hold. Whoever
/// of the two drops its guard last ends it.
#[test]
fn a_granted_try_is_shared_with_the_owners_waiting_callers() {
    shuttle::check_random(
        || {
            let table = Arc::new(Reentry::default());
            let key = (name(), Owner::new());
            let (attempt, mut tried) = Attempt::begin(name());
            let waiting = {
                let (table, key) = (Arc::clone(&table), key.clone());
                thread::spawn(move || match table.wait(&key).unwrap() {
                    Met::Held(entered) => drop(entered),
                    Met::New(_, mut ticket) => match poll(&mut ticket) {
                        // The hold of the try has ended before, or the try has not been granted yet: then it is.
                        Poll::Pending if table.enter(&key).unwrap().is_none() => {}
                        Poll::Pending => drop(take_and_drop(&mut ticket)),
                        Poll::Ready(answer) => drop(answer.unwrap().unwrap()),
                    },
                    Met::Joined(_) => panic!("nobody else waits"),
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
fn an_owner_whose_attempt_fails_can_start_anew() {
    shuttle::check_random(
        || {
            let table = Arc::new(Reentry::default());
            let key = (name(), Owner::new());
            let Met::New(attempt, ticket) = table.wait(&key).unwrap() else { panic!() };
            let other = {
                let (table, key) = (Arc::clone(&table), key.clone());
                thread::spawn(move || match table.wait(&key).unwrap() {
                    Met::Joined(mut ticket) => assert!(answer(&mut ticket).is_err()),
                    Met::New(..) => {}
                    met => panic!("{met:?}"),
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
