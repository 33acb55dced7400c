//! W8: the holder is killed, as by `kill -9`. The next one is granted the lock when the dead one's lease has ended.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::{ANSWER_MAX, ConnectArguments, now};
use crate::{
    backend::Backend,
    child::{self, Child, Problem},
};

/// When the second process is taken to wait, after it has called acquire.
const SETTLE: Duration = Duration::from_millis(500);

/// One and a half ticks of the testbed's ZooKeeper.
const ZOOKEEPER_TICKS: Duration = Duration::from_millis(750);

/// How many times the bound this waits: what is later is a failure.
const PATIENCE: u32 = 4;

/// What the process gets.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Job {
    connection: ConnectArguments,
    name: String,
    /// It waits for the lock, and reports when it was granted. Otherwise it holds the lock until it is killed.
    waits: bool,
}

/// When the waiting process was granted the lock.
#[derive(Debug, Deserialize, Serialize)]
struct Granted {
    at: Duration,
    ttl: Duration,
}

/// How long a dead holder has kept the lock.
#[derive(Clone, Debug, Serialize)]
pub struct Takeover {
    /// From the kill to the next grant.
    pub took_ms: f64,
    /// The bound of docs/guarantees.md.
    pub bound_ms: f64,
}

pub(crate) async fn child(job: Job) -> Result<()> {
    let client = job.connection.open().await?;
    let lock = client.lock(&job.name)?;
    if !job.waits {
        let _guard = lock.acquire().await?;
        child::ready().await?;
        return std::future::pending().await;
    }
    let waiting = tokio::spawn(async move { lock.acquire().await.map(|guard| (now(), guard)) });
    sleep(SETTLE).await;
    child::ready().await?;
    let (at, guard) = waiting.await??;
    child::report(&Granted { at, ttl: client.ttl() }).await?;
    guard.release().await?;
    Ok(client.close().await?)
}

pub(crate) async fn measure(
    backend: Backend,
    connection: ConnectArguments,
    ttl: Duration,
) -> Result<Takeover, Problem> {
    let name = format!("bench-takeover-{:08x}", fastrand::u32(..));
    let job = |waits| Job { connection: connection.clone(), name: name.clone(), waits };
    let mut holder = Child::own("takeover", &job(false))?;
    holder.ready(ANSWER_MAX).await?;
    let mut waiter = Child::own("takeover", &job(true))?;
    waiter.ready(ANSWER_MAX).await?;
    waiter.go().await?;
    // At any moment between two heartbeats.
    sleep(ttl.mul_f64(fastrand::f64() / 3.0)).await;
    let killed = now();
    holder.kill()?;
    let granted: Granted = waiter.result(bound(backend, ttl) * PATIENCE + ANSWER_MAX).await?;
    waiter.end().await?;
    let took = granted.at.saturating_sub(killed);
    let bound = bound(backend, granted.ttl);
    Ok(Takeover { took_ms: took.as_secs_f64() * 1e3, bound_ms: bound.as_secs_f64() * 1e3 })
}

/// The bound of docs/guarantees.md while no leader changes; for files, "at once".
fn bound(backend: Backend, ttl: Duration) -> Duration {
    match backend {
        Backend::Etcd => ttl + Duration::from_secs(1),
        Backend::Zk => ttl + ZOOKEEPER_TICKS,
        Backend::Redis | Backend::Redlock | Backend::Memory => ttl,
        Backend::File => Duration::ZERO,
    }
}
