//! Project chores of lockkit. `cargo xtask` lists the commands.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};

mod bench;
mod chaos;
mod conformance;
mod counts;
mod demo;
mod failures;
mod guarantees;
mod jobs;
mod mutate;
mod programs;
mod project;
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
    /// Sets up what is missing (servers, protoc), then runs every check of the project.
    Test,
    /// Sells 300 items to 500 buyers in two processes, with the lock and without it.
    Demo {
        /// A backend URL; `etcd`, `redis` or `zk` starts a server for the occasion, `file` makes a temporary folder.
        #[arg(long, value_name = "URL|SCHEME", default_value = "file")]
        backend: String,
        #[command(flatten)]
        built: demo::Built,
    },
    /// Runs the conformance suite: one line per case, a closing line per backend.
    Conformance {
        /// memory, file, etcd, zk; default: all.
        backends: Vec<String>,
    },
    /// Measures hand-overs beside bare requests and other locks; a table, and target/bench/report.md and .json.
    Bench {
        /// redis or zk.
        store: String,
        /// Passed on, such as `--rounds 9 --seconds 5`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Disturbs clients and servers by a seeded schedule and judges the history; also in target/chaos.
    Chaos {
        /// Passed on, such as `--backend etcd --minutes 5 --seed 1`; `--help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Writes what the last runs of the suite have shown into docs/ and the README.
    Guarantees,
    /// Checks the house rules that no compiler knows.
    Tidy,
    /// Removes one safety step at a time and sees whether the tests named in the patch turn red.
    Mutate {
        /// Files of the folder, without `.patch`; default: all.
        names: Vec<String>,
        /// The folder of the mutations.
        #[arg(long, default_value = "xtask/mutations")]
        folder: PathBuf,
        /// Tries at most so many, drawn by chance.
        #[arg(long, value_name = "COUNT")]
        sample: Option<usize>,
        /// Of the draw; default: another one each time.
        #[arg(long, requires = "sample")]
        seed: Option<u64>,
        /// How many run side by side.
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
        Command::Test => test::run(&project),
        Command::Demo { backend, built } => demo::run(&project, &backend, &built),
        Command::Conformance { backends } => conformance::run(&project, &backends),
        Command::Bench { store, options } => bench::run(&project, &store, &options),
        Command::Chaos { options } => chaos::run(&project, &options),
        Command::Guarantees => guarantees::run(&project),
        Command::Tidy => tidy::run(&project),
        Command::Mutate { names, folder, sample, seed, jobs } => {
            setup::servers()?;
            mutate::run(&project, &mutate::Choice { folder, names, sample, seed }, jobs)
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

    /// Everybody builds these chores first, also for a demo on lock files.
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
