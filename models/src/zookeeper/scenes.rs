//! The scenes, and the property that breaks without each step.

use super::*;
use crate::explore::{Protocol, Removal};

impl Protocol for ZooKeeper {
    type Step = Step;
    const NAME: &'static str = "zookeeper queue";
    const EVENTUALLY: &'static str = EVENTUALLY;

    fn is_settled(&self, state: &State) -> bool {
        state.is_settled()
    }

    fn is_fair(&self, state: &State, action: &Action) -> bool {
        state.is_fair(action)
    }

    fn scenes() -> Vec<(&'static str, Self)> {
        let scene = |claims, faults| Self { without: None, claims, faults };
        let none = Faults::NONE;
        vec![
            ("2 x 2, cancel", scene(4, Faults { cancels: 1, ..none })),
            ("2 x 2, lost", scene(4, Faults { lost: 1, ..none })),
            ("2 x 2, session ends", scene(4, Faults { lapses: 1, ..none })),
            ("2 + 1, two lost, cancel", scene(3, Faults { lost: 2, cancels: 1, ..none })),
            ("2 + 1, lost, session ends", scene(3, Faults { lost: 1, lapses: 1, ..none })),
            ("2 + 1, lost, operator", scene(3, Faults { lost: 1, deletes: 1, ..none })),
            ("2 + 1, lost, refused", scene(3, Faults { lost: 1, refusals: 1, ..none })),
            ("2 + 1, session ends, late list", scene(3, Faults { lapses: 1, late: 1, ..none })),
        ]
    }

    fn long_scenes() -> Vec<(&'static str, Self)> {
        let scene = |faults| Self { without: None, claims: 4, faults };
        let none = Faults::NONE;
        vec![
            ("2 x 2, lost, cancel", scene(Faults { lost: 1, cancels: 1, ..none })),
            ("2 x 2, operator", scene(Faults { deletes: 1, ..none })),
        ]
    }

    fn removals() -> Vec<Removal<Self>> {
        let none = Faults::NONE;
        let lost = Faults { lost: 1, ..none };
        let deleted = Faults { deletes: 1, ..none };
        let cancelled = Faults { cancels: 1, ..none };
        let lapsed = Faults { lapses: 1, ..none };
        let removal = |step, breaks, faults| Removal {
            step,
            model: Self { without: Some(step), claims: 3, faults },
            breaks,
        };
        vec![
            removal(Step::LookUpAfterLeader, NO_ORPHAN, lost),
            removal(Step::OwnerIsThisSession, ONE_HOLDER, Faults { lost: 1, ..lapsed }),
            removal(Step::CancelAwaitsCreate, NO_ORPHAN, Faults { lost: 1, ..cancelled }),
            removal(Step::ListShowsOwnNode, ONE_HOLDER, deleted),
            removal(Step::ListAfterPredecessor, ONE_HOLDER, cancelled),
            removal(Step::Recheck, EVENTUALLY, lost),
            removal(Step::HoldsReadAfterCheck, ONE_HOLDER, deleted),
            removal(Step::OrderWraps, ONE_HOLDER, none),
            removal(Step::TokenIsZxid, TOKENS_RISE, none),
            removal(Step::DeleteRepeats, NO_ORPHAN, lost),
            removal(Step::DeadlineBeforeExpiry, ONE_HOLDER, lapsed),
            removal(Step::DeadlineOfLateGrants, ONE_HOLDER, Faults { late: 1, ..lapsed }),
            removal(Step::RefusalEndsSession, NO_ORPHAN, Faults { refusals: 1, ..none }),
        ]
    }
}
