//! What idle waiters cost the server: CPU time of an etcd while many callers wait for one lock that nobody releases.
//!
//! ```text
//! cargo run -p lockkit-etcd --example idle_waiters -- [WAITERS] [TTL in s] [SECONDS]
//! ```

use std::time::Duration;

use lockkit_core::{LockClient, backend::BackendUrl};
use lockkit_etcd::{EtcdBackend, EtcdConfig};
use lockkit_testbed::{Etcd, Metrics};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Number of clients that share the waiters.
const CLIENTS: usize = 10;

/// Ticks of `/proc/PID/stat` per second (`USER_HZ`: 100 on every architecture of Linux that etcd runs on).
const TICKS_PER_SECOND: f64 = 100.0;

/// Waiters that start at a time. The cost of each one grows with the queue.
const AT_ONCE: usize = 100;

/// Pause between two checks whether all are queued.
const LOOK_PAUSE: Duration = Duration::from_millis(200);

#[tokio::main]
async fn main() -> Result {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let mut next = |default| arguments.next().unwrap_or(Ok(default));
    let (waiters, ttl, seconds) = (next(1000)? as usize, next(15)?, next(60)?);
    let etcd = Etcd::start()?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let backend = EtcdBackend::new(EtcdConfig::from_url(BackendUrl::parse(&etcd.url())?)?);
        clients.push(LockClient::builder(backend).ttl(Duration::from_secs(ttl)).build().await?);
    }
    let held = clients[0].lock("idle")?.acquire().await?;
    for number in 0..waiters {
        let lock = clients[number % CLIENTS].lock("idle")?;
        tokio::spawn(async move { lock.acquire().await });
        let started = number + 1;
        while started.is_multiple_of(AT_ONCE) && etcd.keys("lockkit/idle/")?.len() <= started {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }
    // Their first re-checks come at the same time; skip them.
    tokio::time::sleep(Duration::from_secs(ttl)).await;
    let (cpu, before) = (cpu_seconds(&etcd)?, etcd.metrics()?);
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let (used, after) = (cpu_seconds(&etcd)? - cpu, etcd.metrics()?);
    let counted = |count: fn(&Metrics) -> u64| count(&after) - count(&before);
    println!(
        "{waiters} waiters, ttl {ttl} s: {:.3} of a core over {seconds} s; {} ranges, {} transactions, \
         {} messages on watch streams",
        used / seconds as f64,
        counted(|metrics| metrics.grpc_handled("Range")),
        counted(|metrics| metrics.grpc_handled("Txn")),
        counted(|metrics| metrics.grpc_received("Watch")),
    );
    assert!(held.is_held(), "the machine was too slow to renew the lock");
    Ok(())
}

/// User and system time of the server.
fn cpu_seconds(etcd: &Etcd) -> Result<f64> {
    let pid = etcd.pid().ok_or("the server is not running")?;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The fields behind the name, which is in brackets: state is field 3, user and system time are fields 14 and 15.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok(ticks as f64 / TICKS_PER_SECOND)
}
