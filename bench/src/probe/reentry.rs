//! W5: an owner acquires a lock that it holds, and releases it, in a loop.

use std::time::{Duration, Instant};

use anyhow::Result;
use lockkit::Owner;
use serde::{Deserialize, Serialize};

use super::{ANSWER_MAX, ConnectArguments};
use crate::{
    child::{self, Child, Problem},
    usage::own_cpu,
};

/// How many pairs are done between two looks at the clock.
const BATCH: u64 = 1_000;

/// What the process gets.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Job {
    connection: ConnectArguments,
    millis: u64,
}

/// Nanoseconds per pair of acquire and release.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Reentry {
    /// Of the wall clock.
    pub pair_ns: f64,
    /// Of CPU time.
    pub cpu_ns: f64,
}

pub(crate) async fn child(job: Job) -> Result<()> {
    let client = job.connection.open().await?;
    let lock = client.lock("bench-reentry")?.reentrant(&Owner::new());
    let outer = lock.acquire().await?;
    child::ready().await?;
    let (cpu, started, mut pairs) = (own_cpu(), Instant::now(), 0);
    while started.elapsed() < Duration::from_millis(job.millis) {
        for _ in 0..BATCH {
            lock.acquire().await?.release().await?;
        }
        pairs += BATCH;
    }
    let each = |time: Duration| time.as_nanos() as f64 / pairs as f64;
    let found = Reentry { pair_ns: each(started.elapsed()), cpu_ns: each(own_cpu().saturating_sub(cpu)) };
    outer.release().await?;
    child::report(&found).await?;
    Ok(client.close().await?)
}

pub(crate) async fn measure(connection: ConnectArguments, millis: u64) -> Result<Reentry, Problem> {
    let mut child = Child::own("reentry", &Job { connection, millis })?;
    child.ready(ANSWER_MAX).await?;
    child.go().await?;
    let found = child.result(ANSWER_MAX + Duration::from_millis(millis)).await?;
    child.end().await?;
    Ok(found)
}
