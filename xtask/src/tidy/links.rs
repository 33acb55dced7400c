//! Links between the documents, which nothing else checks.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use super::{Finding, Rule};
use crate::project;

/// The table of contents of `docs/` as a book.
pub(super) const SUMMARY: &str = "docs/SUMMARY.md";

/// Returns the links of a document that lead to no file, or to no heading of it. Links to other sites are not checked.
pub(super) fn broken(root: &Path, document: &Path, text: &str) -> Vec<Finding> {
    let leads_nowhere = |target: &str| {
        let (file, heading) = target.split_once('#').unwrap_or((target, ""));
        if file.is_empty() {
            return !anchors(text).contains(heading);
        }
        let path = root.join(project::resolved(&document.with_file_name(file)));
        let is_document = path.extension().is_some_and(|extension| extension == "md");
        match fs::read_to_string(&path) {
            Ok(found) => is_document && !heading.is_empty() && !anchors(&found).contains(heading),
            Err(_) => !path.exists(),
        }
    };
    links(text)
        .filter(|(_, target)| !target.contains(':') && leads_nowhere(target))
        .map(|(line, target)| Finding::new(Rule::Links, line, format!("a link leads nowhere: {target}")))
        .collect()
}

/// Returns the pages of `docs/` that the table of contents leaves out.
pub(super) fn not_in_summary(summary: &str, files: &[PathBuf]) -> Vec<Finding> {
    let listed: BTreeSet<PathBuf> =
        links(summary).map(|(_, target)| project::resolved(&Path::new("docs").join(target))).collect();
    let pages = files.iter().filter(|file| {
        file.starts_with("docs")
            && file.extension().is_some_and(|extension| extension == "md")
            && *file != Path::new(SUMMARY)
    });
    pages
        .filter(|page| !listed.contains(*page))
        .map(|page| Finding::new(Rule::Links, 1, format!("no link to {}", page.display())))
        .collect()
}

/// Returns the targets of a text's links with their lines, counted from 1. What is code contains no links.
pub(super) fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(number, line)| {
        // The even parts are outside of `code`.
        let parts = line.split('`').step_by(2);
        parts.flat_map(move |part| {
            let targets = part.split("](").skip(1);
            targets.filter_map(move |rest| Some((number, rest.split_once(')')?.0)))
        })
    })
}

/// Returns the lines outside of code blocks, counted from 1.
pub(super) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((number + 1, line))
    })
}

/// Returns the names under which a document's headings can be linked to.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| anchor(line.trim_start_matches('#').trim())).collect()
}

/// Letters and digits in lower case, with `-` for blanks and nothing for other signs.
fn anchor(heading: &str) -> String {
    let letters = heading.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter.is_alphanumeric().then_some(letter),
    });
    letters.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_missing_files_and_headings_are_found() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("docs")).unwrap();
        fs::write(folder.path().join("docs/other.md"), "# One\n## `two`: The second, or 2_b\n").unwrap();
        let text = "[x](other.md) [x](other.md#one)\n[x](other.md#two-the-second-or-2_b)\n[x](../docs)\n# Here\n\
                    [x](#here) `[x](code)` [x](https://example.com/none)\n```\n[x](code)\n```\n\
                    [x](missing.md), [x](other.md#three)\n[x](#there)\n";
        let found = broken(folder.path(), Path::new("docs/this.md"), text);
        let found: Vec<_> = found.iter().map(|finding| (finding.line, &*finding.text)).collect();
        let nowhere = [(9, "missing.md"), (9, "other.md#three"), (10, "#there")];
        let expected = nowhere.map(|(line, target)| (line, format!("a link leads nowhere: {target}")));
        assert_eq!(found, expected.each_ref().map(|(line, text)| (*line, &**text)));
    }

    #[test]
    fn pages_that_the_summary_leaves_out_are_found() {
        let files =
            ["README.md", "docs/SUMMARY.md", "docs/a.md", "docs/b.svg", "docs/in/c.md", "docs/in/d.md"];
        let found = not_in_summary("- [a](a.md)\n  - [d](in/d.md)\n", &files.map(PathBuf::from));
        let found: Vec<_> = found.iter().map(|finding| &*finding.text).collect();
        assert_eq!(found, ["no link to docs/in/c.md"]);
    }
}
