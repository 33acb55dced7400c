//! The scenes, and the property that breaks without each step.

use super::*;
use crate::explore::{Protocol, Removal};

/// Counters that all differ.
const APART: [u8; NODES] = [0, 1, 2];

impl Protocol for Redlock {
    type Step = Step;
    const NAME: &'static str = "redlock";
    const EVENTUALLY: &'static str = EVENTUALLY;

    fn is_settled(&self, state: &State) -> bool {
        state.is_settled()
    }

    fn is_fair(&self, state: &State, action: &Action) -> bool {
        state.is_fair(action)
    }

    fn scenes() -> Vec<(&'static str, Self)> {
        let none = Faults::NONE;
        let early = Faults { early: 1, ..none };
        let restart = Faults { restarts: 1, ..none };
        vec![
            ("2 x 2", Self::scene([2, 2], none)),
            ("2 + 1, counters apart", Self { counters: APART, ..Self::scene([2, 1], none) }),
            ("2 + 1, a key expires early", Self::scene([2, 1], early)),
            ("2 + 1, lost", Self::scene([2, 1], Faults { lost: 1, ..none })),
            ("2 + 1, restart", Self::scene([2, 1], restart)),
            ("2 + 1, clocks apart", Self { proposals: &[0, 3], ..Self::scene([2, 1], none) }),
            (
                "1 + 1, counters apart, lost, early",
                Self { counters: APART, ..Self::scene([1, 1], Faults { lost: 1, ..early }) },
            ),
            (
                "1 + 1, clocks apart, lost, early",
                Self { proposals: &[0, 3], ..Self::scene([1, 1], Faults { lost: 1, ..early }) },
            ),
            ("1 + 1, two restarts", Self::scene([1, 1], Faults { restarts: 2, ..none })),
        ]
    }

    fn long_scenes() -> Vec<(&'static str, Self)> {
        let none = Faults::NONE;
        let early = Faults { early: 1, ..none };
        vec![
            ("2 x 2, a key expires early", Self::scene([2, 2], early)),
            ("2 x 2, counters apart", Self { counters: APART, ..Self::scene([2, 2], none) }),
            ("2 x 2, lost", Self::scene([2, 2], Faults { lost: 1, ..none })),
            ("2 x 2, restart", Self::scene([2, 2], Faults { restarts: 1, ..none })),
            ("2 + 1, lost, early", Self::scene([2, 1], Faults { lost: 1, ..early })),
            ("1 + 1, two restarts, lost", Self::scene([1, 1], Faults { lost: 1, restarts: 2, ..none })),
            ("2 + 1, lost, restart", Self::scene([2, 1], Faults { restarts: 1, lost: 1, ..none })),
        ]
    }

    fn removals() -> Vec<Removal<Self>> {
        let none = Faults::NONE;
        let early = Faults { early: 1, ..none };
        let lost = Faults { lost: 1, ..none };
        let restart = Faults { restarts: 1, ..none };
        let two_restarts = Faults { restarts: 2, ..none };
        let removal = |step, breaks, claims, faults| Removal {
            step,
            model: Self { without: Some(step), ..Self::scene(claims, faults) },
            breaks,
        };
        vec![
            removal(Step::FastPathNeedsOneValue, UNIQUE, [2, 1], early),
            removal(Step::WriteBackChecksOwner, UNIQUE, [2, 1], early),
            removal(Step::WriteBackChecksCounter, UNIQUE, [2, 1], Faults { lost: 1, ..early }),
            removal(Step::RestoreChecksCounter, NO_REVIVAL, [1, 1], lost),
            removal(Step::ReleaseRaisesCounter, NO_REVIVAL, [1, 1], lost),
            removal(Step::UncertainAskWithdrawn, NO_RESIDUE, [1, 1], lost),
            removal(Step::MarkerIsTested, ONE_HOLDER, [1, 1], restart),
            removal(Step::MarkerWaits, ONE_HOLDER, [1, 1], restart),
            removal(Step::RenewalNeedsMajority, ONE_HOLDER, [1, 1], restart),
            removal(Step::RenewalDropsEmptiedNode, EVENTUALLY, [1, 1], restart),
            removal(Step::MarkerRaisesCounter, UNIQUE, [1, 1], restart),
            removal(Step::MarkerNeedsMajority, UNIQUE, [1, 1], two_restarts),
            removal(Step::MarkerNamesItsNote, ONE_HOLDER, [1, 1], two_restarts),
        ]
    }
}

impl Redlock {
    fn scene(claims: [u8; CLIENTS], faults: Faults) -> Self {
        Self { without: None, claims, proposals: &[0], counters: [0; NODES], faults }
    }
}
