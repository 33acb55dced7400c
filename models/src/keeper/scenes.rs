//! What is gone through, and what must break without each step.

use super::*;
use crate::explore::{Protocol, Removal};

impl Protocol for Keeper {
    type Step = Step;
    const NAME: &'static str = "keeper: a guard's life";

    fn scenes() -> Vec<(&'static str, Self)> {
        let scene = |asks, sessions, lost, revoked| Self { without: None, lost, revoked, asks, sessions };
        vec![
            ("2 x 2, one session", scene([2, 2], 1, 0, 0)),
            ("2 + 1, one session, lost", scene([2, 1], 1, 1, 0)),
            ("2 + 1, one session, revoked", scene([2, 1], 1, 0, 1)),
            ("1 + 1, lost", scene([1, 1], 2, 1, 0)),
            ("1 + 1, revoked", scene([1, 1], 2, 0, 1)),
        ]
    }

    fn long_scenes() -> Vec<(&'static str, Self)> {
        let scene = |sessions, lost, revoked| Self { without: None, lost, revoked, asks: [2, 2], sessions };
        vec![("2 x 2, one session, lost", scene(1, 1, 0)), ("2 x 2, one session, revoked", scene(1, 0, 1))]
    }

    fn removals() -> Vec<Removal<Self>> {
        let removal = |step, breaks, lost, revoked| Removal {
            step,
            model: Self { without: Some(step), lost, revoked, asks: [2, 1], sessions: 1 },
            breaks,
        };
        vec![
            removal(Step::DeadlineFromSending, BELIEF_IS_TRUE, 0, 0),
            removal(Step::LossIsLatched, LOST_IS_FINAL, 0, 0),
            removal(Step::NoRenewalOnceReleasing, NO_LATE_RENEWAL, 0, 0),
            removal(Step::UntakenGrantReleased, NO_ORPHAN, 0, 0),
            removal(Step::ReleaseRepeats, NO_ORPHAN, 1, 0),
            removal(Step::DeadHoldAbandons, DEAD_HOLD_ENDS, 1, 0),
            removal(Step::LateHoldSeesTheEnd, SESSION_END_IS_TOLD, 0, 1),
            removal(Step::NoJoinAfterGiveUp, TRUE_ANSWER, 0, 0),
            removal(Step::TableWithAnswers, NO_SELF_WAIT, 0, 0),
            removal(Step::OwnShareGoesFirst, LAST_RELEASE_ENDS, 0, 0),
        ]
    }
}
