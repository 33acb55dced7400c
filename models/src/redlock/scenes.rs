//! The scenes, and what liveness means.
//!
//! Fair is that requests are executed, claims without a majority give up, keys of ended claims expire, and clients bring
//! nodes back. Holders need not release, but a hold whose heartbeat no majority answers ends with its deadline.

use super::*;
use crate::explore::Protocol;

impl Protocol for Redlock {
    type Step = Step;
    const NAME: &'static str = "redlock";
    const EVENTUALLY: &'static str = EVENTUALLY;
    const SCENES: &'static [&'static str] = &[
        "2 x 2",
        "2 + 1, counters apart",
        "2 + 1, early",
        "2 + 1, lost",
        "2 + 1, restart",
        "2 + 1, clocks apart",
        "1 + 1, counters apart, lost, early",
        "1 + 1, clocks apart, lost, early",
        "1 + 1, two restarts",
    ];
    const LONG_SCENES: &'static [&'static str] = &[
        "2 x 2, early",
        "2 x 2, counters apart",
        "2 x 2, lost",
        "2 x 2, restart",
        "2 + 1, lost, early",
        "1 + 1, two restarts, lost",
        "2 + 1, lost, restart",
    ];

    fn scene(name: &'static str, without: Option<Step>) -> Self {
        Scope::named(name, &[COUNTERS_APART, CLOCKS_APART], without)
    }

    /// Whether every node counts. If only a minority does, an operator must judge which data are lost.
    fn is_settled(&self, state: &State) -> bool {
        let emptied = state.nodes.iter().filter(|node| node.unmarked).count();
        state.broken.is_some() || emptied == 0 || NODES - emptied < MAJORITY
    }
}
