//! Redis: bare requests, lockkit, and the lock of another crate.

use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use lockkit_testbed::Redis;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, Script, aio::MultiplexedConnection};
use rslock::{LockGuard, LockManager};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::{
    ours::Lockkit,
    store::{Contender, Row, Store},
    usage::{Usage, cpu_of},
};

/// The same for all rows.
const TTL: Duration = Duration::from_secs(10);

/// Acquires the lock, or joins its queue.
const TAKE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
redis.call('RPUSH', KEYS[2], ARGV[1])
return 0";

/// Restarts the lifetime of a lock that was handed off.
const CONFIRM: &str = "return redis.call('PEXPIRE', KEYS[1], ARGV[1])";

/// Hands the lock off to the first in the queue, and notifies it.
const HAND_OFF: &str = "local next = redis.call('LPOP', KEYS[2])
if not next then return redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], next, 'PX', ARGV[1])
return redis.call('PUBLISH', next, next)";

/// A single server.
pub(crate) struct RedisStore(Redis);

impl RedisStore {
    pub(crate) fn start() -> Result<Self> {
        Ok(Self(Redis::start()?))
    }
}

impl Store for RedisStore {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn conditions(&self) -> Vec<(String, String)> {
        let info = self.0.cli(&["INFO", "server"]);
        let info = info.as_ref().map_or("", |info| info.text());
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("unknown");
        let durability = "one server, its appended file synced once a second";
        [("server", format!("Redis {version}")), ("durability", durability.to_owned())]
            .map(|(what, value)| (what.to_owned(), value))
            .into()
    }

    fn rows(&self) -> Vec<Box<dyn Row>> {
        let url = self.0.url();
        vec![
            Box::new(Raw(url.clone())),
            Box::new(Lockkit { url: url.clone(), ttl: TTL }),
            Box::new(Polling(url)),
        ]
    }

    fn usage(&self) -> Result<Usage> {
        let stats = self.0.cli(&["INFO", "stats"])?;
        // Not its counters of commands: they include calls from scripts. No client here pipelines requests, so that a
        // read of the server is one request.
        let count = |name| stats.text().lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
        let counts = count("total_reads_processed:").zip(count("total_writes_processed:"));
        let (received, sent) = counts.context("the server reports no counters")?;
        let pid = self.0.pid().context("the server is not running")?;
        Ok(Usage { received, sent, cpu: cpu_of(pid)? })
    }
}

/// The fewest requests that a queue needs: acquire or enqueue, receive the notification, confirm, hand off. Nothing is
/// renewed, repeated, checked or cleaned up.
struct Raw(String);

struct RawContender {
    connection: MultiplexedConnection,
    pushes: UnboundedReceiver<PushInfo>,
    own: String,
    keys: [String; 2],
    scripts: [Script; 3],
}

impl RawContender {
    async fn notified(&mut self) -> Result<()> {
        while self.pushes.recv().await.context("the connection has ended")?.kind != PushKind::Message {}
        Ok(())
    }
}

#[async_trait]
impl Row for Raw {
    fn name(&self) -> &'static str {
        "raw"
    }

    async fn contender(&self, lock: &str) -> Result<Box<dyn Contender>> {
        let client = Client::open(format!("{}/?protocol=resp3", self.0))?;
        let (sender, pushes) = unbounded_channel();
        let config = AsyncConnectionConfig::new().set_push_sender(sender);
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let own = format!("{:032x}", fastrand::u128(..));
        connection.subscribe(&own).await?;
        let keys = [format!("raw:{lock}"), format!("raw:{lock}:queue")];
        let scripts = [TAKE, CONFIRM, HAND_OFF].map(Script::new);
        Ok(Box::new(RawContender { connection, pushes, own, keys, scripts }))
    }
}

#[async_trait]
impl Contender for RawContender {
    async fn acquire(&mut self) -> Result<()> {
        let ttl = TTL.as_millis() as u64;
        let mut take = self.scripts[0].prepare_invoke();
        take.key(&self.keys).arg(&self.own).arg(ttl);
        if take.invoke_async::<u64>(&mut self.connection).await? == 1 {
            return Ok(());
        }
        self.notified().await?;
        let mut confirm = self.scripts[1].prepare_invoke();
        confirm.key(&self.keys).arg(ttl);
        Ok(confirm.invoke_async(&mut self.connection).await?)
    }

    async fn release(&mut self) -> Result<()> {
        let mut hand_off = self.scripts[2].prepare_invoke();
        hand_off.key(&self.keys).arg(TTL.as_millis() as u64);
        Ok(hand_off.invoke_async(&mut self.connection).await?)
    }

    async fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// The lock of crate rslock: SET NX, repeated after up to 200 ms.
struct Polling(String);

struct PollingContender {
    manager: LockManager,
    lock: String,
    held: Option<LockGuard>,
}

#[async_trait]
impl Row for Polling {
    fn name(&self) -> &'static str {
        "rslock"
    }

    async fn contender(&self, lock: &str) -> Result<Box<dyn Contender>> {
        let manager = LockManager::new(vec![self.0.clone()]);
        Ok(Box::new(PollingContender { manager, lock: format!("rslock:{lock}"), held: None }))
    }
}

#[async_trait]
impl Contender for PollingContender {
    async fn acquire(&mut self) -> Result<()> {
        self.held = Some(self.manager.acquire(&*self.lock, TTL).await?);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        self.held.take().context("not held")?.release().await;
        Ok(())
    }

    async fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
