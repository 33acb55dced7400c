//! The wait for the lock.

use std::time::{Duration, Instant};

use lockkit::{LockClient, LockGuard, LockName, backend::Inspection};
use tokio::time::{sleep, timeout};

use crate::{
    exit::{Failure, NOT_ACQUIRED, USAGE},
    held::Held,
    supervise::lead,
    who::describe,
};

/// Longest time that a look at the holder delays the answer.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// Pause between two looks whether a late grant was renewed.
const FRESH_PAUSE: Duration = Duration::from_millis(10);

/// Acquires the lock: within `patience` (zero: asks once), or however long it takes. Refuses a lock that a
/// `lockkit run` around this process holds.
///
/// # Cancel safety
///
/// Dropping the future gives the claim up; closing the client waits until it is withdrawn.
pub(crate) async fn acquire(
    client: &LockClient,
    name: &LockName,
    patience: Option<Duration>,
    held: &Held,
) -> Result<LockGuard, Failure> {
    if held.has(name) && held.is_holder_of(name, &client.inspect(name.as_str()).await?) {
        let message = format!("lock {:?} is held by the `lockkit run` around this one", name.as_str());
        return Err(Failure::new(USAGE, message));
    }
    let lock = client.lock(name.as_str())?;
    let until = patience.and_then(|patience| Instant::now().checked_add(patience));
    loop {
        let (guard, within) = match until.map(|until| until.saturating_duration_since(Instant::now())) {
            None => (Some(lock.acquire().await?), ""),
            Some(Duration::ZERO) => (lock.try_acquire().await?, " at once"),
            Some(left) => (lock.acquire_timeout(left).await?, " in time"),
        };
        match guard {
            Some(guard) if is_fresh(&guard, client.ttl()).await => return Ok(guard),
            // Lost before anything was done under it.
            Some(_) => {}
            None => {
                let holder = timeout(LOOK_MAX, client.inspect(name.as_str())).await;
                let holder = holder.ok().and_then(Result::ok).unwrap_or_default();
                let message = format!("lock {:?} not acquired{within}: {}", name.as_str(), held_by(&holder));
                return Err(Failure::new(NOT_ACQUIRED, message));
            }
        }
    }
}

/// Waits until a job can start; false when the lock is lost before.
///
/// A server that was away for a while may grant a lock late in the lifetime of a session that it has not renewed yet:
/// a job that started then would be told to end at once.
async fn is_fresh(guard: &LockGuard, ttl: Duration) -> bool {
    while guard.remaining() <= lead(ttl) {
        tokio::select! {
            _ = guard.lost() => return false,
            () = sleep(FRESH_PAUSE) => {}
        }
    }
    true
}

/// Who is in the way, in words.
fn held_by(found: &Inspection) -> String {
    match &found.holder {
        Some(holder) => format!("held by {}", describe(holder)),
        None => "its holder cannot be told, or has just ended".into(),
    }
}

#[cfg(test)]
mod tests {
    use lockkit::{Clock, memory::MemoryServer};

    use super::*;

    const TTL: Duration = Duration::from_secs(12);

    /// A server that has answered nothing since it granted this lock, until a job would be ended as soon as it starts.
    async fn stale_grant(server: &MemoryServer) -> LockGuard {
        let client =
            LockClient::builder(server.backend()).ttl(TTL).clock(Clock::tokio()).build().await.unwrap();
        let guard = client.lock("job").unwrap().acquire().await.unwrap();
        server.hold_requests();
        sleep(TTL - lead(TTL)).await;
        assert!(guard.is_held() && guard.remaining() <= lead(TTL));
        guard
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_waits_for_a_stale_grant_to_be_renewed() {
        let server = MemoryServer::new();
        let guard = stale_grant(&server).await;
        let (fresh, ()) = tokio::join!(is_fresh(&guard, TTL), async {
            sleep(FRESH_PAUSE).await;
            server.deliver_requests();
        });
        assert!(fresh && guard.remaining() > lead(TTL), "{:?}", guard.remaining());
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_does_not_start_on_a_grant_that_is_lost() {
        let server = MemoryServer::new();
        let guard = stale_grant(&server).await;
        assert!(!is_fresh(&guard, TTL).await);
    }
}
