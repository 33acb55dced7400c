//! Project chores of lockkit. `cargo xtask` lists the commands.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod counts;
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
    /// Checks the house rules that no compiler knows.
    Tidy,
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
        Command::Tidy => tidy::run(&project),
    }
}
