//! The patch file of a mutation.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

/// What a mutation weakens: the columns of the table.
pub(super) const CLASSES: [&str; 7] =
    ["residue", "lifetime", "handoff", "fallback", "decision", "safety", NO_CLASS];
/// The header lines before the diff.
const HEADER: &str = "`# removes: ...` (once), `# red: ...`, `# class: ...` (once), `# survives: ...` (once), \
                      `# no case: ...`";
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
        let (mut removes, mut red, mut class, mut survives) = (None, Vec::new(), None, None);
        for line in text.lines().map_while(|line| line.strip_prefix('#')) {
            match line.split_once(':').map(|(key, value)| (key.trim(), value.trim().to_owned())) {
                Some((_, value)) if value.is_empty() => bail!("`#{line}` has no value"),
                Some(("removes", value)) if removes.is_none() => removes = Some(value),
                Some(("red", value)) => red.push(value),
                Some(("class", value)) if class.is_none() => class = Some(value),
                Some(("survives", value)) if survives.is_none() => survives = Some(value),
                // For readers: why no case of the conformance suite fails.
                Some(("no case", _)) => {}
                _ => bail!("`#{line}` is none of {HEADER}"),
            }
        }
        ensure!(!red.is_empty(), "no line `# red: ...` names a test");
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
    use super::*;

    fn parse(text: &str) -> Result<Patch> {
        Patch::parse("name", Path::new("name.patch"), text)
    }

    #[test]
    fn header_is_parsed() {
        let patch = parse(
            "# removes: a: b\n# red: -p x one\n# red: -p x two -- --exact\n# no case: c\ndiff --git\n# red: no\n",
        );
        let patch = patch.unwrap();
        assert_eq!(
            (patch.removes.as_str(), patch.red),
            ("a: b", vec!["-p x one".into(), "-p x two -- --exact".into()])
        );
    }

    #[test]
    fn headers_of_all_mutations_are_valid() {
        let patches = Patch::read(&crate::project::Project::here().root().join("xtask/mutations")).unwrap();
        assert!(patches.iter().all(|patch| patch.package != "?"), "{patches:?}");
    }

    #[test]
    fn invalid_header_is_refused() {
        for header in [
            "",
            "# removes: a\n",
            "# red: -p x one\n",
            "# removes: a\n# red:\n",
            "# removes: a\n# no case: b\n",
            "# removes: a\n# removes: b\n# red: c\n",
            "# removes: a\n# reds: c\n# red: c\n",
            "# removes: a\n# red: c\n# some words\n",
            "# removes: a\n# red: c\n# class: worse\n",
            "# removes: a\n# red: c\n# survives:\n",
        ] {
            parse(header).expect_err(header);
        }
    }

    #[test]
    fn class_and_reason_of_a_survivor_are_parsed() {
        let text = "# removes: a\n# red: b\n# class: handoff\n# survives: c: d\n+++ b/lockkit-x/src/y.rs\n";
        let patch = parse(text).unwrap();
        assert_eq!(
            (patch.class.as_str(), patch.survives.as_deref(), patch.package.as_str()),
            ("handoff", Some("c: d"), "lockkit-x")
        );
        assert_eq!(parse("# removes: a\n# red: b\n").unwrap().class, NO_CLASS);
    }

    #[test]
    fn folder_without_patches_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("README.md"), "no patch").unwrap();
        Patch::read(folder.path()).expect_err("an empty folder");
        for name in ["b.patch", "a.patch"] {
            fs::write(folder.path().join(name), "# removes: a\n# red: b\n").unwrap();
        }
        let names = Patch::read(folder.path()).unwrap().into_iter().map(|patch| patch.name);
        assert_eq!(names.collect::<Vec<_>>(), ["a", "b"]);
    }
}
