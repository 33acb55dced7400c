//! Other libraries that lock with `SET key value NX PX`, such as redis-py: a waiter polls every 100 ms, and a release
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

use crate::{
    common::{
        LONG, acquire, backend, bounded, enqueued, fresh_name, is_gave_up, release, session_at, try_acquire,
        until,
    },
    patient::patient,
};

const KEY: &str = "shared/lock";

/// The poll pause of redis-py.
const POLL_PAUSE: Duration = Duration::from_millis(100);

/// How long each client holds the lock.
const INSIDE: Duration = Duration::from_millis(2);

/// How often each side must get the lock.
const SECTIONS: u32 = 10;

/// The script with which redis-py deletes its own lock.
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
        let connection = client.get_multiplexed_async_connection_with_config(&patient()).await.unwrap();
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
        assert_eq!(deleted, 1, "another client has deleted the lock");
    }
}

fn url_of(redis: &Redis) -> String {
    format!("{}/?names=raw", redis.url())
}

/// The section that the lock protects, and how often each side entered it.
#[derive(Debug, Default)]
struct Section {
    inside: AtomicU32,
    by_lockkit: AtomicU32,
    by_pollers: AtomicU32,
}

impl Section {
    async fn work(&self, count: &AtomicU32) {
        assert_eq!(self.inside.fetch_add(1, SeqCst), 0, "two clients hold the lock");
        tokio::time::sleep(INSIDE).await;
        self.inside.fetch_sub(1, SeqCst);
        count.fetch_add(1, SeqCst);
    }

    fn is_over(&self) -> bool {
        self.by_lockkit.load(SeqCst) >= SECTIONS && self.by_pollers.load(SeqCst) >= SECTIONS
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pollers_and_lockkit_clients_both_get_the_lock() {
    let redis = Redis::start().unwrap();
    let (section, mut tasks) = (Arc::new(Section::default()), JoinSet::new());
    for _ in 0..3 {
        let client = LockClient::builder(backend(&url_of(&redis))).build().await.unwrap();
        let section = Arc::clone(&section);
        tasks.spawn(async move {
            let lock = client.lock(KEY).unwrap();
            while !section.is_over() {
                let guard = lock.acquire().await.unwrap();
                section.work(&section.by_lockkit).await;
                guard.release().await.unwrap();
            }
        });
    }
    for _ in 0..2 {
        let (mut poller, section) = (Poller::connect(&redis).await, Arc::clone(&section));
        tasks.spawn(async move {
            while !section.is_over() {
                poller.acquire().await;
                section.work(&section.by_pollers).await;
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

/// The release of a poller notifies nobody; the waiter polls.
#[tokio::test(flavor = "multi_thread")]
async fn lock_released_by_a_poller_is_granted_within_a_tenth_of_the_ttl() {
    let redis = Redis::start().unwrap();
    let session: Arc<dyn Session> = session_at(&url_of(&redis), LONG).await;
    let mut poller = Poller::connect(&redis).await;
    poller.acquire().await;
    let name = crate::common::name(KEY);
    assert!(is_gave_up(&try_acquire(&session, &name).await));
    let waiter = enqueued(&session, &name).await;
    assert_eq!(redis.keys("lockkit:*queue*").unwrap(), [""; 0]);
    poller.release().await;
    let granted = tokio::time::timeout(LONG / 10, waiter.granted()).await.expect("granted by a poll");
    let nx = redis.cli(&["SET", KEY, "theirs", "NX", "PX", "60000"]).unwrap();
    assert_eq!(nx, Reply::Nil, "the other library is excluded");
    release(&session, &granted).await;
    poller.acquire().await;
    poller.release().await;
}

/// Redisson's lock is a hash, as its scripts create it.
#[tokio::test(flavor = "multi_thread")]
async fn hash_locks_and_string_locks_exclude_each_other() {
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
