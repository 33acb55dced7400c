//! The counts that a test program prints at its end.

use std::{fmt, ops::AddAssign};

/// How many tests passed, failed and were ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestCounts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl TestCounts {
    /// Reads the closing line of a test program; `None` for any other line.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let count = |noun: &str| {
            counts.split("; ").find_map(|part| part.strip_suffix(noun)?.trim_end().parse::<u64>().ok())
        };
        Some(Self { passed: count("passed")?, failed: count("failed")?, skipped: count("ignored")? })
    }
}

impl AddAssign for TestCounts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for TestCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::TestCounts;

    #[test]
    fn reads_closing_lines_of_test_programs() {
        let line =
            "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 1 filtered out; finished in 0.01s";
        assert_eq!(TestCounts::parse(line), Some(TestCounts { passed: 12, failed: 0, skipped: 3 }));
        let line = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(TestCounts::parse(line), Some(TestCounts { passed: 1, failed: 2, skipped: 0 }));
    }

    #[test]
    fn other_lines_have_no_counts() {
        for line in
            ["", "running 3 tests", "test a ... ok", "test result: ok", "test result: ok. many passed"]
        {
            assert_eq!(TestCounts::parse(line), None, "{line}");
        }
    }
}
