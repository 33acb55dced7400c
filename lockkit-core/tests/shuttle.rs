//! What callers and guards share without the keeper's tasks, under every thread interleaving that shuttle finds: the
//! re-entry table, the attempt with its callers, and the hold with its guards.
//!
//! The sources are compiled a second time, here, against shuttle's mutex.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
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

mod sync {
    pub(crate) use shuttle::sync::Mutex;
    use shuttle::sync::MutexGuard;

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }
}

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use attempt::{Patience, Ticket};
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

fn hold(hand: &Hand) -> Entered {
    let clock = Clock::new(hand.clone());
    Hold::enter_first(grant(&clock), TTL, None, clock)
}

fn poll(ticket: &mut Ticket) -> Poll<attempt::Answer> {
    Pin::new(ticket).poll(&mut Context::from_waker(Waker::noop()))
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
            let (attempt, first) = attempt::Attempt::begin(name(), Patience::Unlimited);
            let joining = {
                let attempt = Arc::clone(&attempt);
                thread::spawn(move || {
                    if let Some(ticket) = attempt.join(Patience::Unlimited) {
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
            let (attempt, mut ticket) = attempt::Attempt::begin(name(), Patience::Unlimited);
            let caller = thread::spawn(move || {
                loop {
                    match poll(&mut ticket) {
                        Poll::Ready(Ok(Some(entered))) => {
                            let hold = Arc::clone(entered.hold());
                            drop(entered);
                            break assert!(hold.end().is_some(), "the keeper still had a share");
                        }
                        Poll::Ready(other) => panic!("{other:?}"),
                        Poll::Pending => thread::yield_now(),
                    }
                }
            });
            let entered = hold(&Hand::new());
            attempt.end(move || Ok(Some(entered.share())));
            caller.join().unwrap();
        },
        ITERATIONS,
    );
}

/// What the life task does when its claim is granted.
fn settle_grant(table: &Reentry, key: &reentry::Key, attempt: &Arc<attempt::Attempt>) -> Arc<Hold> {
    let entered = hold(&Hand::new());
    let hold = Arc::clone(entered.hold());
    table.granted(key, attempt, &hold, move || Ok(Some(entered.share()))).send();
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
                    thread::spawn(move || match table.meet(&key, Patience::Unlimited).unwrap() {
                        Met::Held(entered) => assert!(entered.hold().end().is_none()),
                        Met::Joined(mut ticket) => loop {
                            // Whoever made the attempt ends it.
                            match poll(&mut ticket) {
                                Poll::Ready(Ok(Some(entered))) => {
                                    break assert!(entered.hold().end().is_none());
                                }
                                Poll::Ready(other) => panic!("{other:?}"),
                                Poll::Pending => thread::yield_now(),
                            }
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
                        Met::Busy => panic!("nobody only tried"),
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
            let Met::New(attempt, ticket) = table.meet(&key, Patience::Unlimited).unwrap() else { panic!() };
            drop(ticket);
            let other = {
                let (table, key) = (Arc::clone(&table), key.clone());
                thread::spawn(move || {
                    if let Met::Held(entered) = table.meet(&key, Patience::Unlimited).unwrap() {
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

#[test]
fn an_owner_whose_attempt_fails_can_start_anew() {
    shuttle::check_random(
        || {
            let table = Arc::new(Reentry::default());
            let key = (name(), Owner::new());
            let Met::New(attempt, ticket) = table.meet(&key, Patience::Unlimited).unwrap() else { panic!() };
            let other = {
                let (table, key) = (Arc::clone(&table), key.clone());
                thread::spawn(move || match table.meet(&key, Patience::Unlimited).unwrap() {
                    Met::Joined(mut ticket) => loop {
                        match poll(&mut ticket) {
                            Poll::Ready(answer) => break assert!(answer.is_err()),
                            Poll::Pending => thread::yield_now(),
                        }
                    },
                    Met::New(..) => {}
                    met => panic!("{met:?}"),
                })
            };
            table.failed(&key, &attempt);
            attempt.end(|| Err(Error::new(ErrorKind::Unavailable, "acquire")));
            drop(ticket);
            other.join().unwrap();
        },
        ITERATIONS,
    );
}
