//! Eight clients contend for one lock: the share of each, and the time of a handoff compared with a bare notification.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use lockkit_core::LockClient;
use lockkit_testbed::Redis;
use redis::{
    Client, PushInfo, PushKind,
    aio::{ConnectionLike, MultiplexedConnection},
};
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    common::{LONG, backend, bounded},
    patient::patient,
};

const CONTENDERS: usize = 8;

const HANDOFFS: usize = 4_000;

/// Handoffs that are not counted, because the contenders start one after another.
const BEGINNING: usize = 10 * CONTENDERS;

#[derive(Debug, Default)]
struct Seen {
    grants: Vec<usize>,
    times: Vec<Duration>,
    released: Option<Instant>,
}

/// Acquires and releases the lock until there were enough handoffs.
async fn contend(number: usize, client: LockClient, seen: Arc<Mutex<Seen>>) {
    let lock = client.lock("fair").unwrap();
    loop {
        let guard = bounded(lock.acquire()).await.unwrap();
        let granted = Instant::now();
        let is_over = {
            let mut seen = seen.lock().unwrap();
            let released = seen.released.replace(granted);
            seen.times.extend(released.map(|released| granted - released));
            seen.grants.push(number);
            seen.released = Some(Instant::now());
            seen.grants.len() >= HANDOFFS
        };
        bounded(guard.release()).await.unwrap();
        if is_over {
            return;
        }
    }
}

/// Measures the times from sending a PUBLISH to the answer to one EVALSHA of its subscriber.
async fn bare(redis: &Redis, rounds: usize) -> Vec<Duration> {
    let client = Client::open(format!("{}/?protocol=resp3", redis.url())).unwrap();
    let (sender, mut pushes) = mpsc::unbounded_channel::<PushInfo>();
    let mut publisher = client.get_multiplexed_async_connection_with_config(&patient()).await.unwrap();
    let config = patient().set_push_sender(sender);
    let mut subscriber = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    subscriber.subscribe("bare").await.unwrap();
    let script: String =
        redis::cmd("SCRIPT").arg("LOAD").arg("return 1").query_async(&mut publisher).await.unwrap();
    let (publish, evaluate) = (
        redis::cmd("PUBLISH").arg("bare").arg("next").to_owned(),
        redis::cmd("EVALSHA").arg(script).arg(0).to_owned(),
    );
    let mut times = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        let mut receive = async |connection: &mut MultiplexedConnection| {
            while pushes.recv().await.unwrap().kind != PushKind::Message {}
            connection.req_packed_command(&evaluate).await.unwrap();
            start.elapsed()
        };
        let both = async { tokio::join!(receive(&mut subscriber), publisher.req_packed_command(&publish)) };
        let (elapsed, _) = bounded(both).await;
        times.push(elapsed);
    }
    times
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_contenders_have_equal_shares() {
    let redis = Redis::start().unwrap();
    let mut raw = bare(&redis, HANDOFFS / 8).await;
    let (seen, mut tasks) = (Arc::new(Mutex::new(Seen::default())), JoinSet::new());
    for number in 0..CONTENDERS {
        let client = LockClient::builder(backend(&redis.url())).ttl(LONG).build().await.unwrap();
        tasks.spawn(contend(number, client, Arc::clone(&seen)));
    }
    tasks.join_all().await;
    raw.extend(bare(&redis, HANDOFFS / 8).await);

    let mut seen = seen.lock().unwrap();
    let grants = &seen.grants[BEGINNING..HANDOFFS];
    let fair = grants.len() as f64 / CONTENDERS as f64;
    let shares: Vec<f64> = (0..CONTENDERS)
        .map(|number| grants.iter().filter(|&&granted| granted == number).count() as f64 / fair)
        .collect();
    let retakes = grants.windows(2).filter(|pair| pair[0] == pair[1]).count() as f64 / grants.len() as f64;
    let (ours, least) = (median(std::mem::take(&mut seen.times)), median(raw));
    println!("shares {shares:.3?}, granted again to the releasing client: {:.2} %", 100.0 * retakes);
    println!(
        "handoff p50 {ours:?}; a bare PUBLISH received and one EVALSHA {least:?}; ratio {:.2}",
        ours.as_secs_f64() / least.as_secs_f64()
    );
    assert!(shares.iter().all(|share| (0.95..=1.05).contains(share)), "{shares:?}");
    assert!(retakes < 0.05, "{retakes}");
}
