//! Linearizability of a fenced lock with re-entry.
//!
//! The other checkers compare pairs of holds. This one checks whether the whole history can be explained: whether all
//! operations can be ordered, each at a moment between its call and its return, so that a lock with an owner, a count
//! of entries and a token would have returned the same. So it also finds what the others cannot express (a hold that
//! ended one release too early), and errors in them.
//!
//! The search of [stateright](https://docs.rs/stateright) takes time that grows with the square of the number of
//! operations, or worse. So a history is cut into windows at *quiet* points: moments at which the state of the lock is
//! known, and every pending call takes effect later. The cuts change no result; a test compares.

mod fenced_lock;

use std::collections::{BTreeMap, BTreeSet};

use stateright::semantics::{ConsistencyTester, LinearizabilityTester};

use self::fenced_lock::{FencedLock, Hold};
use super::{Call, Moment, Operation, Response};

/// The most operations of one search; a history with a longer window is refused.
const WINDOW_MAX: usize = 200;

impl Call {
    /// The token of the hold that the call ends.
    pub(super) fn token(self) -> Option<u64> {
        match self {
            Self::Acquire { .. } => None,
            Self::Release { token, .. } => Some(token),
            Self::Expire { token, .. } => token,
        }
    }
}

impl Operation {
    fn answered_by(&self, moment: Moment) -> bool {
        self.answered.is_some_and(|(answered, _)| answered <= moment)
    }

    /// The token and the owner of a grant.
    fn granted(&self) -> Option<(u64, u64)> {
        match (self.call, self.answered?.1) {
            (Call::Acquire { owner }, Response::Granted(token)) => Some((token, owner)),
            _ => None,
        }
    }

    /// Whether it has released one entry of the hold with this token.
    fn has_left(&self, token: u64) -> bool {
        let released = self.answered.is_some_and(|(_, response)| response == Response::Released);
        released && matches!(self.call, Call::Release { .. }) && self.call.token() == Some(token)
    }
}

/// Checks whether some order of the operations explains every response. Returns at most one fault per lock: after a
/// fault the state is unknown.
pub fn linearizable(history: &[Operation]) -> Vec<String> {
    let mut locks: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in history {
        locks.entry(&operation.lock).or_default().push(operation);
    }
    locks.into_values().filter_map(|operations| windows(&operations).iter().find_map(Window::fault)).collect()
}

/// A part of a history that can be checked by itself.
#[derive(Debug, Default)]
struct Window<'a> {
    start: FencedLock,
    operations: Vec<&'a Operation>,
}

/// Returns calls and returns in their order. At one moment calls come first, which excludes the fewest orders.
fn events<'a>(operations: &[&'a Operation]) -> Vec<(Moment, bool, &'a Operation)> {
    let calls = operations.iter().map(|operation| (operation.called, false, *operation));
    let answers = operations.iter().filter_map(|operation| Some((operation.answered?.0, true, *operation)));
    let mut events: Vec<_> = calls.chain(answers).collect();
    events.sort_by_key(|(moment, is_answer, _)| (*moment, *is_answer));
    events
}

fn windows<'a>(operations: &[&'a Operation]) -> Vec<Window<'a>> {
    let (mut windows, mut open) = (Vec::new(), Window::default());
    for (moment, is_answer, operation) in events(operations) {
        if !is_answer {
            open.operations.push(operation);
        } else if let Some(state) = open.quiet_at(moment) {
            let (done, rest): (Vec<_>, Vec<_>) =
                open.operations.into_iter().partition(|operation| operation.answered_by(moment));
            // A call without a return by now concerned an earlier hold, and is checked with it.
            let (later, never): (Vec<_>, Vec<_>) =
                rest.into_iter().partition(|operation| operation.answered.is_some());
            windows.push(Window { start: open.start, operations: [done, never].concat() });
            open = Window { start: state, operations: later };
        }
    }
    windows.push(open);
    windows
}

impl Window<'_> {
    /// Returns the state of the lock at this moment, if it is certain and no pending call can have taken effect.
    ///
    /// That is so without pending calls. It is also so when every pending call is an acquire with a token above that
    /// of a hold whose release has not begun.
    fn quiet_at(&self, moment: Moment) -> Option<FencedLock> {
        let (done, pending): (Vec<&Operation>, Vec<&Operation>) =
            self.operations.iter().copied().partition(|operation| operation.answered_by(moment));
        let hold_before =
            self.start.hold.as_ref().and_then(|hold| Some((hold.token?, hold.owner, hold.entered)));
        let grants = done.iter().filter_map(|operation| operation.granted());
        let before = hold_before.map(|(token, owner, _)| (token, owner));
        let (highest, owner) = grants.chain(before).max()?;

        let entered_before = hold_before.filter(|hold| hold.0 == highest).map_or(0, |hold| hold.2);
        let entered = done.iter().filter(|operation| operation.granted() == Some((highest, owner))).count();
        let left = done.iter().filter(|operation| operation.has_left(highest)).count();
        let entered = (entered_before + entered).saturating_sub(left);

        let comes_later = |operation: &&Operation| match operation.answered {
            Some(_) => entered > 0 && operation.granted().is_some_and(|(token, _)| token > highest),
            // An acquire without a return may always take effect; an end without a return cannot, after a later grant.
            None => operation.call.token().is_some_and(|token| token < highest),
        };
        pending.iter().all(comes_later).then(|| {
            let hold = (entered > 0).then_some(Hold { owner, token: Some(highest), entered });
            FencedLock { hold, highest }
        })
    }

    fn fault(&self) -> Option<String> {
        let count = self.operations.len();
        if count > WINDOW_MAX {
            return Some(format!("{count} operations without a quiet point: too many to check"));
        }
        (!self.is_explained()).then(|| {
            format!(
                "no order of these operations on {:?} explains their responses: {:?}",
                self.start, self.operations
            )
        })
    }

    /// Whether the tester finds an order. Calls that do not overlap may share one of its threads; a call that never
    /// returned keeps its thread for ever.
    fn is_explained(&self) -> bool {
        let mut tester = LinearizabilityTester::new(self.start.clone());
        let (mut idle, mut threads) = (BTreeSet::new(), 0..);
        let mut busy: Vec<(&Operation, u64)> = Vec::new();
        for (_, is_answer, operation) in events(&self.operations) {
            // Misuse of the tester would make the history invalid, which is reported as a fault.
            if !is_answer {
                let thread = idle.pop_first().or_else(|| threads.next()).unwrap_or_default();
                busy.push((operation, thread));
                let _ = tester.on_invoke(thread, operation.call);
            } else if let Some(place) = busy.iter().position(|(other, _)| std::ptr::eq(*other, operation))
                && let Some((_, answer)) = operation.answered
            {
                let (_, thread) = busy.swap_remove(place);
                let _ = tester.on_return(thread, answer);
                idle.insert(thread);
            }
        }
        tester.is_consistent()
    }
}

#[cfg(test)]
mod tests;
