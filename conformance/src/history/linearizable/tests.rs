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
        [granted(owner, served, from + owner, served + 1), released(owner, served, served + 2, served + 3)]
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
fn good_histories_of_dead_clients_are_explained() {
    let good = [
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
