//! The suite is tested itself: on each wrong backend the cases fail that must.
//!
//! `matrix.txt` lists, per defect, the cases that fail on it every time. A case that nothing fails is decoration:
//! each is either beyond what the memory backend can be tried with, or stands in `UNPROVEN` with the reason.
#![allow(clippy::unwrap_used, reason = "a test")]

mod coverage;

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

/// A blank line between defects; below each, one case per line.
const MATRIX: &str = include_str!("matrix.txt");

/// Cases that run on the memory backend, and that none of the wrong ones fails.
const UNPROVEN: &[(&str, &str)] =
    &[("a_ttl_of_zero_is_refused", "the client refuses it before a backend is asked")];

type Failed = BTreeMap<String, BTreeSet<&'static str>>;

#[test]
fn every_defect_is_found_by_the_cases_that_are_there_for_it() {
    let failed = run_all();
    let expected = expected();
    let defects: BTreeSet<String> = Defect::ALL.iter().map(|defect| format!("{defect:?}")).collect();
    assert_eq!(expected.keys().cloned().collect::<BTreeSet<_>>(), defects, "the defects in matrix.txt");

    let mut wrong = String::new();
    for (defect, cases) in &expected {
        assert!(!cases.is_empty(), "{defect} is not found by anything");
        for case in cases.iter().filter(|case| !failed[defect].contains(case.as_str())) {
            writeln!(wrong, "{defect}: {case} passes").unwrap();
        }
    }
    let proven: BTreeSet<&str> = expected.values().flatten().map(String::as_str).collect();
    let harness = BrokenHarness(Defect::ALL[0]);
    for case in cases().iter().filter(|case| case.unmet(&harness).is_none()) {
        let unproven = UNPROVEN.iter().any(|(name, _)| *name == case.name);
        if unproven == proven.contains(case.name) {
            let found =
                if unproven { "fails on a wrong backend, and is" } else { "fails on none, and is not" };
            writeln!(wrong, "{} {found} listed as unproven", case.name).unwrap();
        }
    }
    // A case that fails on every wrong backend proves nothing of any of them.
    for case in cases().iter().filter(|case| failed.values().all(|failed| failed.contains(case.name))) {
        writeln!(wrong, "{} fails on everything", case.name).unwrap();
    }
    assert!(wrong.is_empty(), "{wrong}\nwhat failed:\n{}", shown(&failed));
}

/// Runs every case on every wrong backend.
fn run_all() -> Failed {
    let work: Vec<(Defect, Case)> =
        Defect::ALL.iter().flat_map(|defect| cases().into_iter().map(|case| (*defect, case))).collect();
    let (work, failed) = (Mutex::new(work), Mutex::new(Failed::new()));
    let take = || work.lock().unwrap().pop();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, Into::into) {
            scope.spawn(|| {
                while let Some((defect, case)) = take() {
                    let harness: Arc<dyn Harness> = Arc::new(BrokenHarness(defect));
                    let record = run_case(&harness, case, SEED);
                    let mut failed = failed.lock().unwrap();
                    let of_defect = failed.entry(format!("{defect:?}")).or_default();
                    if matches!(record.outcome, Outcome::Failed(_)) {
                        of_defect.insert(case.name);
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap()
}

fn expected() -> BTreeMap<String, BTreeSet<String>> {
    let blocks = MATRIX.trim().split("\n\n").map(|block| {
        let (defect, cases) = block.split_once('\n').unwrap();
        (defect.to_owned(), cases.lines().map(|case| case.trim().to_owned()).collect())
    });
    blocks.collect()
}

/// In the form of `matrix.txt`.
fn shown(failed: &Failed) -> String {
    let block = |(defect, cases): (&String, &BTreeSet<&str>)| {
        let lines: String = cases.iter().fold(String::new(), |lines, case| lines + "    " + case + "\n");
        format!("{defect}\n{lines}")
    };
    failed.iter().map(block).collect::<Vec<_>>().join("\n")
}
