//! Random histories on real stores: `cargo xtask chaos --backend etcd --minutes 5 --seed 1`.
//!
//! Client processes take locks and use what they protect, while a seeded schedule disturbs clients and servers.
//! Checkers judge the history afterwards. A run fails also if too little happened in it.

mod clients;
mod clock;
mod coordinator;
mod fault;
mod nemesis;
mod register;
mod report;
mod run;
mod schedule;
mod store;
mod timeline;
mod verdict;
mod watchdog;
mod wire;
mod worker;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Result, ensure};
use clap::Parser;

use crate::{run::Plan, schedule::Scale, store::BACKENDS};

/// Disturbs clients and servers of a store, and checks the history.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask chaos", bin_name = "cargo xtask chaos")]
struct Arguments {
    /// etcd, zk, redis, redis-sentinel, redis-cluster, redlock, file, or all
    #[arg(long, default_value = "all")]
    backend: String,
    /// Total duration of the faults of each run
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Determines the faults and their order; random by default, and printed
    #[arg(long)]
    seed: Option<u64>,
    /// Number of client processes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=8))]
    clients: u8,
    /// Number of locks
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=8))]
    locks: u8,
    /// The ttl of the clients, in seconds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(2..=60))]
    ttl: u64,
    /// Folder for reports, timelines and the output of the clients
    #[arg(long, default_value = "target/chaos")]
    folder: PathBuf,
    /// Exit when the standard input is closed: a killed test leaves no run behind
    #[arg(long)]
    end_with_input: bool,
}

fn main() -> ExitCode {
    if let Some(code) = worker::run_if_client() {
        return code;
    }
    let arguments = Arguments::parse();
    if arguments.end_with_input {
        std::thread::spawn(|| {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            std::process::exit(2);
        });
    }
    match run_all(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all backends. Returns whether every run passed.
fn run_all(arguments: &Arguments) -> Result<bool> {
    let backends = match &*arguments.backend {
        "all" => BACKENDS.to_vec(),
        one => vec![one],
    };
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let length = Duration::try_from_secs_f64(arguments.minutes * 60.0)?;
    ensure!(length <= Duration::from_secs(24 * 60 * 60), "at most a day");
    let (mut results, mut are_made) = (Vec::new(), true);
    for backend in backends {
        let plan = Plan {
            backend: backend.to_owned(),
            seed,
            length,
            scale: Scale {
                clients: arguments.clients.into(),
                locks: arguments.locks.into(),
                ttl: Duration::from_secs(arguments.ttl),
            },
            folder: arguments.folder.clone(),
        };
        // A run that cannot be made says nothing about the others.
        match run::run(&plan) {
            Ok(result) => {
                result.write(&arguments.folder)?;
                println!("{}", report::table(std::slice::from_ref(&result)));
                results.push(result);
            }
            Err(error) => {
                eprintln!("error: {backend}: {error:#}");
                are_made = false;
            }
        }
    }
    if results.len() > 1 {
        println!("{}", report::table(&results));
    }
    println!("reports and timelines are in {}", arguments.folder.display());
    Ok(are_made && results.iter().all(report::RunResult::passed))
}
