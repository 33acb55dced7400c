//! The map of ARCHITECTURE.md, whose files may move.

use std::path::Path;

use super::{Finding, Rule, links};

/// The document with the map.
pub(super) const DOCUMENT: &str = "ARCHITECTURE.md";

/// How the name of a file ends, where it is not one of a folder.
const ENDINGS: [&str; 8] = [".rs", ".md", ".lua", ".proto", ".patch", ".toml", ".dot", ".svg"];

/// Returns the names in the map that no file or folder has. A name is below the root, or below a folder that the last
/// heading names.
pub(super) fn unknown(root: &Path, text: &str) -> Vec<Finding> {
    let mut folders = Vec::new();
    let mut findings = Vec::new();
    for (number, line) in links::prose(text) {
        let names = line.split('`').skip(1).step_by(2).filter(|name| is_path(name));
        let names: Vec<_> = names.collect();
        if line.starts_with('#') {
            folders = names.clone();
        }
        let exists = |name: &&str| {
            let below = folders.iter().any(|folder| root.join(folder).join(name).exists());
            below || root.join(name).exists()
        };
        let unknown = names.iter().filter(|name| !exists(name));
        findings.extend(unknown.map(|name| Finding::new(Rule::Map, number, format!("there is no {name}"))));
    }
    findings
}

/// Whether this is the name of a file or of a folder, not of a type or a command.
fn is_path(name: &str) -> bool {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "._-/".contains(letter);
    name.chars().all(is_name) && (name.ends_with('/') || ENDINGS.iter().any(|ending| name.ends_with(ending)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn names_that_no_file_has_are_found() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["a/src/one.rs", "a/src/in/two.rs", "b/src/three.rs", "c.md"] {
            let file = folder.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        let found = |text: &str| {
            let found = unknown(folder.path(), text);
            found.into_iter().map(|finding| (finding.line, finding.text)).collect::<Vec<_>>()
        };
        let map =
            "# `a/src/` `b/src/`\n`one.rs` `in/` `in/two.rs` `three.rs` `c.md`\n`Type` `run it.rs` `a`\n";
        assert_eq!(found(map), []);
        let other = "# `b/src/`\n`one.rs`\n# Others\n`three.rs`\n# `missing/`\n";
        let expected = [(2, "one.rs"), (4, "three.rs"), (5, "missing/")];
        assert_eq!(found(other), expected.map(|(line, name)| (line, format!("there is no {name}"))));
    }
}
