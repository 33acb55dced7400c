//! The scenes, and what liveness means.
//!
//! Fair is that tasks proceed, the server answers, and guards are dropped. Time passes, but a due heartbeat is never late
//! for it: a session that can be kept is kept.

use super::*;
use crate::explore::Protocol;

impl Protocol for Keeper {
    type Step = Step;
    const NAME: &'static str = "keeper";
    const EVENTUALLY: &'static str = EVENTUALLY;
    const SCENES: &'static [&'static str] = &[
        "2 x 2, one session",
        "2 + 1, one session, lost",
        "2 + 1, one session, revoked",
        "1 + 1, lost",
        "1 + 1, revoked",
        "2 + 1, the second tries, one session",
        "1 + 1, the second tries, revoked",
        "1 + 1, releases refused",
    ];
    const LONG_SCENES: &'static [&'static str] =
        &["2 x 2, one session, lost", "2 x 2, one session, revoked", "2 x 2, the second tries, one session"];

    fn scene(name: &'static str, without: Option<Step>) -> Self {
        Scope::named(name, &[ONE_SESSION, SECOND_TRIES, RELEASES_REFUSED], without)
    }

    /// Whether no caller waits, or none can be served because there is and will be no session.
    fn is_settled(&self, state: &State) -> bool {
        let waits = state.callers.iter().any(|caller| caller.waits_for().is_some());
        let next = !self.is(ONE_SESSION) && !state.sessions[1].ended;
        state.broken.is_some() || !waits || state.current.is_none() && !next
    }
}
