//! The numbers of `docs/decisions`, which texts and comments refer to.

use std::path::{Path, PathBuf};

use super::{Finding, Rule, links};

const FOLDER: &str = "docs/decisions";

/// Returns the decisions that leave a gap or use a number twice. `files` are sorted.
pub(super) fn misnumbered(files: &[PathBuf]) -> Vec<(&Path, Finding)> {
    let decisions =
        files.iter().map(PathBuf::as_path).filter(|file| file.parent() == Some(Path::new(FOLDER)));
    let numbered = decisions.zip(1..).filter_map(|(file, expected)| {
        let found = number_of(file)?;
        let text = format!("{found} where {expected:04} comes next");
        (found.parse() != Ok(expected)).then(|| (file, Finding::new(Rule::Decisions, 1, text)))
    });
    // Each later one differs as well.
    numbered.take(1).collect()
}

/// Returns a finding if the title of a decision does not begin with the number of its file.
pub(super) fn mistitled(file: &Path, text: &str) -> Option<Finding> {
    let number = number_of(file).filter(|_| file.starts_with(FOLDER))?;
    let has_number = text.strip_prefix("# ").and_then(|title| title.strip_prefix(number)?.strip_prefix(": "));
    has_number
        .is_none()
        .then(|| Finding::new(Rule::Decisions, 1, format!("the title is not `# {number}: ...`")))
}

/// Returns the lines of the table of contents whose number is not that of the decision they lead to.
pub(super) fn mislisted(summary: &str) -> Vec<Finding> {
    let listed = links::links(summary).filter_map(|(line, target)| {
        let number: usize =
            number_of(Path::new(target)).filter(|_| target.starts_with("decisions/"))?.parse().ok()?;
        let text = summary.lines().nth(line - 1)?;
        let is_right = text.trim_start_matches("- [").starts_with(&format!("{number}: "));
        (!is_right).then(|| Finding::new(Rule::Decisions, line, format!("the entry is not `{number}: ...`")))
    });
    listed.collect()
}

/// Returns the comments of a source file that name a decision which does not exist.
pub(super) fn missing(files: &[PathBuf], source: &str) -> Vec<Finding> {
    let comments = source.lines().zip(1..).filter(|(line, _)| line.trim_start().starts_with("//"));
    let named = comments.flat_map(|(line, number)| {
        let names = line.split("decisions/").skip(1).filter_map(|rest| rest.split_once(".md"));
        names.map(move |(name, _)| (number, name))
    });
    named
        .filter(|(_, name)| files.binary_search(&Path::new(FOLDER).join(format!("{name}.md"))).is_err())
        .map(|(line, name)| Finding::new(Rule::Decisions, line, format!("there is no decision {name}")))
        .collect()
}

/// What precedes the first `-` of a file's name.
fn number_of(file: &Path) -> Option<&str> {
    file.file_name()?.to_str()?.split('-').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Vec<&'a str> {
        findings.into_iter().map(|finding| &*finding.text).collect()
    }

    #[test]
    fn gaps_and_doubles_in_the_numbers_are_found() {
        let found = |names: &[&str]| {
            let files: Vec<_> = names.iter().map(PathBuf::from).collect();
            let found = misnumbered(&files);
            found
                .into_iter()
                .map(|(file, finding)| format!("{}: {}", file.display(), finding.text))
                .collect::<Vec<_>>()
        };
        let (first, second) = ("docs/decisions/0001-a.md", "docs/decisions/0002-b.md");
        assert_eq!(found(&["docs/a.md", first, second, "docs/other.md"]), [""; 0]);
        let (third, fourth) = ("docs/decisions/0003-c.md", "docs/decisions/0004-d.md");
        assert_eq!(found(&[first, third, fourth]), [format!("{third}: 0003 where 0002 comes next")]);
        let double = "docs/decisions/0002-c.md";
        assert_eq!(found(&[first, second, double]), [format!("{double}: 0002 where 0003 comes next")]);
        assert_eq!(
            found(&["docs/decisions/a-b.md"]),
            ["docs/decisions/a-b.md: a where 0001 comes next".to_owned()]
        );
    }

    #[test]
    fn comments_that_name_no_decision_are_found() {
        let files = ["docs/a.md", "docs/decisions/0001-a.md"].map(PathBuf::from);
        let source = "//! (`docs/decisions/0001-a.md`) and\n//! [1](../docs/decisions/0002-a.md).\n";
        let found = missing(&files, source);
        assert_eq!(texts(&found), ["there is no decision 0002-a"]);
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2]);
        assert_eq!(texts(&missing(&files, "let path = \"docs/decisions/0003-a.md\";")), [""; 0]);
    }

    #[test]
    fn titles_and_entries_with_another_number_are_found() {
        let title = |text| mistitled(Path::new("docs/decisions/0012-a.md"), text);
        assert_eq!(title("# 0012: b\n"), None);
        assert_eq!(texts(&title("# 0013: b\n")), ["the title is not `# 0012: ...`"]);
        assert_eq!(mistitled(Path::new("docs/0012-a.md"), "# b\n"), None);

        let entries = "- [x](a.md)\n- [1: x](decisions/0001-a.md)\n- [3: x](decisions/0002-b.md)\n";
        let found = mislisted(entries);
        assert_eq!(texts(&found), ["the entry is not `2: ...`"]);
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [3]);
    }
}
