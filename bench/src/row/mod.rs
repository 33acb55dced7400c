//! The rows of this crate, each in a process of its own.

mod etcd;
mod file;
mod lockkit;
mod memory;
mod push;
mod redis;
mod redlock;
mod run;
mod zookeeper;

use anyhow::{Result, bail};
use async_trait::async_trait;

pub(crate) use self::run::run;
use crate::{backend::Backend, job::Job, workload::Workload};

/// The beginning of lockkit's row names; the rest is the backend.
pub(crate) const LOCKKIT: &str = "lockkit-";

/// A client with a connection of its own.
#[async_trait]
trait Client: Send + Sync {
    /// Returns a lock, as one task uses it.
    async fn contender(&self, name: &str) -> Result<Box<dyn Contender>>;

    /// Closes the client, so that nothing of it remains when the next row runs.
    async fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// Acquires and releases one lock.
#[async_trait]
trait Contender: Send {
    /// Waits for the lock.
    async fn acquire(&mut self) -> Result<()>;

    async fn release(&mut self) -> Result<()>;
}

/// Returns the row of bare requests for a workload, if there is one.
pub(crate) fn raw(backend: Backend, workload: Workload) -> Option<&'static str> {
    let is_contended = !matches!(workload, Workload::W1 | Workload::W2);
    match backend {
        // There is no queue in a few requests; the peers have the server's Lock RPC.
        Backend::Etcd => (!is_contended).then_some("raw-etcd"),
        Backend::Zk => Some("raw-zk"),
        Backend::Redis if is_contended => Some("raw-push"),
        Backend::Redis => Some("raw-redis"),
        Backend::Redlock => (!is_contended).then_some("raw-redlock"),
        Backend::Memory => Some("raw-memory"),
        Backend::File => Some("raw-file"),
    }
}

async fn connect(job: &Job) -> Result<Box<dyn Client>> {
    if let Some(scheme) = job.row.strip_prefix(LOCKKIT) {
        return lockkit::connect(scheme, job).await;
    }
    match job.row.as_str() {
        "raw-etcd" => etcd::connect(job).await,
        "raw-zk" => zookeeper::connect(job).await,
        "raw-redis" => redis::connect(job).await,
        "raw-push" => push::connect(job).await,
        "raw-redlock" => redlock::connect(job).await,
        "raw-memory" => Ok(memory::client()),
        "raw-file" => file::client(job),
        row => bail!("no row {row}"),
    }
}

/// Returns what a row's version is.
fn version(job: &Job) -> String {
    match job.row.as_str() {
        "raw-etcd" => "bare requests of etcd-client".to_owned(),
        "raw-zk" => "bare requests of zookeeper-client".to_owned(),
        "raw-redis" => "two scripts with a fencing counter, crate redis".to_owned(),
        "raw-push" => "prototype that hands over by PUBLISH, crate redis".to_owned(),
        "raw-redlock" => "five SET NX, five scripts, unfenced, crate redis".to_owned(),
        "raw-memory" => "tokio's Mutex".to_owned(),
        "raw-file" => "two flock calls and a write".to_owned(),
        _ => format!("lockkit {}", env!("CARGO_PKG_VERSION")),
    }
}
