//! Project chores of lockkit. `cargo xtask` lists the commands.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod attached;
mod backends;
mod bench;
mod chaos;
mod conformance;
mod counts;
mod demo;
mod failures;
mod guarantees;
mod jobs;
mod mutate;
mod package;
mod processors;
mod programs;
mod project;
mod repeat;
mod report;
mod setup;
mod test;
mod tidy;

/// Project chores of lockkit.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Installs missing servers, then runs every check of the project.
    Test {
        #[command(flatten)]
        repetition: repeat::Repetition,
    },
    /// Sells 300 items to 500 buyers in two processes, with the lock and without it.
    Demo {
        /// A backend URL; `etcd`, `redis` or `zk` starts a temporary server, `file` uses a temporary folder.
        #[arg(long, value_name = "URL|SCHEME", default_value = "file")]
        backend: String,
        #[command(flatten)]
        built: demo::Built,
    },
    /// Runs the conformance suite: prints one line per case, and a closing line per backend.
    Conformance {
        /// Names of backends, such as `etcd` and `redis-cluster`; default: all.
        backends: Vec<String>,
    },
    /// Measures lockkit, bare requests and other locks side by side; writes report.md, .json and plots to target/bench.
    Bench {
        /// Options of the benchmark, such as `--backend redis etcd --workload W1 W3 --quick`; `--help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Injects faults into clients and servers by a seeded schedule, and checks the history; writes to target/chaos.
    Chaos {
        /// Options of the run, such as `--backend etcd --minutes 5 --seed 1`; `--help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Writes the results of the last runs of the suite into docs/ and the README.
    Guarantees,
    /// Keeps threads busy until the end of the standard input.
    #[command(hide = true)]
    Busy { threads: usize },
    /// Packages the crates that are published, and builds a new project from the packages, without protoc.
    Package,
    /// Checks the house rules that the compiler does not check.
    Tidy,
    /// Removes one safety step at a time, and checks that the tests named in the patch fail.
    Mutate {
        #[command(flatten)]
        selection: mutate::Selection,
        /// How many run at the same time.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    let project = project::Project::here();
    match command {
        Command::Test { repetition } => test::run(&project, repetition),
        Command::Busy { threads } => repeat::keep_busy(threads, std::io::stdin()),
        Command::Demo { backend, built } => demo::run(&project, &backend, &built),
        Command::Conformance { backends } => conformance::run(&project, &backends),
        Command::Bench { options } => bench::run(&project, &options),
        Command::Chaos { options } => chaos::run(&project, &options),
        Command::Guarantees => guarantees::run(&project),
        Command::Package => package::run(&project),
        Command::Tidy => tidy::run(&project),
        Command::Mutate { selection, jobs } => {
            setup::install_servers()?;
            mutate::run(&project, &selection, jobs)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_described_without_contradiction() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    /// Every `cargo xtask` builds this program first, also for a demo on lock files.
    #[test]
    fn chores_build_no_client_crate_and_no_runtime() {
        let mut tree =
            project::Project::here().cargo("tree -p xtask -e normal,build --prefix none --format {p}");
        let output = tree.output().unwrap();
        let crates = String::from_utf8(output.stdout).unwrap();
        let names: Vec<&str> = crates.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(names.contains(&"xtask") && names.contains(&"clap"), "{crates}");
        for heavy in ["etcd-client", "tonic", "tokio", "lockkit", "lockkit-core"] {
            assert!(!names.contains(&heavy), "{heavy} in\n{crates}");
        }
    }
}
