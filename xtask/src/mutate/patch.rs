//! The patch file of a mutation.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

use super::programs::TestSelection;

/// What a mutation weakens: the columns of the table.
pub(super) const CLASSES: [&str; 7] =
    ["residue", "lifetime", "handoff", "fallback", "decision", "safety", NO_CLASS];
/// The header lines before the diff.
const HEADER: &str = "`# removes: ...` (once), `# red: ...`, `# class: ...` (once), `# survives: ...` (once), \
                      `# no case: ...` (once)";
/// The class of patches that name none.
const NO_CLASS: &str = "other";

/// One mutation.
#[derive(Debug)]
pub(super) struct Patch {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// The safety step that it removes.
    pub(super) removes: String,
    /// Arguments of `cargo test`. Each line selects tests that must fail.
    pub(super) red: Vec<String>,
    /// One of [`CLASSES`].
    pub(super) class: String,
    /// Why none of the tests fails, if that is known and accepted.
    pub(super) survives: Option<String>,
    /// The top-level folder of its first change.
    pub(super) package: String,
    /// Whether it changes a Lua script.
    pub(super) has_script: bool,
}

impl Patch {
    /// Reads all patches of the folder, sorted by name. An error if there are none.
    pub(super) fn read(folder: &Path) -> Result<Vec<Self>> {
        let mut patches = Vec::new();
        let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            let (Some(stem), Some("patch")) = (stem(&path), path.extension().and_then(|ext| ext.to_str()))
            else {
                continue;
            };
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            patches.push(Self::parse(stem, &path, &text).with_context(|| path.display().to_string())?);
        }
        patches.sort_by(|a, b| a.name.cmp(&b.name));
        ensure!(!patches.is_empty(), "no mutation in {}", folder.display());
        Ok(patches)
    }

    fn parse(name: &str, path: &Path, text: &str) -> Result<Self> {
        let (mut removes, mut red, mut class, mut survives, mut no_case) =
            (None, Vec::new(), None, None, None);
        for line in text.lines().map_while(|line| line.strip_prefix('#')) {
            match line.split_once(':').map(|(key, value)| (key.trim(), value.trim().to_owned())) {
                Some((_, value)) if value.is_empty() => bail!("`#{line}` has no value"),
                Some(("removes", value)) if removes.is_none() => removes = Some(value),
                Some(("red", value)) => red.push(value),
                Some(("class", value)) if class.is_none() => class = Some(value),
                Some(("survives", value)) if survives.is_none() => survives = Some(value),
                // For readers: why no case of the conformance suite fails.
                Some(("no case", value)) if no_case.is_none() => no_case = Some(value),
                _ => bail!("`#{line}` is none of {HEADER}"),
            }
        }
        ensure!(!red.is_empty(), "no line `# red: ...` names a test");
        let tests: Vec<TestSelection> = red.iter().map(|line| TestSelection::of(line)).collect();
        for (line, tests) in red.iter().zip(&tests) {
            ensure!(tests.has_filter(), "`# red: {line}` names programs only; name the test");
        }
        ensure!(
            tests.iter().any(TestSelection::is_in_suite) != no_case.is_some(),
            "either a line `# red: ...` names a case of the conformance suite, or `# no case: ...` says why none fails"
        );
        let removes = removes.context("no line `# removes: ...` says what is removed")?;
        let class = class.unwrap_or_else(|| NO_CLASS.to_owned());
        ensure!(CLASSES.contains(&class.as_str()), "`# class: {class}` is none of {CLASSES:?}");
        let changed = text.lines().find_map(|line| line.strip_prefix("+++ b/")?.split_once('/'));
        let package = changed.map_or("?", |(package, _)| package).to_owned();
        let has_script = text.lines().any(|line| line.starts_with("+++ ") && line.ends_with(".lua"));
        let (name, path) = (name.to_owned(), path.to_owned());
        Ok(Self { name, path, removes, red, class, survives, package, has_script })
    }
}

fn stem(path: &Path) -> Option<&str> {
    path.file_stem()?.to_str()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::project::Project;

    fn parse(text: &str) -> Result<Patch> {
        Patch::parse("name", Path::new("name.patch"), text)
    }

    #[test]
    fn header_is_parsed() {
        let patch = parse(
            "# removes: a: b\n# red: -p x one\n# red: -p x two -- --exact\n# no case: c: d\ndiff --git\n# red: no\n",
        );
        let patch = patch.unwrap();
        assert_eq!(
            (patch.removes.as_str(), patch.red),
            ("a: b", vec!["-p x one".into(), "-p x two -- --exact".into()])
        );
    }

    #[test]
    fn headers_of_all_mutations_are_valid() {
        let patches = Patch::read(&Project::here().root().join("xtask/mutations")).unwrap();
        assert!(patches.iter().all(|patch| patch.package != "?"), "{patches:?}");
    }

    /// The names of the functions in the files of a folder, and what stands in quotes there: a test may have its name
    /// from a list.
    fn names(project: &Project, folder: &str) -> BTreeSet<String> {
        let sources = project.files().unwrap().into_iter();
        let sources =
            sources.filter(|file| file.starts_with(folder) && file.extension() == Some("rs".as_ref()));
        let mut names = BTreeSet::new();
        for file in sources {
            let text = fs::read_to_string(project.root().join(file)).unwrap();
            for definition in text.split("fn ").chain(text.split('"')) {
                let end = definition.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
                names.insert(definition[..end.unwrap_or(definition.len())].to_owned());
            }
        }
        names
    }

    /// `mutate` finds that out as well, but only when it tries the patch.
    #[test]
    fn red_lines_of_all_mutations_name_tests_that_exist() {
        let project = Project::here();
        let suite = names(&project, "conformance");
        let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut unknown = Vec::new();
        for patch in Patch::read(&project.root().join("xtask/mutations")).unwrap() {
            for tests in patch.red.iter().map(|line| TestSelection::of(line)) {
                let package = tests.package.clone().expect("each line names its package");
                let folder =
                    package.strip_prefix("lockkit-").filter(|short| project.root().join(short).exists());
                let folder = folder.unwrap_or(&package).to_owned();
                let own = known.entry(package).or_insert_with(|| names(&project, &folder));
                for filter in tests.arguments.iter().filter(|argument| !argument.starts_with('-')) {
                    let name = filter.rsplit("::").next().unwrap_or_default();
                    let is_in = |names: &BTreeSet<String>| names.iter().any(|known| known.contains(name));
                    if !(is_in(own) || tests.is_in_suite() && is_in(&suite)) {
                        unknown.push(format!("{}: {filter}", patch.name));
                    }
                }
            }
        }
        assert!(unknown.is_empty(), "{unknown:#?}");
    }

    #[test]
    fn invalid_header_is_refused() {
        for (header, reason) in [
            ("", "no line `# red: ...`"),
            ("# removes: a\n# no case: b\n", "no line `# red: ...`"),
            ("# red: c\n# no case: b\n", "no line `# removes: ...`"),
            ("# removes: a\n# red:\n", "has no value"),
            ("# removes: a\n# removes: b\n# red: c\n# no case: d\n", "is none of"),
            ("# removes: a\n# reds: c\n# red: c\n# no case: d\n", "is none of"),
            ("# removes: a\n# red: c\n# some words\n", "is none of"),
            ("# removes: a\n# red: c\n# class: worse\n# no case: d\n", "is none of"),
            ("# removes: a\n# red: c\n# survives:\n", "has no value"),
        ] {
            let error = parse(header).expect_err(header).to_string();
            assert!(error.contains(reason), "{header}: {error}");
        }
    }

    #[test]
    fn patch_names_a_case_or_says_why_none_fails() {
        let of = |rest: &str| parse(&format!("# removes: a\n# red: -p x --test it one\n{rest}"));
        let case = "# red: -p x --test conformance_redlock one\n";
        let reason = "# no case: b\n";
        of(case).unwrap();
        of(reason).unwrap();
        for rest in ["", "# no case:\n", &(case.to_owned() + reason), &reason.repeat(2)] {
            of(rest).expect_err(rest);
        }
    }

    #[test]
    fn red_line_without_a_test_is_refused() {
        let of = |red: &str| parse(&format!("# removes: a\n# red: {red}\n# no case: b\n"));
        for red in ["one", "-p x one", "-p x --test it one", "-p x --lib -- --exact m::one"] {
            of(red).unwrap();
        }
        for red in ["-p x", "-p x --tests", "-p x --test it", "--lib", "-p x --test it -- --exact"] {
            let error = of(red).expect_err(red).to_string();
            assert!(error.contains("names programs only"), "{error}");
        }
    }

    #[test]
    fn class_and_reason_of_a_survivor_are_parsed() {
        let text = "# removes: a\n# red: b\n# class: handoff\n# survives: c: d\n# no case: e\n+++ b/lockkit-x/src/y.rs\n";
        let patch = parse(text).unwrap();
        assert_eq!(
            (patch.class.as_str(), patch.survives.as_deref(), patch.package.as_str()),
            ("handoff", Some("c: d"), "lockkit-x")
        );
        assert_eq!(parse("# removes: a\n# red: b\n# no case: c\n").unwrap().class, NO_CLASS);
    }

    #[test]
    fn folder_without_patches_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("README.md"), "no patch").unwrap();
        Patch::read(folder.path()).expect_err("an empty folder");
        for name in ["b.patch", "a.patch"] {
            fs::write(folder.path().join(name), "# removes: a\n# red: b\n# no case: c\n").unwrap();
        }
        let names = Patch::read(folder.path()).unwrap().into_iter().map(|patch| patch.name);
        assert_eq!(names.collect::<Vec<_>>(), ["a", "b"]);
    }
}
