//! The scenes, and what liveness means.
//!
//! Fair is that requests are executed and answered, handoffs arrive, holders release, and the lease of an ended session
//! expires.

use super::*;
use crate::explore::Protocol;

impl Protocol for EtcdModes {
    type Step = Step;
    const NAME: &'static str = "etcd modes";
    const SCENES: &'static [&'static str] = &[
        "2 x 2, read-write, handoffs alone",
        "2 + 1, handoffs alone, lost",
        "2 + 1, handoffs alone, cancel",
        "2 + 1, read-write, lost, cancel",
        "2 + 1, lost, lease ends",
        "2 + 1, read-write, lost, operator",
    ];
    const LONG_SCENES: &'static [&'static str] = &[
        "2 x 2, handoffs alone",
        "2 x 2, read-write, handoffs alone, cancel",
        "2 x 2, read-write, lease ends",
        "2 x 2, read-write, operator",
        "2 + 1, two lost, cancel",
        "2 + 1, lost, operator",
    ];

    fn scene(name: &'static str, without: Option<Step>) -> Self {
        Scope::named(name, &[READ_WRITE, HANDOFFS_ALONE], without)
    }

    /// Whether every claim that was started is granted or has ended.
    fn is_settled(&self, state: &State) -> bool {
        let settled = |claim: &Claim| matches!(claim.phase, Phase::New | Phase::Held | Phase::Ended);
        state.broken.is_some() || state.claims.iter().all(settled)
    }
}
