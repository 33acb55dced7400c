//! The scenes, and the property that breaks without each step.

use super::*;
use crate::explore::{Protocol, Removal};

impl Protocol for RedisModes {
    type Step = Step;
    const NAME: &'static str = "redis modes";
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
        vec![
            ("2 + 1, messages alone", scene(3, any, false, none)),
            ("2 + 1, messages alone, lost", scene(3, any, false, Faults { lost: 1, ..none })),
            ("2 + 1, messages alone, cancel", scene(3, any, false, Faults { cancels: 1, ..none })),
            (
                "2 + 1, read-write, lost, death",
                scene(3, read_write, true, Faults { lost: 1, deaths: 1, ..none }),
            ),
            ("2 + 1, lapse, death", scene(3, any, true, Faults { lapses: 1, deaths: 1, ..none })),
            ("2 x 2, read-write, messages alone", scene(4, read_write, false, none)),
        ]
    }

    fn long_scenes() -> Vec<(&'static str, Self)> {
        let scene = |claims, modes, rechecks, faults| Self { without: None, claims, modes, rechecks, faults };
        let none = Faults::NONE;
        let (any, read_write) = (Mode::ANY, Mode::READ_WRITE);
        vec![
            (
                "2 x 2, read-write, messages alone, cancel",
                scene(4, read_write, false, Faults { cancels: 1, ..none }),
            ),
            ("2 x 2, read-write, death", scene(4, read_write, true, Faults { deaths: 1, ..none })),
            ("2 x 2, messages alone", scene(4, any, false, none)),
            (
                "2 + 1, lost, lapse, death",
                scene(3, any, true, Faults { lost: 1, lapses: 1, deaths: 1, ..none }),
            ),
        ]
    }

    fn removals() -> Vec<Removal<Self>> {
        let none = Faults::NONE;
        let lost = Faults { lost: 1, ..none };
        let death = Faults { deaths: 1, ..none };
        let removal = |step, breaks, modes, rechecks, faults| Removal {
            step,
            model: Self { without: Some(step), claims: 3, modes, rechecks, faults },
            breaks,
        };
        let (any, read_write) = (Mode::ANY, Mode::READ_WRITE);
        vec![
            removal(Step::HeedsLimitsOfHolders, LIMITS, any, false, none),
            removal(Step::CountsAndTakesAtOnce, LIMITS, any, false, none),
            removal(Step::QueueBeforeNewcomers, IN_ORDER, read_write, false, none),
            removal(Step::ServesAll, SERVED, read_write, false, none),
            removal(Step::SharedReleaseServes, SERVED, read_write, false, none),
            removal(Step::WithdrawalServes, SERVED, read_write, false, Faults { cancels: 1, ..none }),
            removal(Step::DropsExpired, EVENTUALLY, read_write, true, death),
            removal(Step::LifetimePerHolder, LIMITS, read_write, true, death),
            removal(Step::RenewalNeverAdds, NO_ORPHAN, read_write, true, lost),
            removal(Step::SharedTokenRises, TOKENS_RISE, read_write, false, none),
            removal(Step::Recheck, EVENTUALLY, read_write, true, lost),
            removal(Step::DeadlineBeforeExpiry, LIMITS, read_write, false, none),
        ]
    }
}
