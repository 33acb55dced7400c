//! W6: one client holds many locks, and does nothing but keep them.

use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::{StreamExt, TryStreamExt, stream};
use lockkit::LockGuard;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::{ANSWER_MAX, ConnectArguments};
use crate::{
    backend::Server,
    child::{self, Child, Problem},
    job::MISSING,
    usage::{Usage, own_cpu, own_memory},
};

/// How many locks are acquired or released at the same time.
const AT_A_TIME: usize = 64;

/// Open files besides those of the locks.
const OTHER_FILES: u64 = 100;

/// Longest time to acquire all locks.
const ACQUIRE_MAX: Duration = Duration::from_secs(120);

/// What the process gets.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Job {
    connection: ConnectArguments,
    count: usize,
    millis: u64,
}

/// What the process has used while it held the locks.
#[derive(Debug, Deserialize, Serialize)]
struct Used {
    cpu_us: u64,
    memory: u64,
    lost: usize,
}

/// What it costs to hold many locks.
#[derive(Clone, Debug, Serialize)]
pub struct Holds {
    /// How many locks.
    pub count: usize,
    /// Requests to the servers per second.
    pub requests_per_second: Option<f64>,
    /// CPU time of the client, of one core.
    pub client_core: f64,
    /// CPU time of the servers, of one core.
    pub server_core: Option<f64>,
    /// Memory of the client, in bytes per hold. Of few holds it is noise.
    pub client_bytes: f64,
    /// Memory of the servers, in bytes per hold, where they report it.
    pub server_bytes: Option<f64>,
    /// Holds that were lost, which none should be.
    pub lost: usize,
}

pub(crate) async fn child(job: Job) -> Result<()> {
    if !raise_open_files(job.count)? && job.connection.is_file() {
        eprintln!("the limit of open files is too low for {} locks", job.count);
        std::process::exit(MISSING);
    }
    let client = job.connection.open().await?;
    // The first hold starts what all holds share.
    let first = client.lock("bench-holds-first")?.acquire().await?;
    let memory = own_memory()?;
    let acquired = stream::iter(0..job.count)
        .map(|number| client.lock(format!("bench-holds-{number}")))
        .map(|lock| async { lock?.acquire().await });
    let guards: Vec<LockGuard> = acquired.buffer_unordered(AT_A_TIME).try_collect().await?;
    let memory = own_memory()?.saturating_sub(memory);
    first.release().await?;
    child::ready().await?;
    let cpu = own_cpu();
    sleep(Duration::from_millis(job.millis)).await;
    let cpu_us = own_cpu().saturating_sub(cpu).as_micros() as u64;
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    child::report(&Used { cpu_us, memory, lost }).await?;
    let released = stream::iter(guards).map(LockGuard::release).buffer_unordered(AT_A_TIME);
    released.try_collect::<()>().await?;
    Ok(client.close().await?)
}

/// Files need two open files per hold. Returns whether so many are allowed; fewer are enough for other stores.
fn raise_open_files(count: usize) -> Result<bool> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
        .context("raise the limit of open files")?;
    Ok(maximum.is_none_or(|maximum| maximum >= 2 * count as u64 + OTHER_FILES))
}

pub(crate) async fn measure(
    server: &Server,
    connection: ConnectArguments,
    count: usize,
    millis: u64,
) -> Result<Holds, Problem> {
    let memory_before = server.memory()?;
    let mut child = Child::own("holds", &Job { connection, count, millis })?;
    child.ready(ACQUIRE_MAX).await?;
    let before = server.usage()?;
    child.go().await?;
    let used: Used = child.result(ANSWER_MAX + Duration::from_millis(millis)).await?;
    let server_used = server.usage()?.zip(before).map(|(after, before): (Usage, Usage)| after - before);
    let memory = server.memory()?.zip(memory_before).map(|(after, before)| after.saturating_sub(before));
    child.end().await?;
    let seconds = millis as f64 / 1e3;
    let each = |bytes: u64| bytes as f64 / count as f64;
    Ok(Holds {
        count,
        requests_per_second: server_used.and_then(|used| Some(used.requests? as f64 / seconds)),
        client_core: used.cpu_us as f64 / 1e6 / seconds,
        server_core: server_used.map(|used| used.cpu_us as f64 / 1e6 / seconds),
        client_bytes: each(used.memory),
        server_bytes: memory.map(each),
        lost: used.lost,
    })
}
