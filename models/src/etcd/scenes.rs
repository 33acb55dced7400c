//! The scenes, and the property that breaks without each step.

use super::*;
use crate::explore::{Protocol, Removal};

impl Protocol for Etcd {
    type Step = Step;
    const NAME: &'static str = "etcd queue";
    const EVENTUALLY: &'static str = EVENTUALLY;

    fn is_settled(&self, state: &State) -> bool {
        state.is_settled()
    }

    fn is_fair(&self, state: &State, action: &Action) -> bool {
        state.is_fair(action)
    }

    fn scenes() -> Vec<(&'static str, Self)> {
        let scene = |claims, tries, faults| Self { without: None, claims, tries, faults };
        let none = Faults::NONE;
        vec![
            ("2 x 2, nothing lost", scene(4, false, none)),
            ("2 + 1, a try, cancel", scene(3, true, Faults { cancels: 1, ..none })),
            ("2 + 1, lost, cancel", scene(3, false, Faults { lost: 1, cancels: 1, ..none })),
            ("2 + 1, operator, cancel", scene(3, false, Faults { deletes: 1, cancels: 1, ..none })),
            ("2 + 1, another program", scene(3, false, Faults { foreign: 1, ..none })),
            ("2 + 1, refused", scene(3, false, Faults { refusals: 1, ..none })),
            ("2 + 1, lost, lease ends", scene(3, true, Faults { lost: 1, lapses: 1, ..none })),
            ("2, two lost, two cancels", scene(2, false, Faults { lost: 2, cancels: 2, ..none })),
            ("2, two lost, operator", scene(2, false, Faults { lost: 2, deletes: 1, ..none })),
            ("2, two lost, refused", scene(2, false, Faults { lost: 2, refusals: 1, ..none })),
            ("2, two lost, lease ends", scene(2, false, Faults { lost: 2, lapses: 1, ..none })),
        ]
    }

    fn long_scenes() -> Vec<(&'static str, Self)> {
        let scene = |claims, tries, faults| Self { without: None, claims, tries, faults };
        let none = Faults::NONE;
        vec![
            ("2 x 2, a try, cancel", scene(4, true, Faults { cancels: 1, ..none })),
            ("2 x 2, lease ends", scene(4, false, Faults { lapses: 1, ..none })),
            ("2 + 1, two lost", scene(3, false, Faults { lost: 2, ..none })),
            ("2 + 1, lost, operator", scene(3, false, Faults { lost: 1, deletes: 1, ..none })),
            ("2 + 1, lost, another program", scene(3, false, Faults { lost: 1, foreign: 1, ..none })),
            ("2 + 1, lost, refused", scene(3, false, Faults { lost: 1, refusals: 1, ..none })),
            ("2 x 2, lost", scene(4, false, Faults { lost: 1, ..none })),
            ("2 x 2, lost, cancel", scene(4, false, Faults { lost: 1, cancels: 1, ..none })),
            ("2 x 2, operator", scene(4, false, Faults { deletes: 1, ..none })),
        ]
    }

    fn removals() -> Vec<Removal<Self>> {
        let none = Faults::NONE;
        let lost_and_cancelled = Faults { lost: 2, cancels: 1, ..none };
        let cancelled = Faults { cancels: 1, ..none };
        let removal = |step, breaks, claims, tries, faults| Removal {
            step,
            model: Self { without: Some(step), claims, tries, faults },
            breaks,
        };
        vec![
            removal(Step::EpochBump, NO_ORPHAN, 3, false, lost_and_cancelled),
            removal(Step::EpochBumpWhenKeyGone, NO_ORPHAN, 3, false, Faults { lost: 1, deletes: 1, ..none }),
            removal(Step::LastCopyTagsTheClaim, NO_ORPHAN, 2, false, Faults { lost: 3, cancels: 2, ..none }),
            removal(
                Step::FencedCopyMayHaveCreated,
                NO_ORPHAN,
                2,
                false,
                Faults { lost: 2, cancels: 2, ..none },
            ),
            removal(Step::HandoffComparesReceiver, ONE_HOLDER, 3, false, Faults { deletes: 1, ..none }),
            removal(Step::WrongOrderForgotten, EVENTUALLY, 3, false, cancelled),
            removal(Step::KeyPerClaim, ONE_HOLDER, 3, false, none),
            removal(Step::UnconfirmedKeyRetired, NO_FOREIGN_DELETE, 3, false, lost_and_cancelled),
            removal(
                Step::HandoffNamesRevision,
                ONE_HOLDER,
                3,
                false,
                Faults { foreign: 1, cancels: 1, ..none },
            ),
            removal(Step::ReadBeforeGrant, ONE_HOLDER, 3, false, cancelled),
            removal(Step::ReadFindsOwnKey, ONE_HOLDER, 3, false, Faults { deletes: 1, ..none }),
            removal(Step::Recheck, EVENTUALLY, 3, false, Faults { lost: 1, ..none }),
            removal(Step::RecheckComparesRevisions, EVENTUALLY, 3, false, Faults { lost: 1, ..none }),
            removal(Step::TryNeedsEmptyQueue, ONE_HOLDER, 3, true, none),
            removal(Step::DeadlineBeforeExpiry, ONE_HOLDER, 3, false, Faults { lapses: 1, ..none }),
            removal(Step::DeadlineOfLateGrants, ONE_HOLDER, 3, false, Faults { lapses: 1, ..none }),
            removal(Step::ReleaseWithoutHandoff, EVENTUALLY, 3, false, Faults { foreign: 1, ..none }),
            removal(Step::RefusalEndsSession, NO_ORPHAN, 3, false, Faults { refusals: 1, ..none }),
        ]
    }
}
