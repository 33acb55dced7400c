//! Measures lockkit on temporary servers: `cargo xtask bench`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};
use lockkit_bench::{Backend, Folders, Plan, Workload};

/// How often each row runs, unless the command line says it.
const ROUNDS: u64 = 5;

/// Measures lockkit in comparison with bare requests and other locks on the same stores.
///
/// Prints tables, and writes report.md, report.json and plots. Exits with 1 if a row failed or two clients were inside a
/// lock at the same time.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", bin_name = "cargo xtask bench", args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Only on these stores; default: all
    #[arg(long, num_args = 1.., value_name = "BACKEND")]
    backend: Vec<Backend>,
    /// Only these workloads; default: all
    #[arg(long, num_args = 1.., value_name = "WORKLOAD", ignore_case = true)]
    workload: Vec<Workload>,
    /// How often each row runs, for each workload; default: 5, with --quick 1
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// How long a timed run lasts, in seconds; default: as long as the time for a store allows (15 minutes)
    #[arg(long)]
    seconds: Option<f64>,
    /// A look at everything in less than five minutes
    #[arg(long)]
    quick: bool,
    /// Install the locks of others first (on Debian; fetches their packages)
    #[arg(long)]
    install_peers: bool,
    /// The folder for report.md, report.json and plots
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
    /// The folder with the locks of others
    #[arg(long, default_value = "bench/peers", hide = true)]
    peers: PathBuf,
    #[command(subcommand)]
    child: Option<Child>,
}

#[derive(Debug, Subcommand)]
enum Child {
    /// Run a row in this process
    #[command(external_subcommand)]
    Run(Vec<String>),
}

/// Threads that may block: bare file locks wait in one each, a thousand at most, and the standard input is read in one.
const BLOCKING_THREADS: usize = 2_048;

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            // Not by return: a thread may wait for input.
            std::process::exit(1)
        }
    }
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().max_blocking_threads(BLOCKING_THREADS).build()?;
    match arguments {
        Arguments { child: Some(Child::Run(words)), .. } => runtime.block_on(run_child(&words)),
        arguments => runtime.block_on(measure(arguments)),
    }
}

async fn run_child(words: &[String]) -> Result<ExitCode> {
    let [command, job] = words else { anyhow::bail!("a command and its job, not {words:?}") };
    lockkit_bench::run_child(command, job).await?;
    std::process::exit(0)
}

async fn measure(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { mut backend, mut workload, rounds, seconds, quick, folder, peers, install_peers, .. } =
        arguments;
    if install_peers {
        lockkit_bench::install_peers(&peers)?;
    }
    if backend.is_empty() {
        backend = Backend::ALL.to_vec();
    }
    if workload.is_empty() {
        workload = <Workload as clap::ValueEnum>::value_variants().to_vec();
    }
    workload.sort_unstable();
    workload.dedup();
    let rounds = rounds.unwrap_or(if quick { 1 } else { ROUNDS }).try_into()?;
    let plan = Plan { workloads: workload, rounds, seconds, quick };
    let folders = Folders { report: folder, peers };
    let report = lockkit_bench::run(&backend, &plan, &folders).await?;
    println!("{report}\n\nalso in {}", folders.report.join("report.md").display());
    let errors = report.errors();
    for error in &errors {
        eprintln!("error: {error}");
    }
    Ok(if errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
