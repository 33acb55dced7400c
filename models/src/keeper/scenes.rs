//! The scenes, and the property that breaks without each step.

use super::*;
use crate::explore::{Protocol, Removal};

impl Protocol for Keeper {
    type Step = Step;
    const NAME: &'static str = "keeper";
    const EVENTUALLY: &'static str = EVENTUALLY;

    fn is_settled(&self, state: &State) -> bool {
        state.is_settled(self)
    }

    fn is_fair(&self, state: &State, action: &Action) -> bool {
        state.is_fair(self, action)
    }

    fn scenes() -> Vec<(&'static str, Self)> {
        vec![
            ("2 x 2, one session", scene([2, 2], 1, 0, 0)),
            ("2 + 1, one session, lost", scene([2, 1], 1, 1, 0)),
            ("2 + 1, one session, revoked", scene([2, 1], 1, 0, 1)),
            ("1 + 1, lost", scene([1, 1], 2, 1, 0)),
            ("1 + 1, revoked", scene([1, 1], 2, 0, 1)),
            ("2 + 1, the second tries, one session", Self { tries: true, ..scene([2, 1], 1, 0, 0) }),
            ("1 + 1, the second tries, revoked", Self { tries: true, ..scene([1, 1], 2, 0, 1) }),
            ("1 + 1, releases refused", Self { refuses: true, ..scene([1, 1], 2, 0, 0) }),
        ]
    }

    fn long_scenes() -> Vec<(&'static str, Self)> {
        vec![
            ("2 x 2, one session, lost", scene([2, 2], 1, 1, 0)),
            ("2 x 2, one session, revoked", scene([2, 2], 1, 0, 1)),
            ("2 + 2, the second tries, one session", Self { tries: true, ..scene([2, 2], 1, 0, 0) }),
        ]
    }

    fn removals() -> Vec<Removal<Self>> {
        let of = |step, breaks, model| Removal { step, model: Self { without: Some(step), ..model }, breaks };
        let removal = |step, breaks, lost, revoked| of(step, breaks, scene([2, 1], 1, lost, revoked));
        let (tries, refuses) = (
            Self { tries: true, ..scene([2, 1], 1, 0, 0) },
            Self { refuses: true, ..scene([2, 1], 1, 0, 0) },
        );
        vec![
            removal(Step::DeadlineFromSending, BELIEF_IS_TRUE, 0, 0),
            removal(Step::LossIsLatched, LOST_IS_FINAL, 0, 0),
            removal(Step::NoRenewalOnceReleasing, NO_LATE_RENEWAL, 0, 0),
            removal(Step::UntakenGrantReleased, NO_ORPHAN, 0, 0),
            removal(Step::ReleaseRepeats, NO_ORPHAN, 1, 0),
            removal(Step::DeadHoldEndsSession, DEAD_HOLD_ENDS, 1, 0),
            removal(Step::NewHoldChecksSession, SESSION_END_ENDS_HOLDS, 0, 1),
            removal(Step::NoJoinAfterGiveUp, TRUE_ANSWER, 0, 0),
            removal(Step::TableUpdatedWithAnswers, NO_SELF_WAIT, 0, 0),
            removal(Step::SharesCountedFirst, SHARE_IS_HELD, 0, 0),
            of(Step::AttemptOutlivesSession, EVENTUALLY, scene([1, 1], 2, 0, 1)),
            of(Step::GrantServesTheOwner, NO_SELF_WAIT, tries),
            of(Step::RefusedReleaseEndsSession, NO_ORPHAN, refuses),
        ]
    }
}

/// How often each caller asks, how many sessions there are, and how many messages and sessions may be lost.
fn scene(asks: [u8; CALLERS], sessions: usize, lost: u8, revoked: u8) -> Keeper {
    let faults = Faults { lost, revoked, ..Faults::NONE };
    Keeper { without: None, faults, asks, tries: false, refuses: false, sessions }
}
