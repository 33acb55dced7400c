//! A write that carries the evidence of its grant is refused from the moment at which a newer grant exists.
//!
//! The first writer loses its lock without noticing, as a suspended process does. The second one is granted the lock.
//! Before it has written anything, the first one tries to write.
//!
//! ```text
//! cargo run -p lockkit-redis --example redis_guarded_writes -- redis://127.0.0.1:6379
//! ```

use std::time::Duration;

use lockkit_core::{
    LockClient, LockGuard,
    backend::{BackendUrl, Evidence},
};
use lockkit_redis::{GUARD, RedisBackend, RedisConfig};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A write to a hash. Any script works, whose keys are on the same server as the lock.
const WRITE: &str = "return redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])";

/// How long the store may take for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result {
    let url = std::env::args().nth(1).ok_or("usage: redis_guarded_writes redis://HOST:PORT")?;
    for line in run(&url).await? {
        println!("{line}");
    }
    Ok(())
}

/// Returns what happened to each write.
pub async fn run(url: &str) -> Result<Vec<String>> {
    let backend = RedisBackend::new(RedisConfig::from_url(BackendUrl::parse(url)?)?);
    // The limits of the client crate are half a second for an answer, and one second to connect.
    let patience = redis::AsyncConnectionConfig::new()
        .set_response_timeout(Some(ANSWER_MAX))
        .set_connection_timeout(Some(ANSWER_MAX));
    let mut data = redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&patience).await?;
    let first = LockClient::builder(backend.clone()).build().await?;
    let second = LockClient::builder(backend).build().await?;
    let mut seen = Vec::new();

    let stale = first.lock("orders/42")?.acquire().await?;
    seen.push(format!("first, holding the lock: {}", write(&mut data, &stale, "total", "10").await?));
    // Instead of a pause that is longer than the ttl.
    first.close().await?;
    let newer = second.lock("orders/42")?.acquire().await?;
    seen.push(format!("first, after the newer grant: {}", write(&mut data, &stale, "total", "11").await?));
    seen.push(format!("second, holding the lock: {}", write(&mut data, &newer, "total", "20").await?));
    newer.release().await?;
    second.close().await?;
    Ok(seen)
}

/// Writes if the guard's grant still holds the lock.
async fn write(
    data: &mut redis::aio::MultiplexedConnection,
    guard: &LockGuard,
    field: &str,
    text: &str,
) -> Result<&'static str> {
    let Some(Evidence::KeyValue { key, value, .. }) = guard.evidence() else {
        return Err("this backend's grants have another evidence".into());
    };
    let script = redis::Script::new(&format!("{GUARD}{WRITE}"));
    // The lock's key in braces keeps the data in its slot of a cluster.
    let mut call = script.key(key);
    call.key(format!("order:{{{key}}}")).arg(value.expose()).arg(field).arg(text);
    match call.invoke_async::<i64>(data).await {
        Ok(_) => Ok("written"),
        Err(error) if error.code() == Some("FENCED") => Ok("refused"),
        Err(error) => Err(error.into()),
    }
}
