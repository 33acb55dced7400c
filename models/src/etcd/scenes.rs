//! The scenes, and the property that breaks without each step.

use super::*;
use crate::explore::Protocol;

impl Protocol for Etcd {
    type Step = Step;
    const NAME: &'static str = "etcd queue";
    const EVENTUALLY: &'static str = EVENTUALLY;
    const SCENES: &'static [&'static str] = &[
        "2 x 2",
        "2 + 1, a try, cancel",
        "2 + 1, lost, cancel",
        "2 + 1, operator, cancel",
        "2 + 1, another program",
        "2 + 1, refused",
        "2 + 1, a try, lost, lease ends",
        "2, two lost, two cancels",
        "2, two lost, operator",
        "2, two lost, refused",
        "2, two lost, lease ends",
    ];
    const LONG_SCENES: &'static [&'static str] = &[
        "2 x 2, a try, cancel",
        "2 x 2, lease ends",
        "2 + 1, two lost",
        "2 + 1, lost, operator",
        "2 + 1, lost, another program",
        "2 + 1, lost, refused",
        "2 x 2, lost",
        "2 x 2, lost, cancel",
        "2 x 2, operator",
    ];
    const REMOVALS: &'static [(Step, &'static str, &'static str)] = &[
        (Step::EpochBump, NO_ORPHAN, "2 + 1, two lost, cancel"),
        (Step::EpochBumpWhenKeyGone, NO_ORPHAN, "2 + 1, lost, operator"),
        (Step::LastCopyTagsTheClaim, NO_ORPHAN, "2, three lost, two cancels"),
        (Step::FencedCopyMayHaveCreated, NO_ORPHAN, "2, two lost, two cancels"),
        (Step::HandoffComparesReceiver, ONE_HOLDER, "2 + 1, operator"),
        (Step::WrongOrderForgotten, EVENTUALLY, "2 + 1, cancel"),
        (Step::KeyPerClaim, ONE_HOLDER, "2 + 1"),
        (Step::UnconfirmedKeyRetired, NO_FOREIGN_DELETE, "2 + 1, two lost, cancel"),
        (Step::HandoffNamesRevision, ONE_HOLDER, "2 + 1, another program, cancel"),
        (Step::ReadBeforeGrant, ONE_HOLDER, "2 + 1, cancel"),
        (Step::ReadFindsOwnKey, ONE_HOLDER, "2 + 1, operator"),
        (Step::Recheck, EVENTUALLY, "2 + 1, lost"),
        (Step::RecheckComparesRevisions, EVENTUALLY, "2 + 1, lost"),
        (Step::TryNeedsEmptyQueue, ONE_HOLDER, "2 + 1, a try"),
        (Step::DeadlineBeforeExpiry, ONE_HOLDER, "2 + 1, lease ends"),
        (Step::DeadlineOfLateGrants, ONE_HOLDER, "2 + 1, lease ends"),
        (Step::ReleaseWithoutHandoff, EVENTUALLY, "2 + 1, another program"),
        (Step::RefusalEndsSession, NO_ORPHAN, "2 + 1, refused"),
    ];

    fn scene(name: &'static str, without: Option<Step>) -> Self {
        Scope::named(name, &[TRY], without)
    }

    /// Whether every claim that was started is granted or has ended.
    fn is_settled(&self, state: &State) -> bool {
        let settled = |claim: &Claim| matches!(claim.phase, Phase::New | Phase::Held | Phase::Ended);
        state.broken.is_some() || state.claims.iter().all(settled)
    }

    /// Requests are executed and answered, handoffs arrive, holders release, and the lease of an ended session expires.
    fn is_fair(&self, state: &State, action: &Action) -> bool {
        action.is_fair(self, state)
    }
}
