//! The output of failed tests, repeated at the end of the report: in a long log it is hard to find.

use std::fmt;

/// Most failed tests that are repeated.
const TESTS_MAX: usize = 20;

/// Most lines of each.
const LINES_MAX: usize = 40;

/// The output of the failed tests of one step.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    tests: Vec<Vec<String>>,
    /// Whether the next lines belong to the last test.
    reading: bool,
}

impl Failures {
    /// Reads the next line of a test program's output.
    pub(crate) fn read(&mut self, line: &str) {
        if line.starts_with("---- ") && line.ends_with(" ----") {
            self.tests.push(Vec::new());
            self.reading = true;
        } else if line == "failures:" || line.starts_with("test result: ") {
            self.reading = false;
        }
        let is_closing_line = line.starts_with("conformance ") && !line.contains(" 0 failed,");
        let is_residue = line.starts_with("after the last case: ");
        if is_residue || is_closing_line && line.contains(" failed,") {
            self.tests.push(vec![line.to_owned()]);
        } else if let Some(test) = self.tests.last_mut().filter(|test| self.reading && test.len() < LINES_MAX)
        {
            test.push(line.to_owned());
        }
    }

    /// The names of the failed tests, as many as are repeated.
    pub(crate) fn names(&self) -> Vec<&str> {
        let headings = self.tests.iter().filter_map(|test| test.first()?.strip_prefix("---- "));
        headings.filter_map(|heading| heading.split(' ').next()).take(TESTS_MAX).collect()
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.tests.iter().take(TESTS_MAX).flatten().filter(|line| !line.is_empty()) {
            writeln!(f, "  {line}")?;
        }
        let more = self.tests.len().saturating_sub(TESTS_MAX);
        if more > 0 { writeln!(f, "  and {more} more") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(output: &str) -> String {
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.read(line));
        failures.to_string()
    }

    #[test]
    fn output_of_failed_tests_and_suites_is_shown() {
        let output = "running 2 tests\ntest b ... ok\ntest a ... FAILED\n\nfailures:\n\n---- a stdout ----\npanicked\n\n\
                      failures:\n    a\n\ntest result: FAILED. 1 passed; 1 failed\n\nconformance zk: 1 passed, 1 failed, 0 ignored\n";
        assert_eq!(
            read(output),
            "  ---- a stdout ----\n  panicked\n  conformance zk: 1 passed, 1 failed, 0 ignored\n"
        );
    }

    #[test]
    fn output_of_passed_tests_is_not_shown() {
        assert_eq!(
            read(
                "test a ... ok\n\ntest result: ok. 1 passed; 0 failed\n\nconformance zk: 1 passed, 0 failed, 0 ignored\n"
            ),
            ""
        );
    }

    #[test]
    fn output_is_bounded() {
        let output = "---- a ----\nline\n".repeat(TESTS_MAX + 2) + &"line\n".repeat(LINES_MAX * 2);
        let shown = read(&output);
        assert!(shown.ends_with("  and 2 more\n"), "{shown}");
        assert_eq!(shown.lines().count(), 2 * TESTS_MAX + 1);
    }
}
