//! A write that carries the evidence of its grant is refused from the moment at which a newer grant exists.
//!
//! The first writer stops for longer than its ttl, as a suspended process does. The second one is granted the lock.
//! Before it has written anything, the first one continues and tries to write.
//!
//! ```text
//! cargo run -p lockkit-redis --example guarded_writes -- redis://127.0.0.1:6379
//! ```

use std::{sync::Arc, time::Duration};

use lockkit_core::{
    Clock, LockName, Metadata,
    backend::{Acquired, Backend, BackendUrl, Claim, ClaimControl, Evidence, Grant, Session},
};
use lockkit_redis::{GUARD, RedisBackend, RedisConfig};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A write to a hash. Any script works, whose keys are on the same server as the lock.
const WRITE: &str = "return redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])";

/// The shortest ttl.
const TTL: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result {
    let url = std::env::args().nth(1).ok_or("usage: guarded_writes redis://HOST:PORT")?;
    for line in run(&url).await? {
        println!("{line}");
    }
    Ok(())
}

/// Returns what happened to each write.
pub async fn run(url: &str) -> Result<Vec<String>> {
    let backend = RedisBackend::new(RedisConfig::from_url(BackendUrl::parse(url)?)?);
    let mut data = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let (first, second) =
        (backend.open_session(TTL, Clock::boot()).await?, backend.open_session(TTL, Clock::boot()).await?);
    let mut seen = Vec::new();

    let stale = acquire(&first).await?;
    seen.push(format!("first, holding the lock: {}", write(&mut data, &stale, "total", "10").await?));
    // Nothing renews the first grant, so the lock expires. The second session waits for that.
    let newer = acquire(&second).await?;
    seen.push(format!("first, after the newer grant: {}", write(&mut data, &stale, "total", "11").await?));
    seen.push(format!("second, holding the lock: {}", write(&mut data, &newer, "total", "20").await?));
    second.release(&newer).await?;
    seen.push(format!("second, after its release: {}", write(&mut data, &newer, "total", "21").await?));
    first.close().await?;
    second.close().await?;
    Ok(seen)
}

async fn acquire(session: &Arc<dyn Session>) -> Result<Grant> {
    let metadata = Metadata::of_this_process(Some("guarded writes"));
    let claim = Claim::new(LockName::new("orders/42")?, true, metadata, &ClaimControl::new());
    match session.acquire(claim).await? {
        Acquired::Granted(grant) => Ok(grant),
        other => Err(format!("not granted: {other:?}").into()),
    }
}

/// Writes if the grant still holds its lock.
async fn write(
    data: &mut redis::aio::MultiplexedConnection,
    grant: &Grant,
    field: &str,
    text: &str,
) -> Result<&'static str> {
    let Some(Evidence::KeyValue { key, value, .. }) = grant.evidence() else {
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
