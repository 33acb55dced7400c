//! Linearizability of a fenced lock with re-entry.
//!
//! The other checkers look at pairs of holds. This one asks whether the whole history can be explained: whether there
//! is an order of all its operations, each at a moment between its call and its answer, in which a lock that knows its
//! owner, how often it was entered and its token would have answered the same. So it also finds what they have no
//! word for (a hold that ended one release too early), and mistakes in them.
//!
//! The search is [stateright](https://docs.rs/stateright)'s, and takes time that grows with the square of the number
//! of operations, or worse. So a history is cut into windows at *quiet* points: moments at which the state of the lock
//! is known, and every call that is under way comes into effect later. Nothing is lost by it; a test compares.

use std::collections::{BTreeMap, BTreeSet};

use stateright::semantics::{ConsistencyTester, LinearizabilityTester};

use super::fenced_lock::{Answer, Call, FencedLock, Hold};

/// Operations that one search may take; a history without a quiet point for so long is refused.
const WINDOW_MAX: usize = 200;

/// Moment of an event in the order in which things happened: a reading of one counter.
pub type Moment = u64;

/// One call at a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The lock.
    pub lock: String,
    /// What was asked.
    pub call: Call,
    /// Before the call was made.
    pub called: Moment,
    /// After the answer was there; `None` for an outcome that nobody knows: it may still come about, or never.
    pub answered: Option<(Moment, Answer)>,
}

impl Operation {
    fn answered_by(&self, moment: Moment) -> bool {
        self.answered.is_some_and(|(answered, _)| answered <= moment)
    }

    /// The token and the owner that it was granted to.
    fn granted(&self) -> Option<(u64, u64)> {
        match (self.call, self.answered?.1) {
            (Call::Acquire { owner }, Answer::Granted(token)) => Some((token, owner)),
            _ => None,
        }
    }

    /// Whether it has left the hold with this token once.
    fn has_left(&self, token: u64) -> bool {
        let released = self.answered.is_some_and(|(_, told)| told == Answer::Released);
        released && matches!(self.call, Call::Release { .. }) && self.call.token() == Some(token)
    }
}

/// Whether some order of the operations explains every answer. At most one fault per lock: after it nothing can be told.
pub fn linearizable(history: &[Operation]) -> Vec<String> {
    let mut locks: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in history {
        locks.entry(&operation.lock).or_default().push(operation);
    }
    locks.into_values().filter_map(|operations| windows(&operations).iter().find_map(Window::fault)).collect()
}

/// A part of a history that can be judged by itself.
#[derive(Debug, Default)]
struct Window<'a> {
    start: FencedLock,
    operations: Vec<&'a Operation>,
}

/// Calls and answers in their order. At one moment calls come first: that excludes the least.
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
            // What never came about by now was about an earlier hold, and is judged with it.
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
    /// The state of the lock at this moment, if that is sure and nothing under way can have come into effect by then.
    ///
    /// That is so when every call under way is an acquire with a token above that of a hold which nobody has begun to
    /// leave, or when there is no such call.
    fn quiet_at(&self, moment: Moment) -> Option<FencedLock> {
        let (done, under_way): (Vec<&Operation>, Vec<&Operation>) =
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
            // An unknown acquire is never over; an unknown end is, when a later hold has begun.
            None => operation.call.token().is_some_and(|token| token < highest),
        };
        under_way.iter().all(comes_later).then(|| {
            let hold = (entered > 0).then_some(Hold { owner, token: Some(highest), entered });
            FencedLock { hold, highest }
        })
    }

    fn fault(&self) -> Option<String> {
        let count = self.operations.len();
        if count > WINDOW_MAX {
            return Some(format!("{count} operations without a quiet point: too many to judge"));
        }
        (!self.is_explained()).then(|| {
            format!(
                "no order of these operations on {:?} explains their answers: {:?}",
                self.start, self.operations
            )
        })
    }

    /// Whether the tester finds an order. Calls that do not overlap may share one of its threads; one whose answer
    /// never came keeps its thread for ever.
    fn is_explained(&self) -> bool {
        let mut tester = LinearizabilityTester::new(self.start.clone());
        let (mut idle, mut threads) = (BTreeSet::new(), 0..);
        let mut busy: Vec<(&Operation, u64)> = Vec::new();
        for (_, is_answer, operation) in events(&self.operations) {
            // Misuse of the tester would make the history invalid, and that is told as a fault.
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

    fn operation(call: Call, called: Moment, answered: Option<(Moment, Answer)>) -> Operation {
        Operation { lock: "a".to_owned(), call, called, answered }
    }

    fn granted(owner: u64, token: u64, called: Moment, answered: Moment) -> Operation {
        operation(Call::Acquire { owner }, called, Some((answered, Answer::Granted(token))))
    }

    fn released(owner: u64, token: u64, called: Moment, answered: Moment) -> Operation {
        operation(Call::Release { owner, token }, called, Some((answered, Answer::Released)))
    }

    fn not_held(owner: u64, token: u64, called: Moment, answered: Moment) -> Operation {
        operation(Call::Release { owner, token }, called, Some((answered, Answer::NotHeld)))
    }

    fn expire(owner: u64, token: u64, called: Moment) -> Operation {
        operation(Call::Expire { owner, token: Some(token) }, called, None)
    }

    /// So many owners, who ask at once and are served one after the other.
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
                "granted before the release is answered",
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
                "a dead holder is succeeded",
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
                "an acquire that was never answered, and ended",
                vec![
                    operation(Call::Acquire { owner: 1 }, 0, None),
                    operation(Call::Expire { owner: 1, token: None }, 0, None),
                    granted(2, 2, 1, 2),
                    released(2, 2, 3, 4),
                    granted(3, 4, 5, 6),
                ],
            ),
            (
                "an acquire that was never answered, and then entered",
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
                "entered twice, left once, granted to another",
                vec![
                    granted(1, 1, 0, 1),
                    granted(1, 1, 2, 3),
                    released(1, 1, 4, 5),
                    granted(2, 2, 6, 7),
                    released(1, 1, 8, 9),
                ],
            ),
            (
                "left more often than entered",
                vec![granted(1, 1, 0, 1), released(1, 1, 2, 3), released(1, 1, 4, 5)],
            ),
            (
                "a living holder is told that it does not hold",
                vec![granted(1, 1, 0, 1), not_held(1, 1, 2, 3)],
            ),
            (
                "succeeded before it can have died",
                vec![granted(1, 1, 0, 1), granted(2, 2, 2, 3), expire(1, 1, 4)],
            ),
            (
                "a dead holder releases after it was succeeded",
                vec![granted(1, 1, 0, 1), expire(1, 1, 0), granted(2, 2, 2, 3), released(1, 1, 4, 5)],
            ),
            (
                "an acquire that was never answered does not end by itself",
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
    fn a_contended_history_is_cut_at_every_hold() {
        let history: Vec<Operation> = (0..100).flat_map(|round| queue(8, round * 100)).collect();
        let longest = windows(&history.iter().collect::<Vec<_>>());
        let longest = longest.iter().map(|window| window.operations.len()).max();
        assert!(longest <= Some(4), "{longest:?} operations in one window");
    }

    #[test]
    fn the_longest_window_is_judged_and_a_longer_one_is_refused() {
        // Everybody may be first, as far as the calls tell.
        let one_turn = |owner| [granted(owner, owner, 0, 1_000_000), released(owner, owner, 1, 1_000_001)];
        let turns = (WINDOW_MAX / 2) as u64;
        let history: Vec<Operation> = (1..=turns).flat_map(one_turn).collect();
        assert_eq!(linearizable(&history), Vec::<String>::new());
        let longer: Vec<Operation> = (1..=turns + 1).flat_map(one_turn).collect();
        assert!(linearizable(&longer)[0].contains("too many"));
    }

    /// What owners did, one after the other: acquire, release or die.
    fn turns() -> impl Strategy<Value = Vec<(u64, u8)>> {
        proptest::collection::vec((1_u64..4, 0_u8..8), 1..12)
    }

    /// The history of these turns, each operation called and answered up to so much before and after its effect.
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
        fn what_happened_one_after_the_other_is_explained(
            turns in turns(), stretch in proptest::collection::vec((0_u64..40, 0_u64..40), 12),
        ) {
            prop_assert_eq!(linearizable(&history_of(&turns, &stretch)), Vec::<String>::new());
        }

        #[test]
        fn cutting_into_windows_changes_no_verdict(
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
