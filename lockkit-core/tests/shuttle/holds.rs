//! Guards that share a hold, and what ends it.

use std::sync::Arc;

use lockkit_core::{Error, ErrorKind};
use shuttle::thread;

use crate::{
    ending::Ending,
    fixture::{ITERATIONS, TTL, hold},
    hold::HoldEnd,
    loss::LossReason,
};

#[test]
fn only_the_last_guard_releases() {
    shuttle::check_random(
        || {
            let (first, ..) = hold();
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
            let (first, clock, move_by) = hold();
            let hold = Arc::clone(first.hold());
            let renewing = {
                // A renewal that was sent before the deadline; its answer arrives at any time.
                let (hold, sent) = (Arc::clone(&hold), clock.now());
                thread::spawn(move || hold.renewed(sent.after(TTL / 2)))
            };
            let watching = {
                let hold = Arc::clone(&hold);
                thread::spawn(move || {
                    let seen = [hold.is_held(), hold.is_held(), hold.is_held()];
                    assert!(seen.is_sorted_by(|earlier, later| earlier >= later), "revived: {seen:?}");
                })
            };
            move_by(TTL);
            renewing.join().unwrap();
            watching.join().unwrap();
            let held = first.hold().is_held();
            move_by(TTL);
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
            let (first, ..) = hold();
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
fn release_is_started_once_whichever_thread_ends_the_hold() {
    shuttle::check_random(
        || {
            let ((first, _, move_by), ending) = (hold(), Ending::default());
            let hold = Arc::clone(first.hold());
            let losing = {
                let hold = Arc::clone(&hold);
                thread::spawn(move || hold.lose(LossReason::EntryGone))
            };
            let reading = {
                let hold = Arc::clone(&hold);
                thread::spawn(move || {
                    move_by(TTL);
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
fn first_outcome_of_a_release_counts() {
    shuttle::check_random(
        || {
            let (first, ..) = hold();
            let hold = Arc::clone(first.hold());
            drop(first);
            hold.finish(Ok(()));
            let late = {
                let hold = Arc::clone(&hold);
                thread::spawn(move || hold.finish(Err(Error::new(ErrorKind::Closed, "release"))))
            };
            assert!(matches!(hold.outcome(), Some(Ok(()))));
            late.join().unwrap();
            assert!(matches!(hold.outcome(), Some(Ok(()))), "a later outcome replaced it");
        },
        ITERATIONS,
    );
}

#[test]
fn renewals_that_are_known_in_another_order_keep_the_later_deadline() {
    shuttle::check_random(
        || {
            let (first, clock, _) = hold();
            let (earlier, later) = (clock.now().after(TTL / 4), clock.now().after(TTL / 2));
            let renewing = {
                let hold = Arc::clone(first.hold());
                thread::spawn(move || hold.renewed(later))
            };
            first.hold().renewed(earlier);
            renewing.join().unwrap();
            assert_eq!(first.hold().deadline(), lockkit_core::lease::deadline(later, TTL));
        },
        ITERATIONS,
    );
}
