//! Other libraries that lock with `SET key value NX PX`, as redis-py does: who waits asks again every 100 ms, and a release
//! deletes the key.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use lockkit_core::{LockClient, backend::Session};
use lockkit_testbed::{Redis, Reply};
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

use crate::common::{
    LONG, acquire, backend, bounded, enqueued, fresh_name, is_gave_up, release, session_at, try_acquire,
    until,
};

const KEY: &str = "shared/lock";

/// How often redis-py asks.
const POLL_PAUSE: Duration = Duration::from_millis(100);

/// How long each of them is inside.
const INSIDE: Duration = Duration::from_millis(2);

/// Sections that each side is to have.
const SECTIONS: u32 = 10;

/// What redis-py deletes its own lock with.
const RELEASE: &str =
    "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end return redis.call('del', KEYS[1])";

/// A client of another library.
struct Poller {
    connection: MultiplexedConnection,
    token: String,
}

impl Poller {
    async fn connect(redis: &Redis) -> Self {
        let client = redis::Client::open(redis.url()).unwrap();
        let connection = client.get_multiplexed_async_connection().await.unwrap();
        Self { connection, token: format!("{:032x}", fastrand::u128(..)) }
    }

    async fn acquire(&mut self) {
        let set = redis::cmd("SET").arg(KEY).arg(&self.token).arg("NX").arg("PX").arg(60_000).to_owned();
        while set.query_async::<Option<String>>(&mut self.connection).await.unwrap().is_none() {
            tokio::time::sleep(POLL_PAUSE).await;
        }
    }

    async fn release(&mut self) {
        let released = redis::cmd("EVAL").arg(RELEASE).arg(1).arg(KEY).arg(&self.token).to_owned();
        let deleted: u32 = released.query_async(&mut self.connection).await.unwrap();
        assert_eq!(deleted, 1, "somebody else has deleted it");
    }
}

fn url_of(redis: &Redis) -> String {
    format!("{}/?names=raw", redis.url())
}

/// Whoever is inside, alone.
#[derive(Debug, Default)]
struct Section {
    inside: AtomicU32,
    ours: AtomicU32,
    theirs: AtomicU32,
}

impl Section {
    async fn work(&self, count: &AtomicU32) {
        assert_eq!(self.inside.fetch_add(1, SeqCst), 0, "two are inside");
        tokio::time::sleep(INSIDE).await;
        self.inside.fetch_sub(1, SeqCst);
        count.fetch_add(1, SeqCst);
    }

    fn is_over(&self) -> bool {
        self.ours.load(SeqCst) >= SECTIONS && self.theirs.load(SeqCst) >= SECTIONS
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pollers_and_our_clients_both_get_the_lock() {
    let redis = Redis::start().unwrap();
    let (section, mut tasks) = (Arc::new(Section::default()), JoinSet::new());
    for _ in 0..3 {
        let client = LockClient::builder(backend(&url_of(&redis))).build().await.unwrap();
        let section = Arc::clone(&section);
        tasks.spawn(async move {
            let lock = client.lock(KEY).unwrap();
            while !section.is_over() {
                let guard = lock.acquire().await.unwrap();
                section.work(&section.ours).await;
                guard.release().await.unwrap();
            }
        });
    }
    for _ in 0..2 {
        let (mut poller, section) = (Poller::connect(&redis).await, Arc::clone(&section));
        tasks.spawn(async move {
            while !section.is_over() {
                poller.acquire().await;
                section.work(&section.theirs).await;
                poller.release().await;
            }
        });
    }
    bounded(async {
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    })
    .await;
    println!("{section:?}");
}

/// Nobody notifies us of that.
#[tokio::test(flavor = "multi_thread")]
async fn lock_that_a_poller_releases_is_ours_long_before_a_third_of_our_ttl() {
    let redis = Redis::start().unwrap();
    let session: Arc<dyn Session> = session_at(&url_of(&redis), LONG).await;
    let mut poller = Poller::connect(&redis).await;
    poller.acquire().await;
    let name = crate::common::name(KEY);
    assert!(is_gave_up(&try_acquire(&session, &name).await));
    let waiter = enqueued(&session, &name).await;
    assert_eq!(redis.keys("lockkit:*queue*").unwrap(), [""; 0]);
    poller.release().await;
    let granted = tokio::time::timeout(LONG / 10, waiter.granted()).await.expect("by a poll of ours");
    let nx = redis.cli(&["SET", KEY, "theirs", "NX", "PX", "60000"]).unwrap();
    assert_eq!(nx, Reply::Nil, "they are excluded");
    release(&session, &granted).await;
    poller.acquire().await;
    poller.release().await;
}

/// Redisson's lock is a hash, as its scripts create it.
#[tokio::test(flavor = "multi_thread")]
async fn lock_that_is_a_hash_excludes_us_and_ours_is_no_hash() {
    let redis = Redis::start().unwrap();
    let session = session_at(&url_of(&redis), LONG).await;
    let name = fresh_name();
    redis.cli(&["HINCRBY", name.as_str(), "uuid:1", "1"]).unwrap();
    redis.cli(&["PEXPIRE", name.as_str(), "60000"]).unwrap();
    assert!(is_gave_up(&try_acquire(&session, &name).await));
    redis.cli(&["DEL", name.as_str()]).unwrap();
    let grant = acquire(&session, &name).await;
    let theirs = redis.cli(&["HEXISTS", name.as_str(), "uuid:1"]).unwrap_err();
    assert!(theirs.to_string().starts_with("WRONGTYPE"), "{theirs}");
    release(&session, &grant).await;
    until("it is free", async || redis.keys(name.as_str()).unwrap().is_empty()).await;
}
