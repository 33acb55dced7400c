//! Redis without contention: a script that sets the key and mints a token, and one that compares and deletes.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use redis::{AsyncConnectionConfig, Script, aio::MultiplexedConnection};

use super::{Client, Contender};
use crate::job::Job;

/// Returns the token, or nothing when the key exists.
const TAKE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then \
                    return redis.call('INCR', KEYS[2]) end";

pub(super) const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// Longest time until a reply.
const RESPONSE_MAX: Duration = Duration::from_secs(10);

struct Raw {
    connection: MultiplexedConnection,
    scripts: Arc<[Script; 2]>,
    ttl_ms: u64,
}

struct RawContender {
    connection: MultiplexedConnection,
    scripts: Arc<[Script; 2]>,
    ttl_ms: u64,
    keys: [String; 2],
    /// The random value of the present hold.
    value: String,
}

pub(super) async fn connect(job: &Job) -> Result<Box<dyn Client>> {
    let server = job.servers.first().context("no server")?;
    let connection = open(server).await?;
    Ok(Box::new(Raw { connection, scripts: Arc::new([TAKE, RELEASE].map(Script::new)), ttl_ms: job.ttl_ms }))
}

pub(super) async fn open(server: &str) -> Result<MultiplexedConnection> {
    let client = redis::Client::open(format!("redis://{server}"))?;
    Ok(client.get_multiplexed_async_connection_with_config(&config()).await?)
}

/// A reply may take longer than half a second, the crate's limit, when a thousand clients compete for two cores.
pub(super) fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_response_timeout(Some(RESPONSE_MAX))
}

/// Returns a value that no other hold has.
pub(super) fn random_value() -> String {
    format!("{:032x}", fastrand::u128(..))
}

#[async_trait]
impl Client for Raw {
    async fn contender(&self, name: &str) -> Result<Box<dyn Contender>> {
        let keys = [format!("raw:{name}"), format!("raw:{name}:token")];
        let (connection, scripts) = (self.connection.clone(), Arc::clone(&self.scripts));
        Ok(Box::new(RawContender { connection, scripts, ttl_ms: self.ttl_ms, keys, value: String::new() }))
    }
}

#[async_trait]
impl Contender for RawContender {
    async fn acquire(&mut self) -> Result<()> {
        self.value = random_value();
        let mut take = self.scripts[0].prepare_invoke();
        take.key(&self.keys).arg(&self.value).arg(self.ttl_ms);
        let token: Option<u64> = take.invoke_async(&mut self.connection).await?;
        ensure!(token.is_some(), "the key exists");
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let mut release = self.scripts[1].prepare_invoke();
        release.key(&self.keys[0]).arg(&self.value);
        let deleted: u64 = release.invoke_async(&mut self.connection).await?;
        ensure!(deleted == 1, "the key was lost");
        Ok(())
    }
}
