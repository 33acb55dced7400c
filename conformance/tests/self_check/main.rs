//! The suite is tested itself: on each wrong backend the cases fail that must, for the reason that they are there for.
//!
//! `matrix.txt` lists, per defect, the cases that fail on it every time, each with a part of what it says then: a case that
//! fails because its tidying up does proves nothing of its promise. A case that nothing fails is decoration: it stands in
//! [`unproven`] with the reason, or this test is red.
#![allow(clippy::unwrap_used, reason = "a test")]

mod coverage;
mod unproven;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::{Arc, Mutex},
    thread,
};

use lockkit_conformance::{
    Case, Harness, Outcome,
    broken::{BrokenHarness, Defect},
    cases, run_case,
};

/// Chance must not decide here.
const SEED: u64 = 42;

/// Defects that most cases do not notice.
const HARMLESS: [Defect; 2] = [Defect::ToldSecret, Defect::TrustsAnybody];

/// A blank line between defects; below each, one case per line, with a part of its message.
const MATRIX: &str = include_str!("matrix.txt");

/// What cases say: by defect, then by case.
type Said = BTreeMap<String, BTreeMap<String, String>>;

#[test]
fn every_defect_is_found_by_the_cases_that_are_there_for_it() {
    let expected = expected();
    let named = |defect: &str| Defect::ALL.into_iter().find(|known| format!("{known:?}") == defect);
    let unknown: Vec<_> = expected.keys().filter(|defect| named(defect).is_none()).collect();
    assert!(unknown.is_empty(), "no defects: {unknown:?}");
    let by_name: BTreeMap<&str, Case> = cases().into_iter().map(|case| (case.name, case)).collect();
    let listed = |defect: Defect| {
        let lines = expected.get(&format!("{defect:?}")).into_iter().flat_map(BTreeMap::keys);
        lines.map(|case| by_name[case.as_str()]).collect::<Vec<_>>()
    };
    // A new defect is tried with everything: what is shown then is what the matrix lacks.
    let tried = |defect: Defect| Some(listed(defect)).filter(|cases| !cases.is_empty()).unwrap_or_else(cases);
    let work =
        Defect::ALL.into_iter().flat_map(|defect| tried(defect).into_iter().map(move |case| (defect, case)));
    let failed = run_all(work.collect());

    let mut wrong = String::new();
    for (defect, said) in failed.iter().filter(|(defect, _)| !expected.contains_key(*defect)) {
        writeln!(wrong, "{defect} is not in the matrix, and is found by\n{}", shown(said)).unwrap();
    }
    for (defect, cases) in &expected {
        for (case, reason) in cases {
            match failed.get(defect).and_then(|failed| failed.get(case)) {
                None => writeln!(wrong, "{defect}: {case} passes").unwrap(),
                Some(said) if said.contains(reason) => {}
                Some(said) => writeln!(wrong, "{defect}: {case}: not {reason:?}, but {said:?}").unwrap(),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_case_fails_on_a_wrong_backend_or_stands_in_the_list_with_the_reason() {
    let (expected, unproven) = (expected(), unproven::reasons());
    let proven: BTreeSet<&str> = expected.values().flat_map(BTreeMap::keys).map(String::as_str).collect();
    let all: BTreeSet<&str> = cases().into_iter().map(|case| case.name).collect();

    let unknown: Vec<_> = proven.iter().chain(unproven.keys()).filter(|case| !all.contains(*case)).collect();
    assert!(unknown.is_empty(), "no cases: {unknown:?}");
    let twice: Vec<_> = proven.iter().filter(|case| unproven.contains_key(*case)).collect();
    assert!(twice.is_empty(), "fail on a wrong backend, and are listed as unproven: {twice:?}");
    let neither: Vec<_> =
        all.iter().filter(|case| !proven.contains(*case) && !unproven.contains_key(*case)).collect();
    assert!(neither.is_empty(), "fail on no wrong backend, and are not listed as unproven: {neither:?}");
}

/// A case that fails on everything proves nothing.
#[test]
fn every_case_passes_on_a_backend_whose_defect_is_not_its_subject() {
    let expected = expected();
    let lists = |defect: &Defect, case: &Case| {
        expected.get(&format!("{defect:?}")).is_some_and(|cases| cases.contains_key(case.name))
    };
    let mut left = cases();
    left.retain(|case| Defect::ALL.iter().any(|defect| lists(defect, case)));
    // Nearly all pass on the first.
    for defect in HARMLESS {
        let work: Vec<_> =
            left.iter().filter(|case| !lists(&defect, case)).map(|case| (defect, *case)).collect();
        let tried: BTreeSet<&str> = work.iter().map(|(_, case)| case.name).collect();
        let failed = run_all(work).remove(&format!("{defect:?}")).unwrap_or_default();
        left.retain(|case| !tried.contains(case.name) || failed.contains_key(case.name));
    }
    assert!(left.is_empty(), "fail on everything: {left:?}");
}

/// Runs these cases, side by side: what those say that fail.
fn run_all(work: Vec<(Defect, Case)>) -> Said {
    let (work, failed) = (Mutex::new(work), Mutex::new(Said::new()));
    let take = || work.lock().unwrap().pop();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, Into::into) {
            scope.spawn(|| {
                while let Some((defect, case)) = take() {
                    let harness: Arc<dyn Harness> = Arc::new(BrokenHarness(defect));
                    let record = run_case(&harness, case, SEED);
                    let mut failed = failed.lock().unwrap();
                    let of_defect = failed.entry(format!("{defect:?}")).or_default();
                    if let Outcome::Failed(reason) = record.outcome {
                        of_defect.insert(case.name.to_owned(), reason);
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap()
}

fn expected() -> Said {
    let line = |line: &str| {
        let (case, reason) = line.trim().split_once(": ").ok_or(line).unwrap();
        (case.to_owned(), reason.to_owned())
    };
    let blocks = MATRIX.trim().split("\n\n").map(|block| {
        let (defect, cases) = block.split_once('\n').ok_or(block).unwrap();
        (defect.to_owned(), cases.lines().map(line).collect())
    });
    blocks.collect()
}

/// In the form of `matrix.txt`.
fn shown(said: &BTreeMap<String, String>) -> String {
    said.iter().map(|(case, said)| format!("    {case}: {}\n", said.replace('\n', " "))).collect()
}
