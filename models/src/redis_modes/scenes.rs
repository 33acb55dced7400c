//! The scenes, and the property that breaks without each step.

use super::*;
use crate::explore::Protocol;

impl Protocol for RedisModes {
    type Step = Step;
    const NAME: &'static str = "redis modes";
    const EVENTUALLY: &'static str = EVENTUALLY;
    const SCENES: &'static [&'static str] = &[
        "2 + 1, messages alone",
        "2 + 1, messages alone, lost",
        "2 + 1, messages alone, cancel",
        "2 + 1, read-write, lost, death",
        "2 + 1, lapse, death",
        "2 x 2, read-write, messages alone",
    ];
    const LONG_SCENES: &'static [&'static str] = &[
        "2 x 2, read-write, messages alone, cancel",
        "2 x 2, read-write, death",
        "2 x 2, messages alone",
        "2 + 1, lost, lapse, death",
    ];
    const REMOVALS: &'static [(Step, &'static str, &'static str)] = &[
        (Step::HeedsLimitsOfHolders, LIMITS, "2 + 1, messages alone"),
        (Step::CountsAndTakesAtOnce, LIMITS, "2 + 1, messages alone"),
        (Step::QueueBeforeNewcomers, IN_ORDER, "2 + 1, read-write, messages alone"),
        (Step::ServesAll, SERVED, "2 + 1, read-write, messages alone"),
        (Step::SharedReleaseServes, SERVED, "2 + 1, read-write, messages alone"),
        (Step::WithdrawalServes, SERVED, "2 + 1, read-write, messages alone, cancel"),
        (Step::DropsExpired, EVENTUALLY, "2 + 1, read-write, death"),
        (Step::LifetimePerHolder, LIMITS, "2 + 1, read-write, death"),
        (Step::RenewalNeverAdds, NO_ORPHAN, "2 + 1, read-write, lost"),
        (Step::SharedTokenRises, TOKENS_RISE, "2 + 1, read-write, messages alone"),
        (Step::Recheck, EVENTUALLY, "2 + 1, read-write, lost"),
        (Step::DeadlineBeforeExpiry, LIMITS, "2 + 1, read-write, messages alone"),
    ];

    fn scene(name: &'static str, without: Option<Step>) -> Self {
        Scope::named(name, &[READ_WRITE, MESSAGES_ALONE], without)
    }

    /// Whether every claim that was started is granted or has ended.
    fn is_settled(&self, state: &State) -> bool {
        let settled =
            |claim: &Claim| matches!(claim.phase, Phase::New | Phase::Held | Phase::Ended | Phase::Dead);
        state.broken.is_some() || state.claims.iter().all(settled)
    }

    /// Scripts run, messages arrive, holders release, and the entries of dead clients end.
    fn is_fair(&self, state: &State, action: &Action) -> bool {
        action.is_fair(self, state)
    }
}
