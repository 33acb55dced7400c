//! `cargo xtask test`: every check of the project, in the order in which a mistake shows up soonest.

use anyhow::Result;

use crate::{demo, project, project::Project, report::Report, setup, tidy};

/// Checks that read the text.
const LINTS: [(&str, &str); 3] = [
    ("fmt", "fmt --all --check"),
    ("clippy", "clippy --workspace --all-targets --all-features -- -D warnings"),
    // The facade as most users build it: nothing may be unused when a backend is left out.
    ("clippy, no features", "clippy -p lockkit -p lockkit-core -- -D warnings"),
];

/// When this fails, nothing after it can say anything.
const BUILD: &str = "test --workspace --all-features --no-run";

/// Unit, integration and documentation tests in one call: by itself each kind would build its own dependencies.
const TEST: &str = "test --workspace --all-features --no-fail-fast";

/// Where the flash sale is held.
const SALES: [&str; 4] = ["file", "etcd", "redis", "zk"];

/// Tests of what a build without a feature says.
const TEST_NO_FEATURES: &str = "test -p lockkit --test connect";

const RUSTDOC: &str = "doc --workspace --all-features --no-deps --lib";

/// Runs all steps, also after a failed one, and fails at the end; stops where the later steps depend on the failed one.
pub(crate) fn run(project: &Project) -> Result<()> {
    let mut report = Report::default();
    if !report.step("set-up", |_| setup::servers()) {
        return report.close();
    }
    report.step("tidy", |_| tidy::run(project));
    for (name, arguments) in LINTS {
        report.step(name, |_| project::run(&mut project.cargo(arguments)));
    }
    if !report.step("build", |_| project::run(&mut project.cargo(BUILD))) {
        return report.close();
    }
    report.step("tests, doc tests", |tests| project::run_tests(&mut project.cargo(TEST), tests));
    report
        .step("tests, no features", |tests| project::run_tests(&mut project.cargo(TEST_NO_FEATURES), tests));
    report.step("rustdoc", |_| project::run(project.cargo(RUSTDOC).env("RUSTDOCFLAGS", "-D warnings")));
    for backend in SALES {
        report.step(&format!("flash sale, {backend}"), |_| demo::run(project, backend));
    }
    report.close()
}
