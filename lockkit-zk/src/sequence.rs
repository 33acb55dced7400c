//! The numbers of ZooKeeper's sequential nodes, and their order.
//!
//! A number counts the children ever created under one parent. It is a signed 32-bit number: older servers wrap from
//! 2147483647 to -2147483648. (This library stops before that; other programs' nodes may be there.) The contenders of
//! one moment have numbers close to each other, so they are ordered by the sign of their wrapped difference. Comparing
//! text or plain numbers would grant the newest first.

use std::cmp::Ordering;

/// Digits of a number: `%010d`.
const DIGITS: usize = 10;

/// Returns the number at the end of a node's name, whichever program created it; `None` for a name that no sequential
/// node has.
///
/// The text before the number does not matter: any node with a lower number in the queue's directory may be a
/// contender, and is waited for.
pub(crate) fn sequence(name: &str) -> Option<i32> {
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (before, number) = name.split_at(name.len() - digits.min(DIGITS));
    // A negative number has 10 characters with its sign, or 11. A minus counts as a sign if the text before it is empty
    // or ends with a separator: `lock--2147483648`, `__lock__-000000001`.
    let is_signed =
        before.strip_suffix('-').is_some_and(|rest| rest.is_empty() || rest.ends_with(['-', '_']));
    match digits.min(DIGITS) {
        DIGITS => {
            let number: i64 = number.parse().ok()?;
            let is_negative = is_signed && number >= 1_000_000_000;
            i32::try_from(if is_negative { -number } else { number }).ok()
        }
        nine if nine + 1 == DIGITS && is_signed => number.parse().map(|number: i32| -number).ok(),
        _ => None,
    }
}

/// Orders two contenders of one queue.
pub(crate) fn compare(one: i32, other: i32) -> Ordering {
    one.wrapping_sub(other).cmp(&0)
}

/// The position of a contender in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QueuePosition {
    /// Not in the queue.
    NotQueued,
    /// No contender is before it.
    First,
    /// This contender is right before it.
    Behind(String),
}

/// Returns the position of `own` among these children, ignoring those that are not contenders.
pub(crate) fn queue_position(children: &[String], own: &str) -> QueuePosition {
    let Some(number) = sequence(own).filter(|_| children.iter().any(|child| child == own)) else {
        return QueuePosition::NotQueued;
    };
    // Nodes of one parent have different numbers, unless somebody made up a name.
    let order_to_own = |name: &str, other: i32| compare(other, number).then_with(|| name.cmp(own));
    let before = children
        .iter()
        .filter_map(|child| Some((child, sequence(child)?)))
        .filter(|(child, other)| order_to_own(child, *other) == Ordering::Less);
    let predecessor = before.max_by(|one, other| compare(one.1, other.1).then_with(|| one.0.cmp(other.0)));
    predecessor.map_or(QueuePosition::First, |(predecessor, _)| QueuePosition::Behind(predecessor.clone()))
}

/// Returns the contenders among these children in queue order.
pub(crate) fn in_order(children: Vec<String>) -> Vec<String> {
    let mut numbered: Vec<(i32, String)> =
        children.into_iter().filter_map(|child| Some((sequence(&child)?, child))).collect();
    // Wrapped differences order only numbers close to each other, so all are compared with the lowest.
    let first = numbered.iter().map(|(number, _)| *number).min_by(|one, other| compare(*one, *other));
    if let Some(first) = first {
        let place = |number: i32| number.wrapping_sub(first);
        // With the same number the names decide, as for a contender that looks for its position.
        numbered.sort_by(|one, other| (place(one.0), &one.1).cmp(&(place(other.0), &other.1)));
    }
    numbered.into_iter().map(|(_, child)| child).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Formats a number like the server: Java's `%010d`.
    fn written(prefix: &str, number: i32) -> String {
        format!("{prefix}{number:010}")
    }

    const FAMILIES: [&str; 10] = [
        "_c_0a1b2c3d-0a1b-0c1d-8a1b-0a1b2c3d4e5f-lock-",
        "lock-",
        "0a1b2c3d4e5f60718293a4b5c6d7e8f9__lock__",
        "0a1b2c3d4e5f60718293a4b5c6d7e8f9__rlock__",
        "x-72057594037927936-",
        "_c_0a1b2c3d-0a1b-0c1d-8a1b-0a1b2c3d4e5f-__WRIT__",
        "_c_0a1b2c3d-0a1b-0c1d-8a1b-0a1b2c3d4e5f-__READ__",
        "_c_0a1b2c3d-0a1b-0c1d-8a1b-0a1b2c3d4e5f-latch-",
        "write-",
        "",
    ];

    #[test]
    fn junk_has_no_number() {
        let junk = [
            "",
            "config",
            "lock-",
            "lock-12",
            "lock-123456789",
            "backup-202611215",
            "lock-9999999999",
            "x-1y",
        ];
        for name in junk {
            assert_eq!(sequence(name), None, "{name}");
        }
    }

    /// Another program may choose such a prefix.
    #[test]
    fn text_before_a_number_may_end_with_a_digit() {
        for (name, number) in [("node70000000012", 12), ("72147483647", i32::MAX), ("v2-0000000012", 12)] {
            assert_eq!(sequence(name), Some(number), "{name}");
        }
    }

    /// From here on, a negative number has as many digits as a positive one.
    #[test]
    fn negative_numbers_of_nine_and_of_ten_digits_are_read() {
        for number in [-1, -999_999_999, -1_000_000_000, -1_000_000_001, i32::MIN] {
            assert_eq!(sequence(&written("lock-", number)), Some(number));
        }
    }

    #[test]
    fn the_order_survives_the_wrap() {
        let numbers = [2_147_483_646, 2_147_483_647, -2_147_483_648, -2_147_483_647, -2_147_483_646];
        let names: Vec<String> = numbers.iter().map(|number| written("lock-", *number)).collect();
        let mut shuffled = names.clone();
        shuffled.rotate_left(3);
        assert_eq!(in_order(shuffled.clone()), names);
        assert_eq!(queue_position(&shuffled, &names[0]), QueuePosition::First);
        for pair in names.windows(2) {
            assert_eq!(queue_position(&shuffled, &pair[1]), QueuePosition::Behind(pair[0].clone()));
        }
    }

    /// A server whose numbers are exhausted, or a made-up name.
    #[test]
    fn one_of_two_contenders_with_the_same_number_is_first() {
        let (one, other) = (written("_c_a-lock-", 7), written("_c_b-lock-", 7));
        for children in [[one.clone(), other.clone()], [other.clone(), one.clone()]] {
            assert_eq!(queue_position(&children, &one), QueuePosition::First);
            assert_eq!(queue_position(&children, &other), QueuePosition::Behind(one.clone()));
            assert_eq!(in_order(children.to_vec()), [one.clone(), other.clone()]);
        }
    }

    #[test]
    fn every_family_is_waited_for_and_junk_is_not() {
        for (index, family) in FAMILIES.iter().enumerate() {
            let other = written(family, 7);
            let children =
                vec!["junk".to_owned(), written("lock-", 8), other.clone(), written("_c_x-lock-", 9)];
            let behind = QueuePosition::Behind(other);
            assert_eq!(queue_position(&children, &written("lock-", 8)), behind, "family {index}");
        }
        assert_eq!(queue_position(&["junk".into()], "lock-0000000001"), QueuePosition::NotQueued);
    }

    proptest! {
        #[test]
        fn a_number_is_read_as_the_server_wrote_it(family in 0..FAMILIES.len(), number: i32) {
            prop_assert_eq!(sequence(&written(FAMILIES[family], number)), Some(number));
        }

        #[test]
        fn neighbours_are_ordered_wherever_they_are(start: i32, steps in proptest::collection::vec(1..1000, 1..20)) {
            let mut number = start;
            let names: Vec<String> = steps
                .iter()
                .map(|step| { number = number.wrapping_add(*step); written("_c_x-lock-", number) })
                .collect();
            let mut reversed = names.clone();
            reversed.reverse();
            prop_assert_eq!(in_order(reversed), names);
        }
    }
}
