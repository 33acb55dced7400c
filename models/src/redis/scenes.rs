//! The scenes, and what liveness means.
//!
//! Fair is that scripts run, answers arrive, holders release, and the entries of dead clients lapse.

use super::*;
use crate::explore::Protocol;

impl Protocol for Redis {
    type Step = Step;
    const NAME: &'static str = "redis queue";
    const SCENES: &'static [&'static str] = &[
        "2 + 1, notified, lost, death",
        "2 + 1, pushed, lost, lapse",
        "2 + 1, pushed, lost, death",
        "2 + 1, pushed, lost, late answer",
        "2 + 1, pushed, failover",
        "2 + 1, pushed, lost, duplicate",
        "2 + 1, pushed, late answer, duplicate",
        "2 + 1, pushed, failover, duplicate",
        "2 + 1, pushed, lapse, death, duplicate",
        "2 x 2, pushed, duplicate",
        "2 + 1, lost, refused",
        "2 + 1, lost, late answer",
        "2 x 2, cancel, lapse",
        "2 x 2, death",
        "2 x 2, lost",
        "2 + 1, two lost, cancel",
        "2 + 1, lost, lapse, death",
        "2 + 1, lost, failover",
    ];
    const LONG_SCENES: &'static [&'static str] = &["2 x 2, failover", "2 x 2, lost, cancel"];

    fn scene(name: &'static str, without: Option<Step>) -> Self {
        Scope::named(name, &[NOTIFIED, PUSHED], without)
    }

    /// Whether every claim that was started is granted or has ended.
    fn is_settled(&self, state: &State) -> bool {
        let settled =
            |claim: &Claim| matches!(claim.phase, Phase::New | Phase::Held | Phase::Ended | Phase::Dead);
        state.broken.is_some() || state.claims.iter().all(settled)
    }
}
