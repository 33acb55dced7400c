//! A service that works under locks, and shows their metrics to Prometheus.
//!
//! ```text
//! cargo run -p lockkit --features metrics --example prometheus -- memory: 127.0.0.1:9464
//! curl http://127.0.0.1:9464/metrics
//! ```
//!
//! One task leads for as long as it can; the others work on few orders, so that they wait for each other. One piece of
//! work in five hundred hangs, and `max_hold` ends its lock. The dashboard in `docs/dashboards/` shows what comes out.

use std::{env, net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use lockkit::LockClient;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

/// In seconds, from a grant on the same host to a wait for the ttl of a dead holder.
const BUCKETS: [f64; 13] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0];

/// In seconds. How close it comes to zero matters, so the steps are even.
const MARGIN_BUCKETS: [f64; 13] = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0];

const WORKERS: usize = 6;
const ORDERS: usize = 3;

/// How long a worker waits for an order before it takes another one.
const PATIENCE: Duration = Duration::from_millis(200);

/// After this time, work that hangs loses its lock.
const WORK_MAX: Duration = Duration::from_millis(500);

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let url = arguments.next().unwrap_or("memory:".into());
    let address = arguments.next().unwrap_or("127.0.0.1:9464".into());
    let stop = async { tokio::signal::ctrl_c().await.context("cannot wait for Ctrl-C") };
    run(&url, address.parse()?, stop).await
}

/// Serves until `stop` completes.
pub(crate) async fn run(
    url: &str,
    address: SocketAddr,
    stop: impl Future<Output = Result<()>>,
) -> Result<()> {
    // Before the first client, which starts its counters at zero.
    PrometheusBuilder::new()
        .with_recommended_naming(true)
        .set_buckets_for_metric(Matcher::Prefix("lockkit".into()), &BUCKETS)?
        .set_buckets_for_metric(Matcher::Full("lockkit.renewal.margin".into()), &MARGIN_BUCKETS)?
        .with_http_listener(address)
        .install()?;
    println!("http://{address}/metrics");

    let client = lockkit::connect(url).await?;
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(lead(client.clone()));
    for _ in 0..WORKERS {
        tasks.spawn(work_on_orders(client.clone()));
    }
    let stopped = tokio::select! {
        stopped = stop => stopped,
        Some(ended) = tasks.join_next() => ended?.map_err(Into::into),
    };
    // Drops the guards, and then sends their releases.
    tasks.shutdown().await;
    client.close().await?;
    stopped
}

/// Leads until the lock is lost, again and again.
async fn lead(client: LockClient) -> lockkit::Result<()> {
    loop {
        let guard = client.lock("scheduler")?.acquire().await?;
        eprintln!("leads no longer: {}", guard.lost().await);
    }
}

async fn work_on_orders(client: LockClient) -> lockkit::Result<()> {
    loop {
        let order = format!("orders/{}", fastrand::usize(..ORDERS));
        let lock = client.lock(order)?.max_hold(WORK_MAX);
        // An outage of the store is in the metrics, and no reason to end.
        match lock.acquire_timeout(PATIENCE).await {
            Ok(Some(guard)) => match guard.run(work()).await {
                Ok(()) => drop(guard.release().await),
                Err(lost) => eprintln!("{lost:#}"),
            },
            Ok(None) => {}
            Err(error) if error.is_temporary() => {}
            Err(error) => return Err(error),
        }
        tokio::time::sleep(Duration::from_millis(fastrand::u64(1..40))).await;
    }
}

/// A piece of work. It would send `guard.token()` with each write.
async fn work() {
    let hangs = fastrand::u16(..500) == 0;
    let time = if hangs { WORK_MAX * 2 } else { Duration::from_millis(fastrand::u64(2..60)) };
    tokio::time::sleep(time).await;
}
