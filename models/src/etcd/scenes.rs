//! The scenes, and what liveness means.
//!
//! Fair is that requests are executed and answered, handoffs arrive, holders release, and the lease of an ended session
//! expires.

use super::*;
use crate::explore::Protocol;

impl Protocol for Etcd {
    type Step = Step;
    const NAME: &'static str = "etcd queue";
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

    fn scene(name: &'static str, without: Option<Step>) -> Self {
        Scope::named(name, &[TRY], without)
    }

    /// Whether every claim that was started is granted or has ended.
    fn is_settled(&self, state: &State) -> bool {
        let settled = |claim: &Claim| matches!(claim.phase, Phase::New | Phase::Held | Phase::Ended);
        state.broken.is_some() || state.claims.iter().all(settled)
    }
}
