//! The tables in docs/ list exactly the cases of this suite, and the bugs that cases refer to.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "self_check/unproven.rs"]
mod unproven;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use lockkit_conformance::{Case, cases};

/// The cases that neither a wrong backend nor a mutation shows to fail: a reason, then one case per line.
const UNSHOWN: &str = include_str!("unshown.txt");

const HINT: &str = "run `cargo xtask conformance`, then `cargo xtask guarantees`";

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The cells of each row of the table that `cargo xtask guarantees` has written, without its heading.
fn rows(file: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(root().join(file)).unwrap();
    let (_, table) = text.split_once("`cargo xtask guarantees`: begin -->\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// Adds the counts in a cell such as `20 passed, 3 ignored`.
fn sum(cell: &str) -> usize {
    let words: Vec<&str> = cell.split([' ', ',', ';']).collect();
    let counted = words.windows(2).filter(|pair| ["passed", "failed", "ignored"].contains(&pair[1]));
    counted.map(|pair| pair[0].parse::<usize>().unwrap()).sum()
}

#[test]
fn list_has_exactly_the_cases_of_the_suite() {
    let named: BTreeSet<String> =
        rows("docs/cases.md").into_iter().map(|row| row[0].replace('`', "")).collect();
    let there: BTreeSet<String> = cases().iter().map(|case| case.name.to_owned()).collect();
    let apart: Vec<&String> = named.symmetric_difference(&there).collect();
    assert!(apart.is_empty(), "{HINT}: {apart:?}");
}

#[test]
fn each_promise_has_as_many_cases_as_the_table_says() {
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
fn each_backend_was_tested_with_all_cases() {
    let rows = rows("README.md");
    assert!(rows.len() >= 3, "{HINT}");
    for row in rows {
        assert_eq!(sum(row.last().unwrap()), cases().len(), "{}: {HINT}", row[0]);
    }
}

/// The sources of all test programs of the backend crates, which hold their own cases.
fn test_sources() -> Vec<PathBuf> {
    let is_backend =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("lockkit-"));
    let crates = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path()).filter(is_backend);
    let mut folders: Vec<PathBuf> =
        crates.map(|path| path.join("tests")).filter(|path| path.is_dir()).collect();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

/// The names of the cases that a source makes with `own_case!`.
fn own_cases(source: &Path) -> Vec<String> {
    let text = fs::read_to_string(source).unwrap_or_default();
    let is_end = |c: char| !c.is_alphanumeric() && c != '_';
    let calls = text.split("own_case!(").skip(1);
    calls.map(|rest| rest.trim_start().split(is_end).next().unwrap_or_default().to_owned()).collect()
}

/// The tests that mutations must turn red.
fn reds() -> BTreeSet<String> {
    let patches = fs::read_dir(root().join("xtask/mutations")).unwrap();
    let texts = patches.map(|patch| fs::read_to_string(patch.unwrap().path()).unwrap());
    let of_patch = |text: String| {
        let lines = text.lines().filter_map(|line| line.strip_prefix("# red: "));
        lines.flat_map(str::split_whitespace).map(str::to_owned).collect::<Vec<_>>()
    };
    texts.flat_map(of_patch).map(|name| name.rsplit("::").next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn each_case_that_no_wrong_backend_fails_is_red_on_a_mutation_or_listed_with_a_reason() {
    let own = test_sources().into_iter().flat_map(|source| own_cases(&source));
    let due: BTreeSet<String> = own.chain(unproven::reasons().into_keys().map(str::to_owned)).collect();
    let unshown: BTreeSet<String> = due.difference(&reds()).cloned().collect();
    let listed: BTreeSet<String> =
        UNSHOWN.lines().filter(|line| line.starts_with(' ')).map(|line| line.trim().to_owned()).collect();
    let missing: Vec<_> = unshown.difference(&listed).collect();
    assert!(missing.is_empty(), "red on no mutation, and not listed in unshown.txt: {missing:?}");
    let wrong: Vec<_> = listed.difference(&unshown).collect();
    assert!(wrong.is_empty(), "listed in unshown.txt, but unknown or red on a mutation: {wrong:?}");
}

/// The numbers after each `; bugs` of `own_case!` in a source.
fn bugs_of_own_cases(source: &Path) -> Vec<u8> {
    let text = fs::read_to_string(source).unwrap_or_default();
    let lists = text.split("; bugs ").skip(1).map(|rest| rest.split(')').next().unwrap_or_default());
    lists.flat_map(str::split_whitespace).map(|number| number.parse().unwrap()).collect()
}

/// The variants of the enum `Hook` of the suite.
fn hooks() -> Vec<String> {
    let source = fs::read_to_string(root().join("conformance/src/fault.rs")).unwrap();
    let (_, variants) = source.split_once("pub enum Hook {\n").unwrap();
    let (variants, _) = variants.split_once("\n}").unwrap();
    variants.lines().filter_map(|line| Some(line.trim().strip_suffix(',')?.to_owned())).collect()
}

/// The hooks in the first cells of the table for authors of backends; what a hook needs follows after `with`.
fn documented_hooks() -> Vec<String> {
    let text = fs::read_to_string(root().join("docs/adding-a-backend.md")).unwrap();
    let (_, table) = text.split_once("\n| hook |").unwrap();
    let rows = table.lines().skip(2).map_while(|line| line.strip_prefix("| ")?.split(" | ").next());
    let cells = rows.map(|cell| cell.split(", with ").next().unwrap_or_default());
    cells.flat_map(|cell| cell.split(", ")).map(|hook| hook.replace('`', "")).collect()
}

#[test]
fn each_hook_of_the_suite_has_one_row_for_authors_of_backends() {
    let (mut there, mut documented) = (hooks(), documented_hooks());
    there.sort_unstable();
    documented.sort_unstable();
    assert!(there.len() > 30, "{there:?}");
    assert_eq!(documented, there, "docs/adding-a-backend.md lists the hooks");
}

#[test]
fn each_bug_of_a_case_has_a_row_and_each_row_has_a_case() {
    let own = test_sources().iter().flat_map(|source| bugs_of_own_cases(source)).collect::<BTreeSet<_>>();
    let used: BTreeSet<u8> = cases().iter().flat_map(|case| case.bugs).copied().chain(own).collect();
    let text = fs::read_to_string(root().join("docs/lock-bugs.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse::<u8>().ok());
    let listed: BTreeSet<u8> = rows.collect();
    assert_eq!(used, listed, "docs/lock-bugs.md lists the bugs of the cases");
}
