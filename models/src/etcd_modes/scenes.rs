//! The scenes, and the property that breaks without each step.

use super::*;
use crate::explore::{Protocol, Removal};

impl Protocol for EtcdModes {
    type Step = Step;
    const NAME: &'static str = "etcd modes";
    const EVENTUALLY: &'static str = EVENTUALLY;

    fn is_settled(&self, state: &State) -> bool {
        state.is_settled()
    }

    fn is_fair(&self, state: &State, action: &Action) -> bool {
        state.is_fair(action)
    }

    fn scenes() -> Vec<(&'static str, Self)> {
        let scene = |claims, modes, rechecks, faults| Self { without: None, claims, modes, rechecks, faults };
        let none = Faults::NONE;
        let (any, read_write) = (Mode::ANY, Mode::READ_WRITE);
        let lost_and_cancelled = Faults { lost: 1, cancels: 1, ..none };
        vec![
            ("2 x 2, read-write, handoffs alone", scene(4, read_write, false, none)),
            ("2 + 1, handoffs alone, lost", scene(3, any, false, Faults { lost: 1, ..none })),
            ("2 + 1, handoffs alone, cancel", scene(3, any, false, Faults { cancels: 1, ..none })),
            ("2 + 1, read-write, lost, cancel", scene(3, read_write, true, lost_and_cancelled)),
            ("2 + 1, lost, lease ends", scene(3, any, true, Faults { lost: 1, lapses: 1, ..none })),
            (
                "2 + 1, read-write, lost, operator",
                scene(3, read_write, true, Faults { lost: 1, deletes: 1, ..none }),
            ),
        ]
    }

    fn long_scenes() -> Vec<(&'static str, Self)> {
        let scene = |claims, modes, rechecks, faults| Self { without: None, claims, modes, rechecks, faults };
        let none = Faults::NONE;
        let (any, read_write) = (Mode::ANY, Mode::READ_WRITE);
        vec![
            ("2 x 2, handoffs alone", scene(4, any, false, none)),
            (
                "2 x 2, read-write, handoffs alone, cancel",
                scene(4, read_write, false, Faults { cancels: 1, ..none }),
            ),
            ("2 x 2, read-write, lease ends", scene(4, read_write, true, Faults { lapses: 1, ..none })),
            ("2 x 2, read-write, operator", scene(4, read_write, true, Faults { deletes: 1, ..none })),
            ("2 + 1, two lost, cancel", scene(3, any, true, Faults { lost: 2, cancels: 1, ..none })),
            ("2 + 1, lost, operator", scene(3, any, true, Faults { lost: 1, deletes: 1, ..none })),
        ]
    }

    fn removals() -> Vec<Removal<Self>> {
        let none = Faults::NONE;
        let lost = Faults { lost: 1, ..none };
        let deleted = Faults { deletes: 1, ..none };
        let removal = |step, breaks, modes, rechecks, faults| Removal {
            step,
            model: Self { without: Some(step), claims: 3, modes, rechecks, faults },
            breaks,
        };
        let (any, read_write) = (Mode::ANY, Mode::READ_WRITE);
        vec![
            removal(Step::HeedsLimitsBefore, LIMITS, any, false, none),
            removal(Step::CountsThoseBefore, EVENTUALLY, any, true, none),
            removal(Step::CountsWaiters, IN_ORDER, read_write, false, none),
            removal(Step::CountsWithEnqueue, LIMITS, any, false, none),
            removal(Step::ReadFindsOwnKey, LIMITS, read_write, true, deleted),
            removal(Step::HandsOffToAll, EVENTUALLY, read_write, false, none),
            removal(Step::QueueReadWithDeletion, EVENTUALLY, read_write, false, none),
            removal(Step::SharedHoldHandsOff, EVENTUALLY, read_write, false, none),
            removal(Step::WithdrawalHandsOff, EVENTUALLY, read_write, false, Faults { cancels: 1, ..none }),
            removal(Step::RepetitionHandsOff, EVENTUALLY, read_write, false, lost),
            removal(Step::HandoffNamesKey, LIMITS, read_write, true, Faults { lost: 1, deletes: 1, ..none }),
            removal(Step::HandoffNamesAdmission, TOKENS_RISE, read_write, true, deleted),
            removal(Step::Recheck, EVENTUALLY, read_write, true, lost),
            removal(Step::DeadlineBeforeExpiry, LIMITS, read_write, false, Faults { lapses: 1, ..none }),
        ]
    }
}
