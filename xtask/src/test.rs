//! `cargo xtask test`: every check of the project.
//!
//! The fastest checks run first. Once everything is built, test programs run side by side, as most of them wait for
//! servers and ttls. Checks that compile run at the same time, but one after the other: cargo would make them wait for
//! each other anyway.

use std::{env, process::Command};

use anyhow::{Context, Result, ensure};

use crate::{
    backends,
    jobs::{self, Job, Width},
    programs::{self, Program},
    project,
    project::Project,
    repeat::Repetition,
    report::Report,
    setup, tidy,
};

const FORMAT: &str = "fmt --all --check";

const DOC_TESTS: &str = "rustdoc, doc tests";
const NO_FEATURES: &str = "clippy and tests, no features";

/// Checks that compile. The build has checked the code of all features with clippy.
const CARGO: [(&str, &str); 2] = [
    // The facade as most users build it: no code may be unused when a backend is left out, and a URL of such a backend
    // is an error. The other packages and features are named for those of their dependencies: with fewer of these,
    // cargo would compile a hundred crates once more.
    (
        NO_FEATURES,
        "test --test connect --no-default-features -p lockkit -p lockkit-cli \
         -p lockkit-conformance -p lockkit-core -p lockkit-etcd -p lockkit-file -p lockkit-redis -p lockkit-zk \
         -p lockkit-models -p lockkit-testbed -p xtask \
         --features lockkit-core/metrics,lockkit-core/testing,lockkit-etcd/tls,lockkit-redis/tls,lockkit-zk/tls \
         --features lockkit-zk/sasl,lockkit-conformance/linearizability \
         --features lockkit-etcd/_fuzzing,lockkit-file/_fuzzing,lockkit-redis/_fuzzing",
    ),
    (DOC_TESTS, "test --workspace --all-features --doc --no-fail-fast"),
];

/// Documents a library before its doc tests.
const RUSTDOC: &str = "xtask/src/rustdoc.sh";

/// How much the test programs that run at a time may take together on two cores, in [tenths of a core](LONGEST_FIRST).
/// When three of them ran beside the compiler, the load reached 40, and clients that got no answer for a ttl lost their
/// locks.
const PROGRAMS: Width = Width { beside: 14, alone: 18 };

/// The test programs that take longest, in the order in which they start, and how much each takes of a core, in tenths:
/// its CPU time over its duration. Most wait most of the time.
const LONGEST_FIRST: [(&str, usize); 18] = [
    ("lockkit-etcd conformance", 11),
    ("lockkit-zk conformance", 10),
    ("lockkit-etcd server", 3),
    ("lockkit-zk server", 4),
    ("lockkit-redis server", 3),
    ("chaos short_runs", 4),
    ("lockkit-cli it", 4),
    ("testbed it", 4),
    ("lockkit leader", 1),
    ("models etcd", 5),
    ("lockkit-redis conformance_redlock", 5),
    ("lockkit-redis conformance_cluster", 7),
    ("lockkit-redis conformance", 4),
    ("lockkit-redis masters", 4),
    ("lockkit-redis conformance_redlock_3", 4),
    ("lockkit-redis conformance_sentinel", 5),
    ("lockkit-core it", 7),
    ("recipes it", 7),
];

/// What the other ones take.
const OTHERS: usize = 5;

/// The sale, and the program that starts servers for it, among the programs that are built for the tests.
const SALE_PROGRAMS: [&str; 2] = ["demo flash_sale", "testbed testbed"];

/// Runs all steps, also after a failed one, and fails at the end. Stops early if later steps depend on the failed one.
///
/// With a number of runs, only the test programs run, that many times.
pub(crate) fn run(project: &Project, repetition: Repetition) -> Result<()> {
    let mut report = Report::default();
    if !report.step("set-up", |_| setup::install_servers()) {
        return report.close();
    }
    if repetition.runs.is_none() {
        report.step("tidy", |_| tidy::run(project));
        report.step("fmt", |_| project::run(&mut project.cargo(FORMAT)));
    }
    let mut built = Vec::new();
    let build_and_clippy = |_: &mut _| {
        built = programs::build(project)?;
        Ok(())
    };
    if !report.step("build, clippy", build_and_clippy) {
        return report.close();
    }
    let logs = project.root().join("target/logs");
    if let Some(runs) = repetition.runs {
        return repetition.run(runs, || programs(&built), PROGRAMS, &logs);
    }
    jobs::run(cargo(project), programs(&built)?, PROGRAMS, &logs, |ended| report.ended(ended))?;
    report.close()
}

fn cargo(project: &Project) -> Vec<Job> {
    let job = |(name, arguments): (&str, &str)| {
        let mut command = project.cargo(arguments);
        // They use the libraries of the build.
        project::compile_with_clippy(&mut command);
        command.env("RUSTDOC", project.root().join(RUSTDOC));
        command.env("DOCUMENTATION", project.root().join("target/doc"));
        // The compiler has the lowest priority: clients of servers that do not reply in time lose their locks.
        Job { name: name.to_owned(), command: project::wrapped(lowest_priority(), &command), weight: 0 }
    };
    CARGO.map(job).into()
}

fn lowest_priority() -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]);
    nice
}

/// Models only compute, on all cores: what waits for servers comes first.
fn command_of(test: &Program) -> Command {
    let command = test.command();
    if test.name.starts_with("models ") { project::wrapped(lowest_priority(), &command) } else { command }
}

/// Test programs and sales.
fn programs(built: &[Program]) -> Result<Vec<Job>> {
    let (mut tests, others): (Vec<&Program>, Vec<&Program>) =
        built.iter().partition(|program| program.is_test());
    ensure!(!tests.is_empty(), "cargo has built no test program");
    let place = |test: &Program| LONGEST_FIRST.iter().position(|(name, _)| *name == test.name);
    tests.sort_by_key(|test| place(test).unwrap_or(usize::MAX));
    let job = |test: &Program| {
        let weight = place(test).map_or(OTHERS, |place| LONGEST_FIRST[place].1);
        Job { name: test.name.clone(), command: command_of(test), weight }
    };
    let mut jobs: Vec<Job> = tests.into_iter().map(job).collect();
    let find = |name: &str| {
        let program = others.iter().find(|program| program.name == name);
        program.map(|program| program.executable()).with_context(|| format!("cargo has built no {name}"))
    };
    let [sale, servers] = [find(SALE_PROGRAMS[0])?, find(SALE_PROGRAMS[1])?];
    for backend in backends::with_sale() {
        let mut command = Command::new(env::current_exe()?);
        command.args(["demo", "--backend", backend]).arg("--sale").arg(sale).arg("--servers").arg(servers);
        jobs.push(Job { name: format!("flash sale, {backend}"), command, weight: OTHERS });
    }
    Ok(jobs)
}
