//! Redis with contention: a prototype of the fewest requests that a queue needs. Acquire or enqueue; the release hands the
//! lock over and publishes the grant. Nothing is renewed, confirmed, repeated or cleaned up.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use anyhow::{Context, Result};
use async_trait::async_trait;
use lockkit_core::support::lock;
use redis::{FromRedisValue, PushKind};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{
    Client, Contender,
    redis::{Scripts, config, random_value},
};
use crate::job::Job;

/// Acquires the lock, or joins its queue.
const TAKE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then \
                    return redis.call('INCR', KEYS[3]) end \
                    redis.call('RPUSH', KEYS[2], ARGV[1]) return 0";

/// Hands the lock to the first in the queue, with a token, and notifies it.
const HAND_OVER: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
                         local next = redis.call('LPOP', KEYS[2]) \
                         if not next then return redis.call('DEL', KEYS[1]) end \
                         redis.call('SET', KEYS[1], next, 'PX', ARGV[2]) \
                         redis.call('PUBLISH', next, redis.call('INCR', KEYS[3])) return 1";

/// Where the grants of a client's contenders go, by channel.
type Grants = Arc<Mutex<HashMap<Vec<u8>, UnboundedSender<()>>>>;

struct Push {
    scripts: Scripts,
    grants: Grants,
}

struct PushContender {
    scripts: Scripts,
    keys: [String; 3],
    /// Its entry in the queue, and its channel.
    own: String,
    granted: UnboundedReceiver<()>,
}

pub(super) async fn connect(job: &Job) -> Result<Box<dyn Client>> {
    let server = job.servers.first().context("no server")?;
    let client = redis::Client::open(format!("redis://{server}/?protocol=resp3"))?;
    let (sender, mut pushes) = unbounded_channel::<redis::PushInfo>();
    let config = config().set_push_sender(sender);
    let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    let grants = Grants::default();
    let receivers = Arc::clone(&grants);
    tokio::spawn(async move {
        while let Some(push) = pushes.recv().await {
            let channel =
                push.data.into_iter().next().and_then(|value| Vec::<u8>::from_redis_value(value).ok());
            if let (PushKind::Message, Some(channel)) = (push.kind, channel)
                && let Some(receiver) = lock(&receivers).get(&channel)
            {
                // A contender that has ended needs no grant.
                let _ = receiver.send(());
            }
        }
    });
    Ok(Box::new(Push { scripts: Scripts::new(connection, [TAKE, HAND_OVER], job.ttl_ms), grants }))
}

#[async_trait]
impl Client for Push {
    async fn contender(&self, name: &str) -> Result<Box<dyn Contender>> {
        let own = random_value();
        let (sender, granted) = unbounded_channel();
        lock(&self.grants).insert(own.clone().into_bytes(), sender);
        let mut scripts = self.scripts.clone();
        scripts.connection.subscribe(&own).await?;
        let keys = ["", ":queue", ":token"].map(|part| format!("push:{name}{part}"));
        Ok(Box::new(PushContender { scripts, keys, own, granted }))
    }
}

impl PushContender {
    async fn run(&mut self, nth: usize) -> Result<u64> {
        let ttl = Arc::clone(&self.scripts.ttl);
        self.scripts.run(nth, &self.keys, &[&self.own, &ttl]).await
    }
}

#[async_trait]
impl Contender for PushContender {
    async fn acquire(&mut self) -> Result<()> {
        if self.run(0).await? == 0 {
            self.granted.recv().await.context("the connection has ended")?;
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        self.run(1).await.map(drop)
    }
}
