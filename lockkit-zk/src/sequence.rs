//! The numbers that ZooKeeper gives sequential nodes, and their order.
//!
//! A number counts the children that were ever created under one parent. It is a signed 32-bit one: older servers wrap from
//! 2147483647 to -2147483648. (Ours end before; others' may be met.) The contenders of one moment are near each other, so their
//! order is the sign of their wrapped difference; a comparison as text or as numbers would let the newest in first.

use std::cmp::Ordering;

/// Digits of a number: `%010d`.
const DIGITS: usize = 10;

/// The number at the end of a node's name, whichever program made it; `None` for a name that no sequential node has.
///
/// What is before the number does not matter: whoever is in the queue's directory with a lower number may be a contender,
/// and is waited for.
pub(crate) fn sequence(name: &str) -> Option<i32> {
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (before, number) = name.split_at(name.len() - digits.min(DIGITS));
    // A negative number has 10 characters with its sign, or 11. A minus is a sign where the name before it has an end of its
    // own: `lock--2147483648`, `__lock__-000000001`.
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

/// The order in which two contenders of one queue are served.
pub(crate) fn compare(one: i32, other: i32) -> Ordering {
    one.wrapping_sub(other).cmp(&0)
}

/// Where a contender stands in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is not in the queue.
    Absent,
    /// Nobody is before it.
    First,
    /// This one is next before it.
    Behind(String),
}

/// Where `own` stands among these children; those that are no contenders are passed over.
pub(crate) fn standing(children: &[String], own: &str) -> Standing {
    let Some(number) = sequence(own).filter(|_| children.iter().any(|child| child == own)) else {
        return Standing::Absent;
    };
    // No two nodes of one parent have the same number, unless somebody has made up a name.
    let place = |name: &str, other: i32| compare(other, number).then_with(|| name.cmp(own));
    let before = children
        .iter()
        .filter_map(|child| Some((child, sequence(child)?)))
        .filter(|(child, other)| place(child, *other) == Ordering::Less);
    let predecessor = before.max_by(|one, other| compare(one.1, other.1).then_with(|| one.0.cmp(other.0)));
    predecessor.map_or(Standing::First, |(predecessor, _)| Standing::Behind(predecessor.clone()))
}

/// The contenders among these children, in the order of service.
pub(crate) fn in_order(children: Vec<String>) -> Vec<String> {
    let mut numbered: Vec<(i32, String)> =
        children.into_iter().filter_map(|child| Some((sequence(&child)?, child))).collect();
    // Wrapped differences order only what is near each other, so from the lowest on, not pair by pair.
    let first = numbered.iter().map(|(number, _)| *number).min_by(|one, other| compare(*one, *other));
    if let Some(first) = first {
        numbered.sort_by_key(|(number, _)| number.wrapping_sub(first));
    }
    numbered.into_iter().map(|(_, child)| child).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As the server does: Java's `%010d`.
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

    #[test]
    fn the_order_survives_the_wrap() {
        let numbers = [2_147_483_646, 2_147_483_647, -2_147_483_648, -2_147_483_647, -2_147_483_646];
        let names: Vec<String> = numbers.iter().map(|number| written("lock-", *number)).collect();
        let mut shuffled = names.clone();
        shuffled.rotate_left(3);
        assert_eq!(in_order(shuffled.clone()), names);
        assert_eq!(standing(&shuffled, &names[0]), Standing::First);
        for pair in names.windows(2) {
            assert_eq!(standing(&shuffled, &pair[1]), Standing::Behind(pair[0].clone()));
        }
    }

    #[test]
    fn every_family_is_waited_for_and_junk_is_not() {
        for (index, family) in FAMILIES.iter().enumerate() {
            let other = written(family, 7);
            let children =
                vec!["junk".to_owned(), written("lock-", 8), other.clone(), written("_c_x-lock-", 9)];
            let behind = Standing::Behind(other);
            assert_eq!(standing(&children, &written("lock-", 8)), behind, "family {index}");
        }
        assert_eq!(standing(&["junk".into()], "lock-0000000001"), Standing::Absent);
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
