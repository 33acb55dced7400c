//! The scenes, and what liveness means.
//!
//! Fair is that requests are answered, events arrive, holders release, and a session that its client has left expires.

use super::*;
use crate::explore::Protocol;

impl Protocol for ZooKeeper {
    type Step = Step;
    const NAME: &'static str = "zookeeper queue";
    const SCENES: &'static [&'static str] = &[
        "2 x 2, cancel",
        "2 x 2, lost",
        "2 x 2, session ends",
        "2 + 1, two lost, cancel",
        "2 + 1, lost, session ends",
        "2 + 1, lost, operator",
        "2 + 1, lost, refused",
        "2 + 1, session ends, late list",
    ];
    const LONG_SCENES: &'static [&'static str] = &["2 x 2, lost, cancel", "2 x 2, operator"];

    fn scene(name: &'static str, without: Option<Step>) -> Self {
        Scope::named(name, &[], without)
    }

    /// Whether every claim that was started is granted or has ended.
    fn is_settled(&self, state: &State) -> bool {
        let settled = |claim: &Claim| matches!(claim.phase, Phase::New | Phase::Held | Phase::Ended);
        state.broken.is_some() || state.claims.iter().all(settled)
    }
}
