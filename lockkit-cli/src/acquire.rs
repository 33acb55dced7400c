//! The wait for the lock.

use std::time::Duration;

use lockkit::{LockClient, LockGuard, LockName, Turn};
use tokio::time::{Instant, sleep};

use crate::{
    describe::held_by,
    enclosing_locks::EnclosingLocks,
    end_schedule::lead,
    exit::{Failure, NOT_ACQUIRED, USAGE},
    waiting::inspected,
};

/// Pause between two checks whether a late grant was renewed.
const FRESH_CHECK_PAUSE: Duration = Duration::from_millis(10);

/// How a lock is acquired and held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquireOptions {
    /// Zero: one attempt; none: no limit.
    pub(crate) time_limit: Option<Duration>,
    /// How long the lock is kept at least.
    pub(crate) at_least: Option<Duration>,
    /// How long the lock is held at most.
    pub(crate) max_hold: Option<Duration>,
    /// The period in which the command runs once.
    pub(crate) once_per: Option<Duration>,
}

/// Acquires the lock with these options; returns `None` if the command has begun in this period already. Fails if an
/// enclosing `lockkit run` holds the lock.
///
/// # Cancel safety
///
/// Dropping the future gives the claim up; closing the client waits for its withdrawal.
pub(crate) async fn acquire(
    client: &LockClient,
    name: &LockName,
    options: AcquireOptions,
    enclosing: &EnclosingLocks,
) -> Result<Option<LockGuard>, Failure> {
    if enclosing.has(name) && enclosing.is_holder_of(name, &client.inspect(name.as_str()).await?) {
        let message = format!(
            "cannot acquire lock {:?}: the enclosing `lockkit run` holds it; use another name",
            name.as_str()
        );
        return Err(Failure::new(USAGE, message));
    }
    let ttl = options.max_hold.map_or(client.ttl(), |max_hold| client.ttl().min(max_hold));
    let until = options.time_limit.and_then(|time_limit| Instant::now().checked_add(time_limit));
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match attempt(client, name, options, left).await? {
            Turn::Yours(guard) if is_fresh(&guard, ttl).await => return Ok(Some(guard)),
            // Lost before the job started.
            Turn::Yours(guard) if !may_begin_again(options, until) => guard.check()?,
            Turn::Yours(_) => {}
            Turn::Done => return Ok(None),
            _ => {
                let limit = if left.is_some_and(|left| left.is_zero()) { "" } else { " within --timeout" };
                let holder = inspected(client.inspect(name.as_str())).await;
                let holder = holder.and_then(Result::ok).unwrap_or_default();
                let message = format!("lock {:?} not acquired{limit}: {}", name.as_str(), held_by(&holder));
                return Err(Failure::new(NOT_ACQUIRED, message));
            }
        }
    }
}

/// Tries to acquire the lock for the time that is `left` (zero: one attempt; none: no limit).
async fn attempt(
    client: &LockClient,
    name: &LockName,
    options: AcquireOptions,
    left: Option<Duration>,
) -> lockkit::Result<Turn> {
    if let Some(period) = options.once_per {
        let work = client.once_per(name.as_str(), period)?;
        return match left {
            Some(left) => work.begin_timeout(left).await,
            None => Ok(work.begin().await?.map_or(Turn::Done, Turn::Yours)),
        };
    }
    let mut lock = client.lock(name.as_str())?.hold_at_least(options.at_least.unwrap_or_default());
    if let Some(max_hold) = options.max_hold {
        lock = lock.max_hold(max_hold);
    }
    let guard = match left {
        None => Some(lock.acquire().await?),
        Some(left) => lock.acquire_timeout(left).await?,
    };
    Ok(guard.map_or(Turn::Busy, Turn::Yours))
}

/// Whether the lock may be acquired again after a grant that was lost before the job started: until the time limit. What
/// runs once has begun by its record, and must not begin again; a lock that is kept for a time is not free before.
fn may_begin_again(options: AcquireOptions, until: Option<Instant>) -> bool {
    let has_time = until.is_none_or(|until| Instant::now() < until);
    has_time && options.once_per.or(options.at_least).is_none()
}

/// Waits until a job can start; returns false if the lock is lost before.
///
/// A server that was unavailable for a while may grant a lock late in the lease of a session that is not renewed yet. A
/// job that started then would get SIGTERM at once.
async fn is_fresh(guard: &LockGuard, ttl: Duration) -> bool {
    while guard.remaining() <= lead(ttl) {
        tokio::select! {
            _ = guard.lost() => return false,
            () = sleep(FRESH_CHECK_PAUSE) => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use lockkit::{Clock, memory::MemoryServer};
    use tokio::time::timeout;

    use super::*;
    use crate::exit::LOST;

    const TTL: Duration = Duration::from_secs(12);

    /// Returns a grant of a server that has not answered since, so late that a job would be ended as soon as it starts.
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
    async fn job_waits_for_a_stale_grant_to_be_renewed() {
        let server = MemoryServer::new();
        let guard = stale_grant(&server).await;
        let (fresh, ()) = tokio::join!(is_fresh(&guard, TTL), async {
            sleep(FRESH_CHECK_PAUSE).await;
            server.deliver_requests();
        });
        assert!(fresh && guard.remaining() > lead(TTL), "{:?}", guard.remaining());
    }

    #[tokio::test(start_paused = true)]
    async fn job_does_not_start_on_a_lost_grant() {
        let server = MemoryServer::new();
        let guard = stale_grant(&server).await;
        assert!(!is_fresh(&guard, TTL).await);
    }

    async fn client(server: &MemoryServer) -> LockClient {
        LockClient::builder(server.backend()).ttl(TTL).clock(Clock::tokio()).build().await.unwrap()
    }

    #[tokio::test]
    async fn lost_grant_is_the_last_one_after_the_time_limit() {
        let (own, name) = (client(&MemoryServer::new()).await, LockName::new("job").unwrap());
        // Lost before a job can start.
        let (time_limit, max_hold) = (Some(Duration::ZERO), Some(Duration::ZERO));
        let options = AcquireOptions { time_limit, at_least: None, max_hold, once_per: None };
        let enclosing = EnclosingLocks::default();
        let acquired = timeout(TTL, acquire(&own, &name, options, &enclosing)).await;
        let refused = acquired.expect("there is one attempt").unwrap_err();
        assert_eq!(refused.status, LOST, "{}", refused.message);
    }

    #[test]
    fn what_runs_once_or_keeps_its_lock_for_a_time_does_not_begin_again() {
        let options =
            AcquireOptions { time_limit: None, at_least: None, max_hold: Some(TTL), once_per: None };
        assert!(may_begin_again(options, None));
        assert!(!may_begin_again(AcquireOptions { at_least: Some(TTL), ..options }, None));
        assert!(!may_begin_again(AcquireOptions { once_per: Some(TTL), ..options }, None));
    }

    #[tokio::test(start_paused = true)]
    async fn time_limit_is_for_all_attempts_together() {
        let (server, name) = (MemoryServer::new(), LockName::new("job").unwrap());
        let (own, other) = (client(&server).await, client(&server).await);
        let [first, next] = [(); 2].map(|()| other.lock("job").unwrap());
        let held = first.acquire().await.unwrap();
        let (second, begin) = (Duration::from_secs(1), Instant::now());
        // Each grant is lost before a job can start.
        let (time_limit, max_hold) = (Some(20 * second), Some(Duration::ZERO));
        let options = AcquireOptions { time_limit, at_least: None, max_hold, once_per: None };
        let enclosing = EnclosingLocks::default();
        let (refused, next, released) = tokio::join!(
            acquire(&own, &name, options, &enclosing),
            async {
                // Behind the first attempt, and before the second one.
                sleep(second).await;
                next.acquire().await.unwrap()
            },
            async {
                sleep(15 * second).await;
                held.release().await
            }
        );
        released.unwrap();
        let (refused, took) = (refused.unwrap_err(), begin.elapsed());
        assert!(refused.status == NOT_ACQUIRED && next.is_held(), "{}", refused.message);
        assert!((20 * second..25 * second).contains(&took), "{took:?}");
    }
}
