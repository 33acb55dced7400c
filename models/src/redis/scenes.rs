//! The scenes, and the property that breaks without each step.

use super::*;
use crate::explore::{Protocol, Removal};

impl Protocol for Redis {
    type Step = Step;
    const NAME: &'static str = "redis queue";
    const EVENTUALLY: &'static str = EVENTUALLY;

    fn is_settled(&self, state: &State) -> bool {
        state.is_settled()
    }

    fn is_fair(&self, state: &State, action: &Action) -> bool {
        state.is_fair(action)
    }

    fn scenes() -> Vec<(&'static str, Self)> {
        let scene = |claims, faults| Self { without: None, claims, notifies: false, pushes: false, faults };
        let none = Faults::NONE;
        vec![
            (
                "2 + 1, notified, lost, death",
                Self { notifies: true, ..scene(3, Faults { lost: 1, deaths: 1, ..none }) },
            ),
            (
                "2 + 1, pushed, lost, lapse",
                Self { pushes: true, ..scene(3, Faults { lost: 1, lapses: 1, ..none }) },
            ),
            (
                "2 + 1, pushed, lost, death",
                Self { pushes: true, ..scene(3, Faults { lost: 1, deaths: 1, ..none }) },
            ),
            (
                "2 + 1, pushed, lost, late answer",
                Self { pushes: true, ..scene(3, Faults { lost: 1, late: 1, ..none }) },
            ),
            ("2 + 1, pushed, failover", Self { pushes: true, ..scene(3, Faults { failovers: 1, ..none }) }),
            (
                "2 + 1, pushed, lost, duplicate",
                Self { pushes: true, ..scene(3, Faults { lost: 1, duplicates: 1, ..none }) },
            ),
            (
                "2 + 1, pushed, late answer, duplicate",
                Self { pushes: true, ..scene(3, Faults { late: 1, duplicates: 1, ..none }) },
            ),
            (
                "2 + 1, pushed, failover, duplicate",
                Self { pushes: true, ..scene(3, Faults { failovers: 1, duplicates: 1, ..none }) },
            ),
            (
                "2 + 1, pushed, lapse, death, duplicate",
                Self { pushes: true, ..scene(3, Faults { lapses: 1, deaths: 1, duplicates: 1, ..none }) },
            ),
            ("2 x 2, pushed, duplicate", Self { pushes: true, ..scene(4, Faults { duplicates: 1, ..none }) }),
            ("2 + 1, lost, refused", scene(3, Faults { lost: 1, refusals: 1, ..none })),
            ("2 + 1, lost, late answer", scene(3, Faults { lost: 1, late: 1, ..none })),
            ("2 x 2, cancel, lapse", scene(4, Faults { cancels: 1, lapses: 1, ..none })),
            ("2 x 2, death", scene(4, Faults { deaths: 1, ..none })),
            ("2 x 2, lost", scene(4, Faults { lost: 1, ..none })),
            ("2 + 1, two lost, cancel", scene(3, Faults { lost: 2, cancels: 1, ..none })),
            ("2 + 1, lost, lapse, death", scene(3, Faults { lost: 1, lapses: 1, deaths: 1, ..none })),
            ("2 + 1, lost, failover", scene(3, Faults { failovers: 1, lost: 1, ..none })),
        ]
    }

    fn long_scenes() -> Vec<(&'static str, Self)> {
        let scene = |faults| Self { without: None, claims: 4, notifies: false, pushes: false, faults };
        let none = Faults::NONE;
        vec![
            ("2 x 2, failover", scene(Faults { failovers: 1, ..none })),
            ("2 x 2, lost, cancel", scene(Faults { lost: 1, cancels: 1, ..none })),
        ]
    }

    fn removals() -> Vec<Removal<Self>> {
        let none = Faults::NONE;
        let removal = |step, breaks, claims, faults| Removal {
            step,
            model: Self {
                without: Some(step),
                claims,
                notifies: step == Step::Recheck,
                pushes: matches!(
                    step,
                    Step::PushAfterAnswer
                        | Step::PushCountsFromAnswer
                        | Step::PushOfSameMaster
                        | Step::PushNamesClaim
                        | Step::PushGrantsWaiter
                ),
                faults,
            },
            breaks,
        };
        let failover = Faults { failovers: 1, ..none };
        vec![
            removal(Step::QueueBeforeNewcomers, IN_ORDER, 4, none),
            removal(Step::UnservedQueueIsNotFree, IN_ORDER, 4, Faults { lapses: 1, ..none }),
            removal(Step::TokenFromClock, TOKENS_RISE, 3, failover),
            removal(Step::ReleaseChecksClaim, NO_FOREIGN_RELEASE, 3, none),
            removal(Step::ReleaseLeavesQueue, NO_ORPHAN, 3, Faults { cancels: 1, ..none }),
            removal(Step::HeartbeatChecksHolder, NO_STALE_RENEWAL, 3, Faults { lost: 1, ..none }),
            removal(Step::HeartbeatChecksToken, NO_STALE_RENEWAL, 3, failover),
            removal(Step::HeartbeatNeverAdds, NO_ORPHAN, 3, Faults { lost: 1, cancels: 1, ..none }),
            removal(Step::ConfirmBeforeGrant, ONE_HOLDER, 3, none),
            removal(Step::Recheck, EVENTUALLY, 3, Faults { lost: 1, ..none }),
            removal(Step::ConfirmFindsGrant, NOT_TURNED_AWAY, 3, none),
            removal(Step::ConfirmServesQueue, EVENTUALLY, 3, Faults { deaths: 1, ..none }),
            removal(Step::DeadlineBeforeExpiry, ONE_HOLDER, 3, none),
            removal(Step::DeadlineFromSending, ONE_HOLDER, 3, Faults { late: 1, ..none }),
            removal(Step::RefusalWithdraws, NO_ORPHAN, 3, Faults { lost: 1, refusals: 1, ..none }),
            removal(Step::PushAfterAnswer, ONE_HOLDER, 4, Faults { lost: 1, ..none }),
            removal(Step::PushCountsFromAnswer, ONE_HOLDER, 3, none),
            removal(Step::PushOfSameMaster, NO_FORMER_GRANT, 3, failover),
            removal(Step::PushNamesClaim, ONE_HOLDER, 3, Faults { duplicates: 1, ..none }),
            removal(Step::PushGrantsWaiter, ONE_HOLDER, 3, Faults { duplicates: 1, ..none }),
        ]
    }
}
