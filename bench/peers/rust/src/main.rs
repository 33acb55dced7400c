//! Locks of other Rust crates, as rows of the benchmark. `../README.md` has the job and the result.

mod engine;
mod record;
mod rows;

use std::{env, process::ExitCode};

use anyhow::{Context, Result};
use serde::Deserialize;

/// What the benchmark calls "missing", in contrast to "failed".
const MISSING: u8 = 3;

/// What to run.
#[derive(Debug, Deserialize)]
struct Job {
    row: String,
    servers: Vec<String>,
    clients: usize,
    /// Per client.
    tasks: usize,
    names: Names,
    name: String,
    hold_us: u64,
    pause_us: [u64; 2],
    ttl_ms: u64,
    /// Absent if each task acquires once.
    millis: Option<u64>,
    once: bool,
    #[serde(default = "settle_ms")]
    settle_ms: u64,
}

/// Whether all tasks want the same lock.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Names {
    Shared,
    Own,
}

fn settle_ms() -> u64 {
    1500
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<ExitCode> {
    let job = env::args().nth(1).context("the first argument must be a job")?;
    let job: Job = serde_json::from_str(&job).context("the job")?;
    match job.row.as_str() {
        "rslock" => engine::run::<rows::RsLock>(job).await?,
        "redlock" => engine::run::<rows::RedlockCrate>(job).await?,
        "distributed-lock" => engine::run::<rows::DistributedLock>(job).await?,
        "etcd-lock-rpc" => engine::run::<rows::EtcdLockRpc>(job).await?,
        "zookeeper-client-lock" => engine::run::<rows::ZooKeeperClient>(job).await?,
        row => {
            eprintln!("no row {row}");
            return Ok(ExitCode::from(MISSING));
        }
    }
    Ok(ExitCode::SUCCESS)
}
