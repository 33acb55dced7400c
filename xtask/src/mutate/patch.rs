//! The file of a mutation.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

/// One mutation.
#[derive(Debug)]
pub(super) struct Patch {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// The safety step that is taken out.
    pub(super) removes: String,
    /// Arguments for `cargo test`: each selects tests that must fail.
    pub(super) red: Vec<String>,
}

impl Patch {
    /// All patches of the folder, or the one of this name, sorted by name. Finding none is an error.
    pub(super) fn read(folder: &Path, name: Option<&str>) -> Result<Vec<Self>> {
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
        let Some(wanted) = name else { return Ok(patches) };
        let names = patches.iter().map(|patch| patch.name.clone()).collect::<Vec<_>>().join(", ");
        patches.retain(|patch| patch.name == wanted);
        ensure!(!patches.is_empty(), "no mutation `{wanted}`; there are: {names}");
        Ok(patches)
    }

    fn parse(name: &str, path: &Path, text: &str) -> Result<Self> {
        let (mut removes, mut red) = (None, Vec::new());
        for line in text.lines().map_while(|line| line.strip_prefix('#')) {
            match line.split_once(':').map(|(key, value)| (key.trim(), value.trim().to_owned())) {
                Some((_, value)) if value.is_empty() => bail!("`#{line}` says nothing"),
                Some(("removes", value)) if removes.is_none() => removes = Some(value),
                Some(("red", value)) => red.push(value),
                // For readers: why no case of the conformance suite turns red.
                Some(("no case", _)) => {}
                _ => bail!("`#{line}` is none of `# removes: ...` (once), `# red: ...`, `# no case: ...`"),
            }
        }
        ensure!(!red.is_empty(), "no line `# red: ...` names a test");
        let removes = removes.context("no line `# removes: ...` says what is taken out")?;
        Ok(Self { name: name.to_owned(), path: path.to_owned(), removes, red })
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
    fn header_says_what_is_removed_and_what_turns_red() {
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
    fn half_a_header_is_refused() {
        for header in [
            "",
            "# removes: a\n",
            "# red: -p x one\n",
            "# removes: a\n# red:\n",
            "# removes: a\n# no case: b\n",
            "# removes: a\n# removes: b\n# red: c\n",
            "# removes: a\n# reds: c\n# red: c\n",
            "# removes: a\n# red: c\n# some words\n",
        ] {
            parse(header).expect_err(header);
        }
    }

    #[test]
    fn one_is_found_by_its_name_and_none_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name| Patch::read(folder.path(), name).map(|patches| patches.len());
        read(None).expect_err("nothing there");
        for name in ["a.patch", "b.patch"] {
            fs::write(folder.path().join(name), "# removes: a\n# red: b\n").unwrap();
        }
        fs::write(folder.path().join("README.md"), "no patch").unwrap();
        assert_eq!((read(None).unwrap(), read(Some("b")).unwrap()), (2, 1));
        assert!(read(Some("c")).unwrap_err().to_string().ends_with("there are: a, b"));
    }
}
