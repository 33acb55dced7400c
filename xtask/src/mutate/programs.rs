//! Builds the test programs of a copy with one call of cargo.

use std::{collections::BTreeSet, fs::File, io::Write, path::PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use super::scratch::Scratch;
use crate::{
    programs::{self, Program},
    project::Project,
};

/// Options of `cargo test` that take a value.
const OPTIONS_WITH_VALUE: [&str; 7] = ["-p", "--package", "-F", "--features", "--test", "--bin", "--example"];

/// The tests that a line `# red: ...` selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TestSelection {
    pub(super) package: Option<String>,
    /// The programs; none: every program of the package.
    targets: BTreeSet<Target>,
    /// The arguments of the programs.
    pub(super) arguments: Vec<String>,
}

/// A target that cargo selects by an option.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Lib,
    Test(String),
    Bin(String),
}

/// A package, as `cargo metadata` describes it.
#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    targets: Vec<programs::Target>,
}

/// The result of a build.
#[derive(Debug)]
pub(super) enum Built {
    Programs(Vec<Program>),
    /// The files and lines of the compiler's errors.
    Errors(Vec<(PathBuf, usize)>),
}

impl TestSelection {
    pub(super) fn of(line: &str) -> Self {
        let (for_cargo, for_tests) = line.split_once("-- ").unwrap_or((line, ""));
        let mut all = Self::default();
        let mut words = for_cargo.split_whitespace();
        while let Some(word) = words.next() {
            let mut value = || words.next().unwrap_or_default().to_owned();
            match word {
                "-p" | "--package" => all.package = Some(value()),
                "--lib" => drop(all.targets.insert(Target::Lib)),
                "--test" => drop(all.targets.insert(Target::Test(value()))),
                "--bin" => drop(all.targets.insert(Target::Bin(value()))),
                // Ignored: everything is built with all features. A call by hand needs these options.
                _ if OPTIONS_WITH_VALUE.contains(&word) => drop(value()),
                _ if word.starts_with('-') => {}
                _ => all.arguments.push(word.to_owned()),
            }
        }
        all.arguments.extend(for_tests.split_whitespace().map(str::to_owned));
        all
    }

    /// Whether the line runs this program.
    pub(super) fn select(&self, program: &Program) -> bool {
        Target::of(&program.target).is_some_and(|target| self.selects(&program.package, &target))
    }

    /// Whether it names a test, and not programs only.
    pub(super) fn has_filter(&self) -> bool {
        self.arguments.iter().any(|argument| !argument.starts_with('-'))
    }

    /// Whether it selects cases of the conformance suite, by the names of the programs that run it.
    pub(super) fn is_in_suite(&self) -> bool {
        let is_suite =
            |target: &Target| matches!(target, Target::Test(name) if name.starts_with("conformance"));
        self.targets.iter().any(is_suite)
    }

    fn selects(&self, package: &str, target: &Target) -> bool {
        self.package.as_deref().is_none_or(|own| own == package)
            && (self.targets.is_empty() || self.targets.contains(target))
    }
}

impl Target {
    fn of(target: &programs::Target) -> Option<Self> {
        let name = target.name.clone();
        match target.kind.first()?.as_str() {
            "lib" | "rlib" => Some(Self::Lib),
            "test" => Some(Self::Test(name)),
            "bin" => Some(Self::Bin(name)),
            _ => None,
        }
    }

    fn option(&self) -> String {
        match self {
            Self::Lib => "--lib".to_owned(),
            Self::Test(name) => format!("--test {name}"),
            Self::Bin(name) => format!("--bin {name}"),
        }
    }
}

/// Builds the programs of these lines, with all features of the workspace, so that all lines share the build. The
/// compiler's messages go to the log of this name.
pub(super) fn build(
    scratch: &Scratch,
    copy: &Project,
    lines: &[TestSelection],
    log_name: &str,
) -> Result<Built> {
    let log_path = scratch.log(log_name);
    let mut log = File::create(&log_path).with_context(|| format!("cannot write {}", log_path.display()))?;
    let targets = existing(copy, lines)?;
    if targets.is_empty() {
        return Ok(Built::Programs(Vec::new()));
    }
    let options = targets.iter().map(Target::option).collect::<Vec<_>>().join(" ");
    let call = format!("test --workspace --all-features --no-run --message-format json {options}");
    let output =
        scratch.cargo(copy, &call).stderr(log.try_clone()?).output().context("cannot start cargo")?;
    let (mut programs, mut errors) = (Vec::new(), Vec::new());
    for message in output.stdout.split(|byte| *byte == b'\n') {
        let Ok(message) = serde_json::from_slice::<Value>(message) else { continue };
        programs.extend(Program::of(&message).filter(Program::is_test));
        if message["message"]["level"] == "error" {
            log.write_all(message["message"]["rendered"].as_str().unwrap_or_default().as_bytes())?;
            errors.extend(places(&message["message"]));
        }
    }
    Ok(if output.status.success() { Built::Programs(programs) } else { Built::Errors(errors) })
}

/// Returns the targets that the lines select and that the workspace has.
fn existing(copy: &Project, lines: &[TestSelection]) -> Result<BTreeSet<Target>> {
    let mut found = BTreeSet::new();
    for Package { name, targets } in copy.packages()? {
        let targets = targets.iter().filter_map(Target::of);
        found.extend(targets.filter(|target| lines.iter().any(|line| line.selects(&name, target))));
    }
    Ok(found)
}

/// Returns the files and lines of an error and of its notes.
fn places(message: &Value) -> Vec<(PathBuf, usize)> {
    let mut places = Vec::new();
    for span in list(&message["spans"]) {
        let line = span["line_start"].as_u64().and_then(|line| usize::try_from(line).ok());
        places.extend(span["file_name"].as_str().map(PathBuf::from).zip(line));
    }
    places.extend(list(&message["children"]).iter().flat_map(self::places));
    places
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_cargo_and_of_the_programs_are_separated() {
        let test = |name: &str| Target::Test(name.to_owned());
        for (line, package, targets, arguments) in [
            ("-p a --test t one", Some("a"), vec![test("t")], vec!["one"]),
            ("-p a --features b --test t one", Some("a"), vec![test("t")], vec!["one"]),
            ("-p a --lib m::one -- --exact", Some("a"), vec![Target::Lib], vec!["m::one", "--exact"]),
            (
                "--bin b -- --exact tests::one",
                None,
                vec![Target::Bin("b".into())],
                vec!["--exact", "tests::one"],
            ),
            ("one", None, vec![], vec!["one"]),
        ] {
            let expected = TestSelection {
                package: package.map(str::to_owned),
                targets: targets.into_iter().collect(),
                arguments: arguments.into_iter().map(str::to_owned).collect(),
            };
            assert_eq!(TestSelection::of(line), expected, "{line}");
        }
    }
}
