//! The tables in docs/ are about this suite: about all of its cases and about no others.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{collections::BTreeSet, fs, path::Path};

use lockkit_conformance::{Case, cases};

const HINT: &str = "run `cargo xtask conformance`, then `cargo xtask guarantees`";

/// The cells of each row of the table that `cargo xtask guarantees` has written, without its heading.
fn rows(file: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file)).unwrap();
    let (_, table) = text.split_once("`cargo xtask guarantees`: begin -->\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// `20 passed, 3 ignored`, whatever stands in between and behind.
fn sum(cell: &str) -> usize {
    let words: Vec<&str> = cell.split([' ', ',', ';']).collect();
    let counted = words.windows(2).filter(|pair| ["passed", "failed", "ignored"].contains(&pair[1]));
    counted.map(|pair| pair[0].parse::<usize>().unwrap()).sum()
}

#[test]
fn the_list_names_exactly_the_cases_of_the_suite() {
    let named: BTreeSet<String> =
        rows("docs/cases.md").into_iter().map(|row| row[0].replace('`', "")).collect();
    let there: BTreeSet<String> = cases().iter().map(|case| case.name.to_owned()).collect();
    let apart: Vec<&String> = named.symmetric_difference(&there).collect();
    assert!(apart.is_empty(), "{HINT}: {apart:?}");
}

#[test]
fn every_promise_has_as_many_cases_as_the_table_says() {
    let rows = rows("docs/guarantees.md");
    let promises: BTreeSet<String> =
        cases().iter().flat_map(|case| case.properties).map(ToString::to_string).collect();
    assert_eq!(rows.iter().map(|row| row[0].clone()).collect::<BTreeSet<_>>(), promises, "{HINT}");
    for row in rows {
        let proves = |case: &&Case| case.properties.iter().any(|property| property.to_string() == row[0]);
        let there = cases().iter().filter(proves).count();
        assert_eq!(row[2], there.to_string(), "{}: {HINT}", row[0]);
        assert!(row.len() > 3 && row[3..].iter().all(|cell| sum(cell) == there), "{row:?}: {HINT}");
    }
}

#[test]
fn every_backend_was_tried_with_all_cases() {
    let rows = rows("README.md");
    assert!(rows.len() >= 3, "{HINT}");
    for row in rows {
        assert_eq!(sum(row.last().unwrap()), cases().len(), "{}: {HINT}", row[0]);
    }
}
