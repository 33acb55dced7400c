//! What is gone through, and what must break without each step.

use super::*;
use crate::explore::{Protocol, Removal};

impl Protocol for Redlock {
    type Step = Step;
    const NAME: &'static str = "redlock";

    fn scenes() -> Vec<(&'static str, Self)> {
        let scene = |claims, proposals, faults| Self { without: None, claims, proposals, faults };
        let none = Faults::default();
        let early = Faults { early: 1, ..none };
        vec![
            ("2 x 2", scene([2, 2], &[0], none)),
            ("2 + 1, a key goes early", scene([2, 1], &[0], early)),
            ("2 + 1, lost", scene([2, 1], &[0], Faults { lost: 1, ..none })),
            ("2 + 1, restart", scene([2, 1], &[0], Faults { restarts: 1, ..none })),
            ("2 + 1, clocks apart", scene([2, 1], &[0, 3], none)),
            ("1 + 1, clocks apart, lost, early", scene([1, 1], &[0, 3], Faults { lost: 1, ..early })),
        ]
    }

    fn long_scenes() -> Vec<(&'static str, Self)> {
        let scene = |claims, faults| Self { without: None, claims, proposals: &[0], faults };
        let none = Faults::default();
        let early = Faults { early: 1, ..none };
        vec![
            ("2 x 2, a key goes early", scene([2, 2], early)),
            ("2 x 2, lost", scene([2, 2], Faults { lost: 1, ..none })),
            ("2 x 2, restart", scene([2, 2], Faults { restarts: 1, ..none })),
            ("2 + 1, lost, early", scene([2, 1], Faults { lost: 1, ..early })),
            ("2 + 1, lost, restart", scene([2, 1], Faults { restarts: 1, lost: 1, ..none })),
        ]
    }

    fn removals() -> Vec<Removal<Self>> {
        let none = Faults::default();
        let early = Faults { early: 1, ..none };
        let lost = Faults { lost: 1, ..none };
        let restart = Faults { restarts: 1, ..none };
        let removal = |step, breaks, claims, faults| Removal {
            step,
            model: Self { without: Some(step), claims, proposals: &[0], faults },
            breaks,
        };
        vec![
            removal(Step::FastPathNeedsOneValue, UNIQUE, [2, 1], early),
            removal(Step::WriteBackChecksOwner, UNIQUE, [2, 1], early),
            removal(Step::WriteBackChecksCounter, UNIQUE, [2, 1], Faults { lost: 1, ..early }),
            removal(Step::RestoreChecksCounter, NO_REVIVAL, [1, 1], lost),
            removal(Step::ReleaseRaisesCounter, NO_REVIVAL, [1, 1], lost),
            removal(Step::MarkerIsTested, ONE_HOLDER, [1, 1], restart),
            removal(Step::MarkerWaits, ONE_HOLDER, [1, 1], restart),
            removal(Step::MarkerRaisesCounter, UNIQUE, [1, 1], Faults { lost: 1, restarts: 1, ..none }),
        ]
    }
}
