//! Eight clients at one lock: what each of them gets, and what a hand-over costs beside the least that it can.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use lockkit_core::LockClient;
use lockkit_testbed::Redis;
use redis::{
    AsyncConnectionConfig, Client, PushInfo, PushKind,
    aio::{ConnectionLike, MultiplexedConnection},
};
use tokio::{sync::mpsc, task::JoinSet};

use crate::common::{LONG, backend, bounded};

const CONTENDERS: usize = 8;

const HAND_OVERS: usize = 4_000;

/// Hand-overs that are left out: the contenders begin one after another.
const BEGINNING: usize = 10 * CONTENDERS;

#[derive(Debug, Default)]
struct Seen {
    grants: Vec<usize>,
    times: Vec<Duration>,
    released: Option<Instant>,
}

/// Takes and releases the lock until there were enough hand-overs.
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
            seen.grants.len() >= HAND_OVERS
        };
        bounded(guard.release()).await.unwrap();
        if is_over {
            return;
        }
    }
}

/// From sending a PUBLISH to the answer to one EVALSHA of whoever hears it.
async fn bare(redis: &Redis, rounds: usize) -> Vec<Duration> {
    let client = Client::open(format!("{}/?protocol=resp3", redis.url())).unwrap();
    let (sender, mut pushes) = mpsc::unbounded_channel::<PushInfo>();
    let config = AsyncConnectionConfig::new().set_push_sender(sender);
    let mut hearing = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    let mut saying = client.get_multiplexed_async_connection().await.unwrap();
    hearing.subscribe("bare").await.unwrap();
    let script: String =
        redis::cmd("SCRIPT").arg("LOAD").arg("return 1").query_async(&mut saying).await.unwrap();
    let (publish, evaluate) = (
        redis::cmd("PUBLISH").arg("bare").arg("next").to_owned(),
        redis::cmd("EVALSHA").arg(script).arg(0).to_owned(),
    );
    let mut times = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        let mut hear = async |connection: &mut MultiplexedConnection| {
            while pushes.recv().await.unwrap().kind != PushKind::Message {}
            connection.req_packed_command(&evaluate).await.unwrap();
            start.elapsed()
        };
        let both = async { tokio::join!(hear(&mut hearing), saying.req_packed_command(&publish)) };
        let (heard, _) = bounded(both).await;
        times.push(heard);
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
    let mut raw = bare(&redis, HAND_OVERS / 8).await;
    let (seen, mut tasks) = (Arc::new(Mutex::new(Seen::default())), JoinSet::new());
    for number in 0..CONTENDERS {
        let client = LockClient::builder(backend(&redis.url())).ttl(LONG).build().await.unwrap();
        tasks.spawn(contend(number, client, Arc::clone(&seen)));
    }
    tasks.join_all().await;
    raw.extend(bare(&redis, HAND_OVERS / 8).await);

    let mut seen = seen.lock().unwrap();
    let grants = &seen.grants[BEGINNING..HAND_OVERS];
    let fair = grants.len() as f64 / CONTENDERS as f64;
    let shares: Vec<f64> = (0..CONTENDERS)
        .map(|number| grants.iter().filter(|&&granted| granted == number).count() as f64 / fair)
        .collect();
    let retakes = grants.windows(2).filter(|pair| pair[0] == pair[1]).count() as f64 / grants.len() as f64;
    let (ours, least) = (median(std::mem::take(&mut seen.times)), median(raw));
    println!("shares {shares:.3?}, taken again by who released: {:.2} %", 100.0 * retakes);
    println!(
        "hand-over p50 {ours:?}; a bare PUBLISH heard and one EVALSHA {least:?}; ratio {:.2}",
        ours.as_secs_f64() / least.as_secs_f64()
    );
    assert!(shares.iter().all(|share| (0.95..=1.05).contains(share)), "{shares:?}");
    assert!(retakes < 0.05, "{retakes}");
}
