//! W9: a flash sale. Buyers in two processes read a plain counter in Redis and write one less, under the lock: without it
//! they would sell more than there is, see `demo/`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use lockkit::Lock;
use lockkit_testbed::Redis;
use redis::{AsyncCommands, AsyncConnectionConfig, aio::MultiplexedConnection};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::{ANSWER_MAX, ConnectArguments};
use crate::child::{self, Child, Problem};

/// What is for sale.
const ITEMS: u32 = 300;

/// Who wants it, over all processes.
const BUYERS: u32 = 500;

const PROCESSES: u32 = 2;

/// Longest time for a sale. Waiters that poll need half a minute on a busy machine.
const SALE_MAX: Duration = Duration::from_secs(180);

/// The key of the counter.
const STOCK: &str = "stock";

/// What a process gets.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Job {
    connection: ConnectArguments,
    name: String,
    /// The Redis that has the counter.
    stock: String,
}

/// What a process has sold.
#[derive(Debug, Deserialize, Serialize)]
struct Sold {
    bought: u32,
    elapsed: Duration,
}

/// How the sale went.
#[derive(Clone, Debug, Serialize)]
pub struct Sale {
    /// How many were sold: 300.
    pub sold: u32,
    /// Buyers served per second, with or without an item.
    pub buyers_per_second: f64,
}

pub(crate) async fn child(job: Job) -> Result<()> {
    let client = job.connection.open().await?;
    // A reply may take longer than half a second, the crate's limit, while 500 buyers compete for two cores.
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_MAX));
    let stock = redis::Client::open(format!("redis://{}", job.stock))?;
    let stock = stock.get_multiplexed_async_connection_with_config(&config).await?;
    let lock = Arc::new(client.lock(&job.name)?);
    child::ready().await?;
    let (started, mut buyers, mut bought) = (Instant::now(), JoinSet::new(), 0);
    for _ in 0..BUYERS / PROCESSES {
        buyers.spawn(buy(Arc::clone(&lock), stock.clone()));
    }
    while let Some(ended) = buyers.join_next().await {
        bought += u32::from(ended??);
    }
    child::report(&Sold { bought, elapsed: started.elapsed() }).await?;
    Ok(client.close().await?)
}

/// Returns whether an item was left.
async fn buy(lock: Arc<Lock>, mut stock: MultiplexedConnection) -> Result<bool> {
    let guard = lock.acquire().await?;
    let left: u32 = stock.get(STOCK).await?;
    if left > 0 {
        stock.set::<_, _, ()>(STOCK, left - 1).await?;
    }
    guard.release().await?;
    Ok(left > 0)
}

pub(crate) async fn measure(connection: ConnectArguments) -> Result<Sale, Problem> {
    let redis = Redis::start_with(&["--appendonly", "no"])?;
    redis.cli(&["SET", STOCK, &ITEMS.to_string()])?;
    let name = format!("bench-sale-{:08x}", fastrand::u32(..));
    let job = Job { connection, name, stock: redis.endpoint() };
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        let mut process = Child::own("buyers", &job)?;
        process.ready(ANSWER_MAX).await?;
        processes.push(process);
    }
    for process in &mut processes {
        process.go().await?;
    }
    let (mut sold, mut longest) = (0, Duration::ZERO);
    for mut process in processes {
        let found: Sold = process.result(SALE_MAX).await?;
        sold += found.bought;
        longest = longest.max(found.elapsed);
        process.end().await?;
    }
    check(sold, &redis)?;
    Ok(Sale { sold, buyers_per_second: f64::from(BUYERS) / longest.as_secs_f64() })
}

fn check(sold: u32, redis: &Redis) -> Result<()> {
    ensure!(sold == ITEMS, "{sold} items were sold, not {ITEMS}");
    let left = redis.cli(&["GET", STOCK])?;
    ensure!(left.text() == "0", "{:?} items are left", left.text());
    Ok(())
}
