//! Callers that share an attempt, and the re-entry table that brings them together.

use std::{sync::Arc, task::Poll};

use lockkit_core::{Error, ErrorKind, Metadata, Owner, backend::Claim};
use shuttle::thread;

use crate::{
    attempt::{Attempt, Ticket},
    fixture::{ITERATIONS, answer, name, new_hold, poll, take_and_drop},
    hold::{Hold, HoldEnd},
    reentry::{ReentryKey, ReentryTable, WaitStart},
    unsent::Unsent,
};

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

/// The keeper's thread may grant the lock while the caller's thread notices the limit.
#[test]
fn caller_at_its_time_limit_takes_the_grant_that_is_there() {
    shuttle::check_random(
        || {
            let (attempt, ticket) = Attempt::begin(name(), &Unsent::default());
            Claim::new(name(), true, Metadata::of_this_process(None), attempt.control()).note_contended();
            Attempt::grant(&attempt, None, &new_hold()).announce();
            assert!(matches!(ticket.timed_out(None), Ok(Some(_))));
        },
        1,
    );
}

/// The callers of one owner at one lock.
#[derive(Clone)]
struct OneOwner {
    table: Arc<ReentryTable>,
    key: ReentryKey,
}

impl OneOwner {
    fn new() -> Self {
        Self { table: Arc::default(), key: (name(), Owner::new()) }
    }

    fn wait(&self) -> WaitStart {
        self.table.wait(&self.key, &Unsent::default()).unwrap()
    }

    /// Starts an attempt as the first caller.
    fn starts(&self) -> (Arc<Attempt>, Ticket) {
        match self.wait() {
            WaitStart::New(attempt, ticket) => (attempt, ticket),
            other => panic!("{other:?}"),
        }
    }

    /// Runs another caller in a thread of its own.
    fn spawn(&self, caller: impl FnOnce(Self) + Send + 'static) -> thread::JoinHandle<()> {
        let owner = self.clone();
        thread::spawn(move || caller(owner))
    }

    /// Does what the claim task does after a grant.
    fn settle_grant(&self, attempt: &Arc<Attempt>) -> Arc<Hold> {
        let hold = new_hold();
        self.table.granted(&self.key, attempt, &hold).announce();
        if hold.end().is_some() {
            self.table.ended(&self.key, &hold);
        }
        hold
    }
}

#[test]
fn every_caller_of_an_owner_gets_a_share_or_starts_an_attempt() {
    shuttle::check_random(
        || {
            let owner = OneOwner::new();
            let callers = [(); 3].map(|()| {
                owner.spawn(|owner| match owner.wait() {
                    WaitStart::Held(share) => assert!(share.hold().end().is_none()),
                    // The thread that created the attempt ends it.
                    WaitStart::Joined(mut ticket) => match answer(&mut ticket) {
                        Ok(Some(share)) => assert!(share.hold().end().is_none()),
                        other => panic!("{other:?}"),
                    },
                    WaitStart::New(attempt, mut ticket) => {
                        let hold = owner.settle_grant(&attempt);
                        match poll(&mut ticket) {
                            Poll::Ready(Ok(Some(share))) => assert!(Arc::ptr_eq(share.hold(), &hold)),
                            other => panic!("{other:?}"),
                        }
                        if hold.end().is_some() {
                            owner.table.ended(&owner.key, &hold);
                        }
                    }
                })
            });
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
            let owner = OneOwner::new();
            let (attempt, ticket) = owner.starts();
            drop(ticket);
            let other = owner.spawn(|owner| {
                if let WaitStart::Held(share) = owner.wait() {
                    let hold = Arc::clone(share.hold());
                    drop(share);
                    assert!(hold.end().is_some(), "another share was left");
                }
            });
            owner.settle_grant(&attempt);
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
            let owner = OneOwner::new();
            let (attempt, mut tried) = Attempt::begin(name(), &Unsent::default());
            let waiting = owner.spawn(|owner| match owner.wait() {
                WaitStart::Held(share) => drop(share),
                WaitStart::New(_, mut ticket) => match poll(&mut ticket) {
                    // The hold of the try has ended, or the try has not been granted yet.
                    Poll::Pending if owner.table.enter(&owner.key).unwrap().is_none() => {}
                    Poll::Pending => drop(take_and_drop(&mut ticket)),
                    Poll::Ready(answer) => drop(answer.unwrap().unwrap()),
                },
                WaitStart::Joined(_) => panic!("no other call waits"),
            });
            let trying = thread::spawn(move || take_and_drop(&mut tried));
            let hold = owner.settle_grant(&attempt);
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
            let owner = OneOwner::new();
            let (attempt, ticket) = owner.starts();
            let other = owner.spawn(|owner| match owner.wait() {
                WaitStart::Joined(mut ticket) => assert!(answer(&mut ticket).is_err()),
                WaitStart::New(..) => {}
                other => panic!("{other:?}"),
            });
            owner.table.failed(&owner.key, &attempt);
            attempt.end(Err(Error::new(ErrorKind::Unavailable, "acquire")));
            drop(ticket);
            other.join().unwrap();
        },
        ITERATIONS,
    );
}

/// The end of an attempt, and that of a hold, are known a little later than their owner starts the next ones.
#[test]
fn late_end_of_an_earlier_attempt_or_hold_leaves_the_next_ones() {
    shuttle::check_random(
        || {
            let owner = OneOwner::new();
            let (earlier, ticket) = owner.starts();
            drop(ticket);
            let WaitStart::New(attempt, mut ticket) = owner.wait() else {
                panic!("its only caller had left")
            };
            let OneOwner { table, key } = &owner;
            table.failed(key, &earlier);
            let WaitStart::Joined(other) = owner.wait() else { panic!("the second attempt was forgotten") };
            drop(other);
            let hold = new_hold();
            table.granted(key, &attempt, &hold).announce();
            table.ended(key, &new_hold());
            assert!(table.enter(key).unwrap().is_some(), "the hold was forgotten");
            assert!(answer(&mut ticket).unwrap().is_some());
        },
        ITERATIONS / 10,
    );
}
