//! The scenes, and what liveness means.
//!
//! Fair is that scripts run, messages arrive, holders release, and the entries of dead clients end.

use super::*;
use crate::explore::Protocol;

impl Protocol for RedisModes {
    type Step = Step;
    const NAME: &'static str = "redis modes";
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

    fn scene(name: &'static str, without: Option<Step>) -> Self {
        Scope::named(name, &[READ_WRITE, MESSAGES_ALONE], without)
    }

    /// Whether every claim that was started is granted or has ended.
    fn is_settled(&self, state: &State) -> bool {
        let settled =
            |claim: &Claim| matches!(claim.phase, Phase::New | Phase::Held | Phase::Ended | Phase::Dead);
        state.broken.is_some() || state.claims.iter().all(settled)
    }
}
