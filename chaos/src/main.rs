//! Random histories on real stores: `cargo xtask chaos --backend etcd --minutes 5 --seed 1`.
//!
//! Client processes take locks and use what they protect, while a seeded schedule disturbs clients and servers. Checkers
//! judge the history afterwards; a run says itself whether there was enough in it.

mod clients;
mod clock;
mod fault;
mod hub;
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

use crate::{run::Plan, schedule::Cast, store::BACKENDS};

/// Disturbs clients and servers of a store, and judges what comes of it.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask chaos", bin_name = "cargo xtask chaos")]
struct Arguments {
    /// etcd, zk, redis, redis-sentinel, redis-cluster, redlock, file, or all
    #[arg(long, default_value = "all")]
    backend: String,
    /// How long the faults of each run last together
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Decides which faults come when; without it, one that is thrown, and printed
    #[arg(long)]
    seed: Option<u64>,
    /// Client processes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=8))]
    clients: u8,
    /// Locks that they take
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=8))]
    locks: u8,
    /// How long a lock outlives the last heartbeat of its holder, in seconds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(2..=60))]
    ttl: u64,
    /// Where reports, timelines and the clients' own output go
    #[arg(long, default_value = "target/chaos")]
    folder: PathBuf,
    /// End at once when the standard input does, as that of a test does when its process is killed
    #[arg(long)]
    end_with_input: bool,
}

fn main() -> ExitCode {
    if let Some(code) = worker::serve_if_asked() {
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

/// Whether all runs were good.
fn run_all(arguments: &Arguments) -> Result<bool> {
    let backends = match &*arguments.backend {
        "all" => BACKENDS.to_vec(),
        one => vec![one],
    };
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let length = Duration::try_from_secs_f64(arguments.minutes * 60.0)?;
    ensure!(length <= Duration::from_secs(24 * 60 * 60), "at most a day");
    let (mut outcomes, mut are_made) = (Vec::new(), true);
    for backend in backends {
        let plan = Plan {
            backend: backend.to_owned(),
            seed,
            length,
            cast: Cast {
                clients: arguments.clients.into(),
                locks: arguments.locks.into(),
                ttl: Duration::from_secs(arguments.ttl),
            },
            folder: arguments.folder.clone(),
        };
        // One that cannot be made says nothing about the others.
        match run::run(&plan) {
            Ok(outcome) => {
                outcome.write(&arguments.folder)?;
                println!("{}", report::table(std::slice::from_ref(&outcome)));
                outcomes.push(outcome);
            }
            Err(error) => {
                eprintln!("error: {backend}: {error:#}");
                are_made = false;
            }
        }
    }
    if outcomes.len() > 1 {
        println!("{}", report::table(&outcomes));
    }
    println!("reports and timelines are in {}", arguments.folder.display());
    Ok(are_made && outcomes.iter().all(report::Outcome::is_good))
}
