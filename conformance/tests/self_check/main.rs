//! Tests of the suite itself: on each wrong backend the right cases fail, for the right reason.
//!
//! `matrix.txt` lists for each defect the cases that always fail on it, each with a part of its message: a case that
//! only fails in its cleanup proves nothing. A case that no defect fails may test nothing, so it must be in
//! [`unproven`] with a reason.
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

/// A fixed seed, so that the outcome is not random.
const SEED: u64 = 42;

/// Defects that do not affect most cases.
const HARMLESS: [Defect; 2] = [Defect::PrintedSecret, Defect::TrustsAnybody];

/// Blocks separated by a blank line: a defect, then one case per line with a part of its message.
const MATRIX: &str = include_str!("matrix.txt");

/// The messages of failed cases, by defect and case.
type Messages = BTreeMap<String, BTreeMap<String, String>>;

#[test]
fn each_defect_fails_its_cases_for_the_right_reason() {
    let expected = expected();
    let named = |defect: &str| Defect::ALL.into_iter().find(|known| format!("{known:?}") == defect);
    let unknown: Vec<_> = expected.keys().filter(|defect| named(defect).is_none()).collect();
    assert!(unknown.is_empty(), "unknown defects: {unknown:?}");
    let by_name: BTreeMap<&str, Case> = cases().into_iter().map(|case| (case.name, case)).collect();
    let listed = |defect: Defect| {
        let lines = expected.get(&format!("{defect:?}")).into_iter().flat_map(BTreeMap::keys);
        lines.map(|case| by_name[case.as_str()]).collect::<Vec<_>>()
    };
    // A new defect runs with all cases; the output is its block of the matrix.
    let tried = |defect: Defect| Some(listed(defect)).filter(|cases| !cases.is_empty()).unwrap_or_else(cases);
    let work =
        Defect::ALL.into_iter().flat_map(|defect| tried(defect).into_iter().map(move |case| (defect, case)));
    let failed = run_all(work.collect());

    let mut wrong = String::new();
    for (defect, messages) in failed.iter().filter(|(defect, _)| !expected.contains_key(*defect)) {
        writeln!(wrong, "{defect} is missing in the matrix; its failed cases are\n{}", block_of(messages))
            .unwrap();
    }
    for (defect, cases) in &expected {
        for (case, reason) in cases {
            match failed.get(defect).and_then(|failed| failed.get(case)) {
                None => writeln!(wrong, "{defect}: {case} passes").unwrap(),
                Some(message) if message.contains(reason) => {}
                Some(message) => {
                    writeln!(wrong, "{defect}: {case}: not {reason:?}, but {message:?}").unwrap()
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn each_case_fails_on_a_defect_or_is_listed_as_unproven() {
    let (expected, unproven) = (expected(), unproven::reasons());
    let proven: BTreeSet<&str> = expected.values().flat_map(BTreeMap::keys).map(String::as_str).collect();
    let all: BTreeSet<&str> = cases().into_iter().map(|case| case.name).collect();

    let unknown: Vec<_> = proven.iter().chain(unproven.keys()).filter(|case| !all.contains(*case)).collect();
    assert!(unknown.is_empty(), "unknown cases: {unknown:?}");
    let twice: Vec<_> = proven.iter().filter(|case| unproven.contains_key(*case)).collect();
    assert!(twice.is_empty(), "fail on a defect, but are listed as unproven: {twice:?}");
    let neither: Vec<_> =
        all.iter().filter(|case| !proven.contains(*case) && !unproven.contains_key(*case)).collect();
    assert!(neither.is_empty(), "fail on no defect, and are not listed as unproven: {neither:?}");
}

/// A case that always fails proves nothing.
#[test]
fn each_case_passes_on_a_defect_that_is_not_its_subject() {
    let expected = expected();
    let lists = |defect: &Defect, case: &Case| {
        expected.get(&format!("{defect:?}")).is_some_and(|cases| cases.contains_key(case.name))
    };
    let mut left = cases();
    left.retain(|case| Defect::ALL.iter().any(|defect| lists(defect, case)));
    // Nearly all cases pass on the first one.
    for defect in HARMLESS {
        let work: Vec<_> =
            left.iter().filter(|case| !lists(&defect, case)).map(|case| (defect, *case)).collect();
        let tried: BTreeSet<&str> = work.iter().map(|(_, case)| case.name).collect();
        let failed = run_all(work).remove(&format!("{defect:?}")).unwrap_or_default();
        left.retain(|case| !tried.contains(case.name) || failed.contains_key(case.name));
    }
    assert!(left.is_empty(), "fail on every defect: {left:?}");
}

/// Runs these cases in parallel, and returns the messages of those that fail.
fn run_all(work: Vec<(Defect, Case)>) -> Messages {
    let (work, failed) = (Mutex::new(work), Mutex::new(Messages::new()));
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

fn expected() -> Messages {
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

/// Formats messages as in `matrix.txt`.
fn block_of(messages: &BTreeMap<String, String>) -> String {
    messages.iter().map(|(case, message)| format!("    {case}: {}\n", message.replace('\n', " "))).collect()
}
