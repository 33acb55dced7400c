//! `cargo xtask tidy`: checks the house rules that the compiler does not check.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::project::Project;

mod cancel_safety;
mod decisions;
mod links;
mod manifest;
mod map;
mod scaffolding;
mod size;
mod skips;
mod source;
mod text;

#[cfg(test)]
mod tests;

/// A house rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    CancelSafety,
    NoSkip,
    IgnoreReason,
    NoLeftover,
    Lints,
    Links,
    Decisions,
    Map,
    Size,
    Scaffolding,
}

/// Every rule in one sentence.
const RULES: [(Rule, &str); 10] = [
    (
        Rule::CancelSafety,
        "in published libraries every `pub async fn`, every `pub fn` that returns a future and every such method of a \
         `pub trait` has a section `# Cancel safety`; a trait's own section speaks for its methods",
    ),
    (
        Rule::NoSkip,
        "a test runs to its end: no `return` in its body, none in its closures that depends on the environment, and no \
         test code prints that it skips",
    ),
    (Rule::IgnoreReason, "every `#[ignore]` has a reason: `#[ignore = \"...\"]`"),
    (Rule::NoLeftover, "no unfinished code: no reminder, no placeholder, no debugging macro"),
    (Rule::Lints, "every package uses the workspace's lints: `[lints] workspace = true`"),
    (
        Rule::Links,
        "a link in a document leads to a file and a heading, and docs/SUMMARY.md leads to every page of docs/",
    ),
    (
        Rule::Decisions,
        "decisions are numbered from 0001 without gaps, and the file, its title and docs/SUMMARY.md agree",
    ),
    (Rule::Map, "every file and folder that ARCHITECTURE.md names exists"),
    (Rule::Size, "a file has at most 400 lines, and a function at most 60"),
    (Rule::Scaffolding, "what proves the product has at most 0.77 lines per line of it"),
];

/// A line that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    rule: Rule,
    /// Counted from 1.
    line: usize,
    text: String,
}

impl Finding {
    fn new(rule: Rule, line: usize, text: impl Into<String>) -> Self {
        Self { rule, line, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.text)
    }
}

/// Checks all files and prints the findings by rule.
pub(crate) fn run(project: &Project) -> Result<()> {
    let files = project.files()?;
    let manifests = manifest::Manifests::read(project, &files)?;
    let mut findings = contents(project, &files);
    findings.extend(decisions::misnumbered(&files));
    let scaffolding = scaffolding::too_large(project, &files)?;
    findings.extend(scaffolding.map(|finding| (Path::new(scaffolding::DOCUMENT), finding)));
    for file in &files {
        let Some(extension) = file.extension().and_then(|extension| extension.to_str()) else { continue };
        let path = project.root().join(file);
        let read = || fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()));
        let found = match extension {
            "rs" => {
                let text = read()?;
                let mut found = check_source(&text, manifests.kind_of(file))
                    .with_context(|| format!("{} does not parse", file.display()))?;
                found.extend(decisions::missing(&files, &text));
                found
            }
            "md" => check_document(project.root(), file, &read()?),
            "toml" | "yml" | "sh" => check_text(file, &read()?),
            _ => continue,
        };
        findings.extend(found.into_iter().map(|finding| (file.as_path(), finding)));
    }
    for (rule, statement) in RULES {
        let broken: Vec<_> = findings.iter().filter(|(_, finding)| finding.rule == rule).collect();
        let verdict = if broken.is_empty() { "ok" } else { "BROKEN" };
        println!("{verdict:6}  {statement}");
        for (file, finding) in broken {
            println!("          {}:{finding}", file.display());
        }
    }
    match findings.len() {
        0 => Ok(()),
        broken => bail!("{broken} findings"),
    }
}

/// The pages that the table of contents leaves out, and its entries with a wrong number.
fn contents(project: &Project, files: &[PathBuf]) -> Vec<(&'static Path, Finding)> {
    let summary = Path::new(links::SUMMARY);
    // Where there is none, it leaves out all of them.
    let contents = fs::read_to_string(project.root().join(summary)).unwrap_or_default();
    let mut findings = links::not_in_summary(&contents, files);
    findings.extend(decisions::mislisted(&contents));
    findings.into_iter().map(|finding| (summary, finding)).collect()
}

/// What generators write into the first line of a file.
const GENERATED: &str = "@generated";

/// All rules for Rust source that people write.
fn check_source(text: &str, kind: source::Kind) -> Result<Vec<Finding>> {
    if text.lines().next().is_some_and(|line| line.contains(GENERATED)) {
        return Ok(Vec::new());
    }
    let file = syn::parse_file(text)?;
    let mut findings = text::leftovers(text);
    findings.extend(size::of_file(text));
    findings.extend(source::check(&file, kind));
    Ok(findings)
}

/// All rules for documents.
fn check_document(root: &Path, file: &Path, text: &str) -> Vec<Finding> {
    let mut findings = check_text(file, text);
    findings.extend(links::broken(root, file, text));
    findings.extend(decisions::mistitled(file, text));
    if file == Path::new(map::DOCUMENT) {
        findings.extend(map::unknown(root, text));
    }
    findings
}

/// All rules for other files.
fn check_text(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = text::leftovers(text);
    if path.file_name().is_some_and(|name| name == "Cargo.toml") {
        findings.extend(manifest::lints(text));
    }
    findings
}
