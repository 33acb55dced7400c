//! `cargo xtask test`: every check of the project.
//!
//! Once everything is built, test programs run side by side, as most of them wait for servers and ttls. What only computes
//! (checks, the fastest first, and models) uses the time that they leave: one check at a time, as cargo would make those
//! that compile wait for each other anyway, and one model.

use std::{env, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};

use crate::{
    backends,
    jobs::{self, Job, Width},
    processors::Processors,
    programs::{self, Program},
    project,
    project::Project,
    repeat::Repetition,
    report::Report,
    setup,
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
         -p lockkit-etcd-codegen -p lockkit-models -p lockkit-recipes -p lockkit-testbed -p xtask \
         --features lockkit-core/metrics,lockkit-core/testing,lockkit-etcd/tls,lockkit-redis/tls,lockkit-zk/tls \
         --features lockkit-zk/sasl,lockkit-zk/zookeeper-client-0-11,lockkit-conformance/linearizability \
         --features lockkit-etcd/_fuzzing,lockkit-file/_fuzzing,lockkit-redis/_fuzzing",
    ),
    (DOC_TESTS, "test --workspace --all-features --doc --no-fail-fast"),
];

/// Documents a library before its doc tests.
const RUSTDOC: &str = "xtask/src/rustdoc.sh";

/// How many test programs run at a time. When three that compute much ran next to the compiler, or six on two slow
/// processors, the load reached 40 and more, and clients that got no answer for a ttl lost their locks.
const PROGRAMS: Width = Width { min: 2, max: 4, look_every: Duration::from_secs(2) };

/// As above, while other threads keep the processors busy: these never idle.
const PROGRAMS_BUSY: Width = Width { min: PROGRAMS.max, ..PROGRAMS };

/// The test programs that take longest, in the order in which they start. The last ones compute little: at the end of the
/// run, they would leave the processors idle.
const LONGEST_FIRST: [&str; 23] = [
    "lockkit-etcd conformance",
    "lockkit-etcd server",
    "lockkit-redis server",
    "lockkit-zk server",
    "chaos short_runs",
    "lockkit-zk conformance",
    "lockkit-cli it",
    "testbed it",
    "lockkit leader",
    "lockkit-redis conformance_cluster",
    "lockkit-redis conformance_sentinel",
    "lockkit-redis conformance",
    "lockkit-redis conformance_redlock",
    "lockkit-redis redlock",
    "lockkit-core it",
    "lockkit-etcd go",
    "recipes it",
    "lockkit-redis conformance_redlock_3",
    "lockkit-file it",
    "lockkit-file privileged",
    "conformance custom_backend",
    "lockkit-file conformance",
    "lockkit prometheus",
];

/// The package whose test programs only compute, on all processors.
const MODELS: &str = "lockkit-models";

/// The sale, and the program that starts servers for it, among the programs that are built for the tests.
const SALE_PROGRAMS: [&str; 2] = ["demo flash_sale", "testbed testbed"];

/// Runs all steps, also after a failed one, and fails at the end. Stops early if nothing can be built.
///
/// With a number of runs, only the test programs run, that many times.
pub(crate) fn run(project: &Project, repetition: Repetition) -> Result<()> {
    let mut report = Report::default();
    if !report.step("set-up", |_| setup::install_servers()) {
        return report.close();
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
        return if repetition.busy > 0 {
            // At the lowest priority, the models would not end.
            repetition.run(runs, || programs(&built), PROGRAMS_BUSY, &logs)
        } else {
            let programs = || {
                let (models, others) = programs(&built)?;
                Ok((at_lowest_priority(models), others))
            };
            repetition.run(runs, programs, PROGRAMS, &logs)
        };
    }
    let (models, programs) = programs(&built)?;
    let computing = [checks(project)?, models].map(at_lowest_priority);
    let mut processors = Processors::default();
    jobs::run(computing, programs, PROGRAMS, &logs, || processors.were_idle(), |ended| report.ended(ended))?;
    report.close()
}

/// What checks the text, and then what compiles.
fn checks(project: &Project) -> Result<Vec<Job>> {
    let mut tidy = Command::new(env::current_exe()?);
    tidy.arg("tidy").current_dir(project.root());
    let tidy = Job { name: "tidy".to_owned(), command: tidy };
    let format = Job { name: "fmt".to_owned(), command: project.cargo(FORMAT) };
    let job = |(name, arguments): (&str, &str)| {
        let mut command = project.cargo(arguments);
        // They use the libraries of the build.
        project::compile_with_clippy(&mut command);
        command.env("RUSTDOC", project.root().join(RUSTDOC));
        command.env("DOCUMENTATION", project.root().join("target/doc"));
        Job { name: name.to_owned(), command }
    };
    Ok([tidy, format].into_iter().chain(CARGO.map(job)).collect())
}

fn at_lowest_priority(jobs: Vec<Job>) -> Vec<Job> {
    jobs.into_iter().map(Job::at_lowest_priority).collect()
}

/// Models, and all other test programs and sales.
fn programs(built: &[Program]) -> Result<(Vec<Job>, Vec<Job>)> {
    let (tests, others): (Vec<&Program>, Vec<&Program>) = built.iter().partition(|program| program.is_test());
    ensure!(!tests.is_empty(), "cargo has built no test program");
    let (models, mut tests): (Vec<_>, Vec<_>) = tests.into_iter().partition(|test| test.package == MODELS);
    tests.sort_by_key(|test| {
        LONGEST_FIRST.iter().position(|name| *name == test.name).unwrap_or(LONGEST_FIRST.len())
    });
    let job = |test: &Program| Job { name: test.name.clone(), command: test.command() };
    let (models, mut jobs): (Vec<_>, Vec<_>) =
        (models.into_iter().map(job).collect(), tests.into_iter().map(job).collect());
    let find = |name: &str| {
        let program = others.iter().find(|program| program.name == name);
        program.map(|program| program.executable()).with_context(|| format!("cargo has built no {name}"))
    };
    let [sale, servers] = [find(SALE_PROGRAMS[0])?, find(SALE_PROGRAMS[1])?];
    let short = jobs.split_off(LONGEST_FIRST.len().min(jobs.len()));
    for backend in backends::with_sale() {
        let mut command = Command::new(env::current_exe()?);
        command.args(["demo", "--backend", backend]).arg("--sale").arg(sale).arg("--servers").arg(servers);
        jobs.push(Job { name: format!("flash sale, {backend}"), command });
    }
    jobs.extend(short);
    Ok((models, jobs))
}
