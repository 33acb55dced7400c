//! Redis without contention: a script that sets the key and mints a token, and one that compares and deletes.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use redis::{AsyncConnectionConfig, FromRedisValue, Script, aio::MultiplexedConnection};

use super::{Client, Contender};
use crate::job::Job;

/// Returns the token, or nothing when the key exists.
const TAKE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then \
                    return redis.call('INCR', KEYS[2]) end";

pub(super) const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// Longest time until a reply.
const RESPONSE_MAX: Duration = Duration::from_secs(10);

/// A connection, the two scripts that are run over it, and the ttl in ms.
#[derive(Clone)]
pub(super) struct Scripts {
    pub(super) connection: MultiplexedConnection,
    scripts: Arc<[Script; 2]>,
    pub(super) ttl: Arc<str>,
}

impl Scripts {
    pub(super) fn new(connection: MultiplexedConnection, scripts: [&str; 2], ttl_ms: u64) -> Self {
        Self { connection, scripts: Arc::new(scripts.map(Script::new)), ttl: ttl_ms.to_string().into() }
    }

    /// Runs the first or the second script.
    pub(super) async fn run<T: FromRedisValue>(
        &mut self,
        nth: usize,
        keys: &[String],
        arguments: &[&str],
    ) -> Result<T> {
        let mut call = self.scripts[nth].prepare_invoke();
        Ok(call.key(keys).arg(arguments).invoke_async(&mut self.connection).await?)
    }
}

struct Raw(Scripts);

struct RawContender {
    scripts: Scripts,
    keys: [String; 2],
    /// The random value of the present hold.
    value: String,
}

pub(super) async fn connect(job: &Job) -> Result<Box<dyn Client>> {
    let server = job.servers.first().context("no server")?;
    Ok(Box::new(Raw(Scripts::new(open(server).await?, [TAKE, RELEASE], job.ttl_ms))))
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
        Ok(Box::new(RawContender { scripts: self.0.clone(), keys, value: String::new() }))
    }
}

#[async_trait]
impl Contender for RawContender {
    async fn acquire(&mut self) -> Result<()> {
        self.value = random_value();
        let ttl = Arc::clone(&self.scripts.ttl);
        let token: Option<u64> = self.scripts.run(0, &self.keys, &[&self.value, &ttl]).await?;
        ensure!(token.is_some(), "the key exists");
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let deleted: u64 = self.scripts.run(1, &self.keys[..1], &[&self.value]).await?;
        ensure!(deleted == 1, "the key was lost");
        Ok(())
    }
}
