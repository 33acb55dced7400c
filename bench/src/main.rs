//! Measures lockkit on a temporary server: `cargo xtask bench zk`.

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use clap::Parser;
use lockkit_bench::Plan;

/// Measures lockkit in comparison with bare requests and other locks, and prints a table.
#[derive(Debug, Parser)]
struct Arguments {
    /// redis or zk
    store: String,
    /// How often each row runs, for each workload
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// How long a row runs in one round
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// The folder for report.md and report.json
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
}

#[tokio::main]
async fn main() -> Result<()> {
    let Arguments { store, rounds, seconds, folder } = Arguments::parse();
    let plan = Plan { rounds: rounds.try_into()?, each: Duration::try_from_secs_f64(seconds)? };
    let report = lockkit_bench::run(&store, plan, &folder).await?;
    println!("{report}\n\nalso in {}", folder.join("report.md").display());
    Ok(())
}
