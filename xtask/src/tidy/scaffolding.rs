//! How much code proves the product, compared with the product: decision 0045.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;

use super::{Finding, GENERATED, Rule};
use crate::project::Project;

/// What is published, without the suite.
const PRODUCT: [&str; 7] =
    ["lockkit", "lockkit-cli", "lockkit-core", "lockkit-etcd", "lockkit-file", "lockkit-redis", "lockkit-zk"];

/// What proves it.
const SCAFFOLDING: [&str; 4] = ["conformance", "models", "testbed", "xtask"];

/// Lines of the scaffolding per hundred lines of the product.
const LINES_MAX: usize = 77;

/// Where the limit has its reason.
pub(super) const DOCUMENT: &str = "docs/decisions/0045-size-of-the-scaffolding.md";

pub(super) fn too_large(project: &Project, files: &[PathBuf]) -> Result<Option<Finding>> {
    let (mut product, mut scaffolding) = (0, 0);
    for file in files.iter().filter(|file| is_counted(file)) {
        let folder = file.iter().next().and_then(|folder| folder.to_str()).unwrap_or_default();
        let sum = match folder {
            _ if PRODUCT.contains(&folder) => &mut product,
            _ if SCAFFOLDING.contains(&folder) => &mut scaffolding,
            _ => continue,
        };
        *sum += code_lines(&fs::read_to_string(project.root().join(file))?);
    }
    let text = format!("{scaffolding} lines for {product} of the product");
    let is_too_large = scaffolding * 100 > product * LINES_MAX;
    Ok(is_too_large.then(|| Finding::new(Rule::Scaffolding, 1, text)))
}

fn is_counted(file: &Path) -> bool {
    let is_code = file.extension().is_some_and(|extension| extension == "rs" || extension == "lua");
    is_code && file.iter().any(|part| part == "src") && !file.to_string_lossy().contains("/tests")
}

/// Counts as the command in `docs/reading.md`: without blank lines, comments, unit tests and generated code.
fn code_lines(text: &str) -> usize {
    if text.lines().next().is_some_and(|line| line.contains(GENERATED)) {
        return 0;
    }
    let (mut count, mut in_tests, mut is_conditional) = (0, false, false);
    for line in text.lines() {
        let code = line.trim_start();
        if code.is_empty() || code.starts_with("//") || code.starts_with("--") {
            continue;
        } else if line == "#[cfg(test)]" {
            is_conditional = true;
        } else if std::mem::take(&mut is_conditional) {
            in_tests = line.starts_with("mod ") && line.ends_with('{');
            count += if in_tests { 0 } else { 2 };
        } else if in_tests {
            in_tests = line != "}";
        } else {
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_is_counted() {
        for (text, lines) in [
            ("//! A\n\nfn f() {\n    // b\n    g()\n}\n", 3),
            ("-- a\nreturn 1\n", 1),
            ("fn f() {}\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\nfn h() {}\n", 2),
            ("#[cfg(test)]\nmod tests;\n", 2),
            ("// @generated\nfn f() {}\n", 0),
        ] {
            assert_eq!(code_lines(text), lines, "{text}");
        }
    }

    #[test]
    fn scaffolding_above_the_limit_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let project = Project::at(folder.path());
        let write = |path: &str, lines: usize| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "f();\n".repeat(lines)).unwrap();
        };
        let is_found = || too_large(&project, &project.files().unwrap()).unwrap().is_some();
        write("lockkit-core/src/lib.rs", 100);
        write("lockkit-core/tests/it/main.rs", 100);
        write("models/src/lib.rs", LINES_MAX);
        write("bench/src/main.rs", 100);
        assert!(!is_found());
        write("testbed/src/lib.rs", 1);
        assert!(is_found());
    }
}
