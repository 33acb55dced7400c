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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn operation(call: Call, called: Moment, answered: Option<(Moment, Response)>) -> Operation {
        Operation::new("a", call, called, answered)
    }

    fn granted(owner: u64, token: u64, called: Moment, answered: Moment) -> Operation {
        operation(Call::Acquire { owner }, called, Some((answered, Response::Granted(token))))
    }

    fn released(owner: u64, token: u64, called: Moment, answered: Moment) -> Operation {
        operation(Call::Release { owner, token }, called, Some((answered, Response::Released)))
    }

    fn not_held(owner: u64, token: u64, called: Moment, answered: Moment) -> Operation {
        operation(Call::Release { owner, token }, called, Some((answered, Response::NotHeld)))
    }

    fn expire(owner: u64, token: u64, called: Moment) -> Operation {
        operation(Call::Expire { owner, token: Some(token) }, called, None)
    }

    /// Owners that call at the same time and are granted one after the other.
    fn queue(owners: u64, from: Moment) -> Vec<Operation> {
        let turn = |owner| {
            let served = from + owners + 4 * owner;
            [
                granted(owner, served, from + owner, served + 1),
                released(owner, served, served + 2, served + 3),
            ]
        };
        (0..owners).flat_map(turn).collect()
    }

    #[test]
    fn good_histories_are_explained() {
        let good = [
            ("nothing", vec![]),
            ("one after the other", vec![granted(1, 1, 0, 1), released(1, 1, 2, 3), granted(2, 2, 4, 5)]),
            (
                "granted before the release returns",
                vec![granted(1, 1, 0, 1), released(1, 1, 2, 9), granted(2, 5, 3, 4)],
            ),
            (
                "entered three times",
                vec![
                    granted(1, 1, 0, 1),
                    granted(1, 1, 2, 5),
                    granted(1, 1, 3, 4),
                    released(1, 1, 6, 9),
                    released(1, 1, 7, 8),
                    released(1, 1, 10, 11),
                    granted(2, 2, 0, 13),
                ],
            ),
            (
                "a grant after a dead holder",
                vec![
                    granted(1, 1, 0, 1),
                    expire(1, 1, 0),
                    granted(2, 2, 2, 3),
                    not_held(1, 1, 4, 5),
                    released(2, 2, 6, 7),
                ],
            ),
            (
                "a dead holder's release",
                vec![
                    granted(1, 1, 0, 1),
                    operation(Call::Release { owner: 1, token: 1 }, 2, None),
                    granted(2, 2, 3, 4),
                ],
            ),
            (
                "an acquire that never returned, and ended",
                vec![
                    operation(Call::Acquire { owner: 1 }, 0, None),
                    operation(Call::Expire { owner: 1, token: None }, 0, None),
                    granted(2, 2, 1, 2),
                    released(2, 2, 3, 4),
                    granted(3, 4, 5, 6),
                ],
            ),
            (
                "an acquire that never returned, and then re-entered",
                vec![operation(Call::Acquire { owner: 1 }, 0, None), granted(1, 7, 1, 2)],
            ),
            (
                "another lock",
                vec![granted(1, 3, 0, 1), Operation { lock: "b".to_owned(), ..granted(2, 1, 2, 3) }],
            ),
            ("a long queue", queue(8, 0)),
        ];
        for (what, history) in good {
            assert_eq!(linearizable(&history), Vec::<String>::new(), "{what}");
        }
    }

    #[test]
    fn bad_histories_are_not_explained() {
        let mut stale_at_the_end: Vec<Operation> = (0..40).flat_map(|round| queue(5, round * 100)).collect();
        stale_at_the_end.push(granted(9, 3000, 5000, 5001));
        let bad = [
            ("two holders", vec![granted(1, 1, 0, 1), granted(2, 2, 2, 3)]),
            ("a stale token at the end", stale_at_the_end),
            ("re-entry with a new token", vec![granted(1, 1, 0, 1), granted(1, 2, 2, 3)]),
            ("release by another", vec![granted(1, 1, 0, 1), released(2, 1, 2, 3)]),
            ("the same token again", vec![granted(1, 1, 0, 1), released(1, 1, 2, 3), granted(1, 1, 4, 5)]),
            (
                "entered twice, released once, granted to another",
                vec![
                    granted(1, 1, 0, 1),
                    granted(1, 1, 2, 3),
                    released(1, 1, 4, 5),
                    granted(2, 2, 6, 7),
                    released(1, 1, 8, 9),
                ],
            ),
            (
                "released more often than entered",
                vec![granted(1, 1, 0, 1), released(1, 1, 2, 3), released(1, 1, 4, 5)],
            ),
            ("a holder that is alive gets `NotHeld`", vec![granted(1, 1, 0, 1), not_held(1, 1, 2, 3)]),
            (
                "a grant before the holder can have died",
                vec![granted(1, 1, 0, 1), granted(2, 2, 2, 3), expire(1, 1, 4)],
            ),
            (
                "a dead holder releases after the next grant",
                vec![granted(1, 1, 0, 1), expire(1, 1, 0), granted(2, 2, 2, 3), released(1, 1, 4, 5)],
            ),
            (
                "an acquire that never returned does not end by itself",
                vec![
                    operation(Call::Acquire { owner: 1 }, 0, None),
                    granted(2, 2, 1, 2),
                    released(2, 2, 3, 4),
                    granted(1, 3, 5, 6),
                    granted(2, 4, 7, 8),
                ],
            ),
        ];
        for (what, history) in bad {
            assert_eq!(linearizable(&history).len(), 1, "{what}");
        }
    }

    #[test]
    fn contended_history_is_cut_at_every_hold() {
        let history: Vec<Operation> = (0..100).flat_map(|round| queue(8, round * 100)).collect();
        let longest = windows(&history.iter().collect::<Vec<_>>());
        let longest = longest.iter().map(|window| window.operations.len()).max();
        assert!(longest <= Some(4), "{longest:?} operations in one window");
    }

    #[test]
    fn longest_window_is_checked_and_a_longer_one_is_refused() {
        // By the calls alone, any owner may be the first.
        let one_turn = |owner| [granted(owner, owner, 0, 1_000_000), released(owner, owner, 1, 1_000_001)];
        let turns = (WINDOW_MAX / 2) as u64;
        let history: Vec<Operation> = (1..=turns).flat_map(one_turn).collect();
        assert_eq!(linearizable(&history), Vec::<String>::new());
        let longer: Vec<Operation> = (1..=turns + 1).flat_map(one_turn).collect();
        assert!(linearizable(&longer)[0].contains("too many"));
    }

    /// A sequence of steps: an owner, and whether it acquires, releases or dies.
    fn turns() -> impl Strategy<Value = Vec<(u64, u8)>> {
        proptest::collection::vec((1_u64..4, 0_u8..8), 1..12)
    }

    /// The history of these steps; `stretch` says how long before and after its effect each one is called and returns.
    fn history_of(turns: &[(u64, u8)], stretch: &[(u64, u64)]) -> Vec<Operation> {
        let (mut history, mut hold, mut token) = (Vec::new(), None::<(u64, u64, usize)>, 0);
        for (number, (owner, what)) in turns.iter().enumerate() {
            let effect = 100 + 10 * number as u64;
            let (before, after) = stretch[number];
            let (called, answered) = (effect - before, effect + after);
            let (now, done) = match (hold, what) {
                (None, _) => {
                    token += 2;
                    (Some((*owner, token, 1)), granted(*owner, token, called, answered))
                }
                (Some((owner, token, entered)), 0..3) => {
                    (Some((owner, token, entered + 1)), granted(owner, token, called, answered))
                }
                (Some((owner, token, _)), 3) => (None, expire(owner, token, called)),
                (Some((owner, token, entered)), _) => {
                    let left = (entered > 1).then_some((owner, token, entered - 1));
                    (left, released(owner, token, called, answered))
                }
            };
            hold = now;
            history.push(done);
        }
        history
    }

    proptest! {
        #[test]
        fn sequential_history_is_explained(
            turns in turns(), stretch in proptest::collection::vec((0_u64..40, 0_u64..40), 12),
        ) {
            prop_assert_eq!(linearizable(&history_of(&turns, &stretch)), Vec::<String>::new());
        }

        #[test]
        fn cutting_into_windows_changes_no_result(
            turns in turns(), stretch in proptest::collection::vec((0_u64..40, 0_u64..40), 12),
            place in 0_usize..12, token in 1_u64..12, owner in 1_u64..4,
        ) {
            let mut history = history_of(&turns, &stretch);
            let place = place % history.len();
            let (called, answered) = (history[place].called, history[place].called + 15);
            history[place] = match token % 3 {
                0 => granted(owner, token, called, answered),
                1 => released(owner, token, called, answered),
                _ => not_held(owner, token, called, answered),
            };
            let whole = Window { start: FencedLock::default(), operations: history.iter().collect() };
            prop_assert_eq!(linearizable(&history).is_empty(), whole.is_explained(), "{:?}", history);
        }
    }
}
