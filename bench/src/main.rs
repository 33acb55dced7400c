//! Measures lockkit on a server of its own: `cargo xtask bench zk`.

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use clap::Parser;
use lockkit_bench::Plan;

/// Measures lockkit beside bare requests and other locks, and prints a table.
#[derive(Debug, Parser)]
struct Arguments {
    /// redis or zk
    store: String,
    /// How often the rows take turns
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// How long each row runs in each round, for each workload
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Where report.md and report.json go
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
