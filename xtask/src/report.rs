//! The report of a run: each step, its outcome and its duration.

use std::{
    fmt,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use crate::{counts::TestCounts, failures::Failures, jobs::Ended, processors::cpu_time};

/// The steps so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

/// What the test programs of one step printed.
#[derive(Debug, Default)]
pub(crate) struct Tests {
    pub(crate) counts: TestCounts,
    pub(crate) failures: Failures,
}

impl Tests {
    /// Reads the next line of a test program's output.
    pub(crate) fn read(&mut self, line: &str) {
        self.counts += TestCounts::parse(line).unwrap_or_default();
        self.failures.read(line);
    }
}

#[derive(Debug)]
struct Row {
    name: String,
    error: Option<anyhow::Error>,
    tests: Tests,
    took: Duration,
    cpu: Option<Duration>,
}

impl Report {
    /// Prints the output of a job that ran in parallel with others, and records its outcome.
    pub(crate) fn ended(&mut self, job: Ended) {
        println!("\n==> {} ({:.1} s)\n{}", job.name, job.took.as_secs_f64(), job.output.trim_end());
        self.record_job(job);
    }

    /// Records the outcome of a job without its output.
    pub(crate) fn record_job(&mut self, Ended { name, error, output, took, cpu }: Ended) {
        let mut tests = Tests::default();
        output.lines().for_each(|line| tests.read(line));
        self.record(Row { name, error, tests, took, cpu });
    }

    /// Runs one step under a heading. Returns whether it succeeded.
    pub(crate) fn step(&mut self, name: &str, work: impl FnOnce(&mut Tests) -> Result<()>) -> bool {
        println!("\n==> {name}");
        let (start, before, mut tests) = (Instant::now(), cpu_time("self").ok(), Tests::default());
        let error = work(&mut tests).err();
        let succeeded = error.is_none();
        let cpu = before.and_then(|before| Some(cpu_time("self").ok()? - before));
        self.record(Row { name: name.to_owned(), error, tests, took: start.elapsed(), cpu });
        succeeded
    }

    fn record(&mut self, row: Row) {
        if let Some(error) = &row.error {
            eprintln!("error: {error:#}");
        }
        self.rows.push(row);
    }

    /// Prints the table and the closing line. An error if a step failed.
    pub(crate) fn close(self) -> Result<()> {
        println!("\n{self}");
        // With the tests: a log may be cut everywhere but at its end.
        let describe = |Row { name, tests, .. }: &Row| match tests.failures.names().join(", ") {
            names if names.is_empty() => name.clone(),
            names => format!("{name} ({names})"),
        };
        let failed: Vec<String> = self.failed().map(describe).collect();
        if !failed.is_empty() {
            bail!("failed: {}", failed.join(", "));
        }
        Ok(())
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed().next().is_some()
    }

    /// Describes the steps that failed, with the output of their failed tests.
    pub(crate) fn failures(&self) -> String {
        let describe = |Row { name, error, tests, .. }: &Row| {
            let error = error.as_ref().map(|error| format!("{error:#}")).unwrap_or_default();
            format!("{name}: {error}\n{}", tests.failures)
        };
        self.failed().map(describe).collect()
    }

    fn failed(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.error.is_some())
    }

    /// Counts all tests. A step that failed without a failed test (a lint, a build) counts as one failure, so that the
    /// closing line of a bad tree never says "0 failed".
    pub(crate) fn tests(&self) -> TestCounts {
        let mut sum = TestCounts::default();
        for row in &self.rows {
            let counts = row.tests.counts;
            sum += counts;
            sum.failed += u64::from(row.error.is_some() && counts.failed == 0);
        }
        sum
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|row| row.name.len()).max().unwrap_or_default();
        writeln!(f, "{:width$}  {:6}  {:>8}  {:>8}", "step", "", "took", "CPU")?;
        for Row { name, error, tests, took, cpu } in &self.rows {
            let outcome = if error.is_none() { "ok" } else { "FAILED" };
            let cpu = cpu.map_or(String::new(), |cpu| format!("{:.1} s", cpu.as_secs_f64()));
            write!(f, "{name:width$}  {outcome:6}  {:>6.1} s  {cpu:>8}", took.as_secs_f64())?;
            let counts = tests.counts;
            writeln!(
                f,
                "{}",
                if counts == TestCounts::default() { String::new() } else { format!("  {counts}") }
            )?;
        }
        write!(f, "{}lockkit: {}", self.failures(), self.tests())
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    fn closing_line(report: &Report) -> String {
        report.to_string().lines().last().unwrap().to_owned()
    }

    #[test]
    fn closing_line_sums_the_tests_of_all_steps() {
        let mut report = Report::default();
        for passed in [3, 4] {
            assert!(report.step("test", |tests| {
                tests.counts += TestCounts { passed, failed: 0, skipped: 1 };
                Ok(())
            }));
        }
        assert_eq!(closing_line(&report), "lockkit: 7 passed, 0 failed, 2 skipped");
        report.close().unwrap();
    }

    #[test]
    fn failed_step_without_a_failed_test_counts_as_one_failure() {
        let mut report = Report::default();
        assert!(!report.step("clippy", |_| Err(anyhow!("lint"))));
        assert!(!report.step("test", |tests| {
            "---- a ----\npanicked\ntest result: FAILED. 0 passed; 2 failed; 0 ignored"
                .lines()
                .for_each(|line| tests.read(line));
            Err(anyhow!("exit status: 101"))
        }));
        assert_eq!(closing_line(&report), "lockkit: 0 passed, 3 failed, 0 skipped");
        assert!(
            report.to_string().contains("test: exit status: 101\n  ---- a ----\n  panicked\n"),
            "{report}"
        );
        assert_eq!(report.close().unwrap_err().to_string(), "failed: clippy, test (a)");
    }
}
