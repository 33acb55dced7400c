//! `cargo xtask test`: every check of the project.
//!
//! What shows mistakes soonest comes first. Once everything is built, test programs run side by side, as most of them
//! wait for servers and ttls. What calls the compiler runs at the same time, one after the other, as cargo would make them
//! wait for each other anyway.

use std::{env, process::Command};

use anyhow::{Context, Result, ensure};

use crate::{
    jobs::{self, Job, Queue},
    programs::{self, Program},
    project,
    project::Project,
    report::Report,
    setup, tidy,
};

const FORMAT: &str = "fmt --all --check";

const RUSTDOC: &str = "rustdoc";

/// Checks that compile.
const CARGO: [(&str, &str); 5] = [
    ("clippy", "clippy --workspace --all-targets --all-features -- -D warnings"),
    // The facade as most users build it: nothing may be unused when a backend is left out.
    ("clippy, no features", "clippy -p lockkit -p lockkit-core -- -D warnings"),
    // What a build without a feature says.
    ("tests, no features", "test -p lockkit --test connect"),
    ("doc tests", "test --workspace --all-features --doc --no-fail-fast"),
    (RUSTDOC, "doc --workspace --all-features --no-deps --lib"),
];

/// Test programs that run side by side. With three, and eight cases in each, the load of two cores went up to 40 beside the
/// compiler, and clients that were not answered for a ttl lost their locks.
const PROGRAMS_SIDE_BY_SIDE: usize = 2;

/// The test programs that take longest, longest first: whatever begins last shall not be one of them.
const LONGEST_FIRST: [&str; 14] = [
    "lockkit-etcd server",
    "lockkit-zk server",
    "lockkit-redis server",
    "chaos short_runs",
    "lockkit-zk conformance",
    "lockkit-etcd conformance",
    "lockkit-redis conformance_redlock",
    "testbed redis_nodes",
    "lockkit-redis conformance",
    "lockkit-redis conformance_cluster",
    "lockkit-redis conformance_redlock_3",
    "lockkit-redis conformance_sentinel",
    "lockkit-cli it",
    "lockkit-redis masters",
];

/// Where the flash sale is held.
const SALES: [&str; 4] = ["file", "etcd", "redis", "zk"];

/// The sale, and what starts servers for it, among the programs that are built for the tests.
const SALE_PROGRAMS: [&str; 2] = ["lockkit flash_sale", "testbed testbed"];

/// Runs all steps, also after a failed one, and fails at the end; stops where the later steps depend on the failed one.
pub(crate) fn run(project: &Project) -> Result<()> {
    let mut report = Report::default();
    if !report.step("set-up", |_| setup::servers()) {
        return report.close();
    }
    report.step("tidy", |_| tidy::run(project));
    report.step("fmt", |_| project::run(&mut project.cargo(FORMAT)));
    let mut built = Vec::new();
    let build = |_: &mut _| {
        built = programs::build(project)?;
        Ok(())
    };
    if !report.step("build", build) {
        return report.close();
    }
    let queues = [Queue::new(1, cargo(project)), Queue::new(PROGRAMS_SIDE_BY_SIDE, programs(&built)?)];
    jobs::run(&queues, &project.root().join("target/logs"), |ended| report.ended(ended))?;
    report.close()
}

fn cargo(project: &Project) -> impl Iterator<Item = Job> {
    CARGO.into_iter().map(|(name, arguments)| {
        // The compiler can wait; servers that do not answer in time cost their clients locks.
        let mut command = project::wrapped(lowest_priority(), &project.cargo(arguments));
        if name == RUSTDOC {
            command.env("RUSTDOCFLAGS", "-D warnings");
        }
        Job { name: name.to_owned(), command }
    })
}

fn lowest_priority() -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]);
    nice
}

/// Test programs and sales.
fn programs(built: &[Program]) -> Result<Vec<Job>> {
    let (mut tests, others): (Vec<&Program>, Vec<&Program>) =
        built.iter().partition(|program| program.is_test());
    ensure!(!tests.is_empty(), "cargo has built no test program");
    tests.sort_by_key(|test| LONGEST_FIRST.iter().position(|name| *name == test.name).unwrap_or(usize::MAX));
    let mut jobs: Vec<Job> =
        tests.into_iter().map(|test| Job { name: test.name.clone(), command: test.command() }).collect();
    let find = |name: &str| {
        let program = others.iter().find(|program| program.name == name);
        program.map(|program| program.executable()).with_context(|| format!("cargo has built no {name}"))
    };
    let [sale, servers] = [find(SALE_PROGRAMS[0])?, find(SALE_PROGRAMS[1])?];
    for backend in SALES {
        let mut command = Command::new(env::current_exe()?);
        command.args(["demo", "--backend", backend]).arg("--sale").arg(sale).arg("--servers").arg(servers);
        jobs.push(Job { name: format!("flash sale, {backend}"), command });
    }
    Ok(jobs)
}
